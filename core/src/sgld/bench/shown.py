"""A measurement as a table for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from rich.table import Table

MB: Final = 1e6
WORDS: Final[Mapping[str, str]] = {
    "request_prepare_ms": "prepared",
    "scheduler_forward_ms": "generated",
    "pace_wait_ms": "waited for its time",
    "raw_payload_build_ms": "encoded",
    "ws_write_ms": "sent",
    "chunk_total_ms": "in all, as the server counts",
}


def table(report: Mapping[str, Any]) -> Table:
    """One row per figure: what it is, the median or the value, the 90th percentile."""
    session, wishes = report["session"], report["settings"]
    title = (
        f"{report['model']['id']}, {session['width']}x{session['height']}, "
        f"{wishes['format']}, {_many(wishes['sessions'], 'session')}"
    )
    made = Table(title=title, title_justify="left", box=None, pad_edge=False)
    made.add_column("", no_wrap=True)
    for name in ("median", "p90", "of"):
        made.add_column(name, justify="right", no_wrap=True)
    for row in _rows(report):
        made.add_row(*row)
    return made


def _rows(report: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    free, step = report["free_running"], report["stepping"]
    total, session = sum(free["frames"]), report["session"]
    yield (
        "generated frames per second", f"{free['all_fps']:.2f}", "", _many(total, "frame")
    )  # fmt: skip
    if free["sessions"] > 1:
        slowest, fastest = min(free["session_fps"]), max(free["session_fps"])
        yield "  of one session", f"{slowest:.2f}…{fastest:.2f}", "", ""
    yield "  the world's own pace", f"{session['fps']:g}", "", ""
    yield _time("key to first frame, running free", free["key_to_frame_ms"], "key")
    if step is not None:
        yield _time("key to first frame, stepping", step["key_to_frame_ms"], "key")
    yield _time("chunk to chunk", free["chunk_ms"], "chunk")
    for name, words in WORDS.items():
        part = free["parts"].get(name)
        if part is not None:
            yield f"  {words}", f"{part['median']:.0f} ms", f"{part['p90']:.0f} ms", ""
    yield "bytes of a frame on the wire", f"{free['payload_bytes_per_frame']:,.0f}", "", ""
    yield from _memory(report["memory"], host=report["platform"] == "cpu")


def _memory(memory: Mapping[str, Any], *, host: bool) -> Iterator[tuple[str, str, str, str]]:
    """`host`: the device's memory is that of the engine's process, and told already."""
    for process, row in (memory.get("busy") or {}).items():
        yield f"memory of {process}, resident", _mb(row["rss_bytes"]), "", ""
        yield "  at most", _mb(row["peak_bytes"]), "", ""
        yield "  shared parts divided (PSS)", _mb(row["pss_bytes"]), "", ""
        yield "  no file's (anonymous)", _mb(row["anonymous_bytes"]), "", ""
        yield "  of no other process (private)", _mb(row["private_bytes"]), "", ""
    device = memory.get("device") or {}
    if device and not host:
        yield "memory of the device, allocated", _mb(device.get("allocated")), "", ""
        yield "  at most", _mb(device.get("peak")), "", ""


def conditions(report: Mapping[str, Any]) -> str:
    """The machine in one line."""
    machine = report["machine"]
    facts = [
        machine["cpu"],
        _many(machine["cores"], "core"),
        f"load before {machine['load_before'][0]:.2f}" if machine["load_before"] else "",
        f"torch {machine['torch']}" if machine["torch"] else "",
        f"sgld {machine['sgld']}" if machine["sgld"] else "",
        *(f"{name}={value}" for name, value in machine["environment"].items()),
    ]
    where = "measured from: " if report["url"] else ""
    return where + ", ".join(fact for fact in facts if fact)


def _time(name: str, row: Mapping[str, Any] | None, unit: str) -> tuple[str, str, str, str]:
    if row is None:
        return name, "not seen", "", ""
    return name, f"{row['median']:.0f} ms", f"{row['p90']:.0f} ms", _many(int(row["count"]), unit)


def _many(count: int, unit: str) -> str:
    return f"{count} {unit}" + ("" if count == 1 else "s")


def _mb(count: int | None) -> str:
    return "not known" if count is None else f"{count / MB:,.0f} MB"
