"""The figures of a measurement as one JSON value.

Keys end in their unit: `_ms` milliseconds, `_bytes`, `_fps` frames per second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sgld.bench.figures import gaps, latencies, rate, spread
from sgld.bench.machine import Memory
from sgld.bench.realtime import Run

PARTS: Final = (
    "request_prepare_ms", "scheduler_forward_ms", "pace_wait_ms", "raw_payload_build_ms",
    "header_write_ms", "raw_write_ms", "ws_write_ms", "chunk_total_ms",
)  # fmt: skip
"""What `chunk_stats` tells of a chunk's time."""
SESSION: Final = ("width", "height", "fps", "first_frames", "chunk_frames", "seed", "queue_chunks",
                  "session_bytes")  # fmt: skip


def throughput(runs: Sequence[Run]) -> dict[str, Any]:
    """Rate and chunk times of sessions that ran side by side."""
    times = [gap for run in runs for gap in gaps(run.begin, run.chunks)]
    rates = [rate(run.begin, run.chunks) for run in runs]
    frames = [sum(chunk.frames for chunk in run.chunks) for run in runs]
    payload = sum(chunk.payload_bytes for run in runs for chunk in run.chunks)
    return {
        "sessions": len(runs),
        "chunks": [len(run.chunks) for run in runs],
        "frames": frames,
        "seconds": max(run.chunks[-1].last - run.begin for run in runs),
        "all_fps": sum(rates),
        "session_fps": rates,
        "chunk_ms": milliseconds(times),
        "payload_bytes_per_frame": payload / sum(frames),
        "parts": parts(runs),
        "key_to_frame_ms": milliseconds(
            [one for run in runs for one in latencies(run.keys, run.chunks)]
        ),
    }


def stepped(run: Run) -> dict[str, Any]:
    """Latency of a session whose chunks were made one by one."""
    return {
        "chunks": len(run.chunks),
        "key_to_frame_ms": milliseconds(latencies(run.keys, run.chunks)),
        "parts": parts([run]),
    }


def parts(runs: Sequence[Run]) -> dict[str, dict[str, float]]:
    """Each part of a chunk's time as the server tells it."""
    found: dict[str, dict[str, float]] = {}
    for name in PARTS:
        values = [float(chunk.stats[name]) for run in runs for chunk in run.chunks
                  if chunk.stats.get(name) is not None]  # fmt: skip
        row = spread(values)
        if row is not None:
            found[name] = {"median": row.median, "p90": row.p90}
    return found


def milliseconds(seconds: Sequence[float]) -> dict[str, float] | None:
    """Count, median, p90 and extremes in milliseconds; None of nothing."""
    row = spread(seconds)
    if row is None:
        return None
    values = {name: value * 1e3 for name, value in row._asdict().items() if name != "count"}
    return {"count": row.count, **values}


def session(run: Run) -> dict[str, Any]:
    """What the sessions are, as the server says."""
    return {name: run.facts.get(name) for name in SESSION}


def memory(rows: Mapping[str, Memory]) -> dict[str, dict[str, int | None]]:
    """Memory of processes by name, in bytes."""
    return {
        process: {(name if name == "threads" else f"{name}_bytes"): value
                  for name, value in row._asdict().items()}
        for process, row in rows.items()
    }  # fmt: skip
