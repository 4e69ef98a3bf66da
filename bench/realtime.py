"""Realtime sessions: where the time of a chunk goes, and what several sessions at once cost.

    python bench/realtime.py                                    tiny world, CPU: engine, then wire
    python bench/realtime.py --model config:lingbot-world-v2-14b --load-format dummy \
        --size 832x480 --device cuda --sessions 1,2 --set recipe=v2

Engine, in this process: seconds per chunk and their parts (prepare, denoise, commit, decode),
frames per second, bytes of a session against its reservation, the peak of the device. Sessions run
side by side, each as fast as it can.

Wire (`--wire`), against a real server on this machine, with a world of few pixels: from sending a
key to having the last frame of the chunk that shows it, by format. The same chunks are made in this
process in the same run, so that it is known what the engine adds to the stages' own work, and what
the server, its second process and the protocol add to that. Every chunk waits for its predecessor,
so the commit pass before it counts as its work.

Prints tables and writes JSON to bench/results/.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import torch

import sgld

TOYS = {"SGLD_EXTERNAL_MODEL_PACKAGE": "sgld.testing.toy_plugin"}
RESULTS = Path(__file__).parent / "results"
PARTS = ("prepare", "denoise", "commit", "decode")
GIB = 2**30


def median(values: Sequence[float]) -> float:
    """The median; 0 of nothing."""
    return statistics.median(values) if values else 0.0


def engine(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Chunks of 1, 2, 4, ... sessions in this process."""
    options = {"device": given.device, "load_format": given.load_format, **given.serve}
    width, height = (int(side) for side in given.size.split("x"))
    picture = np.random.default_rng(0).integers(0, 255, (height, width, 3), np.uint8)
    begin = time.perf_counter()
    rows: list[dict[str, Any]] = []
    with sgld.load(given.model, **{k: v for k, v in options.items() if v is not None}) as model:
        print(f"loaded {given.model} in {time.perf_counter() - begin:.1f} s", flush=True)
        for count in given.sessions:
            rows.append(_side_by_side(model, picture, count, given))
            _show(rows[-1])
    return rows


def _side_by_side(
    model: sgld.Model, picture: np.ndarray, count: int, given: argparse.Namespace
) -> dict[str, Any]:
    height, width = picture.shape[:2]
    asked = {"prompt": "a street in the rain", "width": width, "height": height, **given.set}
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    open_sessions = [
        model.session(first_frame=picture, free_running=True, seed=seed, **asked)
        for seed in range(count)
    ]
    arrivals: list[list[float]] = [[] for _ in open_sessions]
    parts: dict[str, list[float]] = {part: [] for part in PARTS}
    frames, held = 0, 0
    try:
        for session in open_sessions:
            session.send(given.kind, given.payload)
        begin = 0.0
        for turn in range(given.warm + given.chunks):
            if turn == given.warm:
                begin = time.perf_counter()
            for number, session in enumerate(open_sessions):
                chunk = session.step()
                arrivals[number].append(time.perf_counter())
                if turn < given.warm:
                    continue
                frames += len(chunk.frames)
                held = max(held, chunk.bytes)
                for part in PARTS:
                    parts[part].append(chunk.seconds.get(part, 0.0))
        seconds = time.perf_counter() - begin
        reserved = int(open_sessions[0].facts["bytes"])
    finally:
        for session in open_sessions:
            session.close()
    gaps = [
        after - before
        for row in arrivals
        for before, after in zip(row[given.warm - 1 :], row[given.warm :], strict=False)
    ]
    return {
        "sessions": count,
        "chunk_ms": median(gaps) * 1e3,
        "chunk_ms_p90": float(np.quantile(gaps, 0.9)) * 1e3,
        "frames_per_chunk": frames / (given.chunks * count),
        "fps_all": frames / seconds,
        **{f"{part}_ms": median(values) * 1e3 for part, values in parts.items()},
        "session_gib": held / GIB,
        "reserved_gib": reserved / GIB,
        "held_of_reserved": held / reserved,
        "peak_gib": torch.cuda.max_memory_allocated() / GIB if torch.cuda.is_available() else None,
    }


def _show(row: dict[str, Any]) -> None:
    shown = [f"{name} {value:.3g}" for name, value in row.items() if value is not None]
    print("  ".join(shown), flush=True)


def wire(given: argparse.Namespace) -> list[dict[str, Any]]:
    """A server and one client on this machine."""
    from websockets.sync.client import connect

    from sgld.testing.life import Life

    rows: list[dict[str, Any]] = []
    threads_before = torch.get_num_threads()
    torch.set_num_threads(1)
    here = _here(given)
    torch.set_num_threads(threads_before)
    print(f"in this process: {here['chunk_ms']:.2f} ms a chunk, engine {here['engine_ms']:.2f} ms")
    with tempfile.TemporaryDirectory(prefix="sgld-bench-") as folder:
        threads = {"OMP_NUM_THREADS": "1"}
        life = Life("tiny:toy-world", Path(folder) / "life", environ=threads).start()
        address = f"ws://127.0.0.1:{life.port}/v1/realtime_video/generate"
        try:
            for form in ("raw", "webp", "jpeg", "h264"):
                with connect(address, max_size=None, compression=None) as socket:
                    row = _talk(socket, form, given)
                adds = row["key_to_frames_ms"] - here["chunk_ms"]
                rows.append({**row, "engine_ms": here["engine_ms"], "server_and_wire_ms": adds})
                print(form, end=": ")
                _show({name: value for name, value in row.items() if name != "format"})
                print(f"  engine {here['engine_ms']:.2f} ms, server and wire {adds:.2f} ms")
        finally:
            life.stop()
            life.close()
    return rows


def _here(given: argparse.Namespace) -> dict[str, float]:
    """The same chunks without a server."""
    walls: list[float] = []
    adds: list[float] = []
    size = {"width": 64, "height": 48}
    with sgld.load("tiny:toy-world") as model, model.session(prompt="x", seed=1, **size) as session:
        for turn in range(given.warm + given.wire_chunks):
            begin = time.perf_counter()
            session.send("camera_actions", [["w"]], turn)
            chunk = session.step()
            wall = (time.perf_counter() - begin) * 1e3
            if turn >= given.warm:
                walls.append(wall)
                adds.append(wall - 1e3 * sum(chunk.seconds.values()))
    return {"chunk_ms": median(walls), "engine_ms": median(adds)}


def _talk(socket: Any, form: str, given: argparse.Namespace) -> dict[str, Any]:
    """Chunks one after another, each asked for with a new key."""
    init = {
        "type": "init", "protocol": 2, "prompt": "x", "size": "64x48", "free_running": False,
        "realtime_output_format": form, "seed": 1,
    }  # fmt: skip
    socket.send(msgpack.packb(init))
    _until(socket, "session")
    whole: list[float] = []
    sent: dict[str, list[float]] = {name: [] for name in ("raw_payload_build_ms", "ws_write_ms")}
    for turn in range(given.warm + given.wire_chunks):
        begin = time.perf_counter()
        event = {"type": "event", "kind": "camera_actions", "payload": [["w"]], "event_id": turn}
        socket.send(msgpack.packb(event))
        socket.send(msgpack.packb({"type": "step"}))
        stats = _until(socket, "chunk_stats")
        if stats["event_id"] != turn:
            raise RuntimeError(f"chunk {stats['chunk_index']} has not seen event {turn}")
        if turn >= given.warm:
            whole.append((time.perf_counter() - begin) * 1e3)
            for name in sent:
                sent[name].append(float(stats[name]))
    socket.send(msgpack.packb({"type": "close"}))
    return {
        "format": form,
        "key_to_frames_ms": median(whole),
        "key_to_frames_ms_p90": float(np.quantile(whole, 0.9)),
        "encode_ms": statistics.fmean(sent["raw_payload_build_ms"]),
        "send_ms": statistics.fmean(sent["ws_write_ms"]),
    }


def _until(socket: Any, kind: str) -> dict[str, Any]:
    """The next message of a kind; what comes before it is read past."""
    bare = False
    while True:
        data = socket.recv(timeout=60)
        if bare:
            bare = False
            continue
        message = msgpack.unpackb(data)
        if message["type"] == "error":
            raise RuntimeError(message.get("message") or message["content"])
        bare = message["type"].endswith("_header")
        if message["type"] == kind:
            return message


def _pairs(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="tiny:lingbot-world")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--load-format", default=None)
    parser.add_argument("--size", default="64x48")
    parser.add_argument("--sessions", default="1,2,4,8")
    parser.add_argument("--chunks", type=int, default=12, help="measured, per session")
    parser.add_argument("--warm", type=int, default=3, help="not measured, per session")
    parser.add_argument("--wire-chunks", type=int, default=200)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--serve", action="append", default=[], metavar="OPTION=VALUE")
    parser.add_argument("--kind", default="camera_actions")
    parser.add_argument("--payload", default='[["w"],["w"],["d"]]')
    parser.add_argument("--wire", action="store_true", help="only the wire")
    parser.add_argument("--engine", action="store_true", help="only the engine")
    parser.add_argument("--quick", action="store_true", help="a smoke test: figures mean little")
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    given.sessions = [int(number) for number in given.sessions.split(",")]
    given.set, given.serve = dict(map(_pairs, given.set)), dict(map(_pairs, given.serve))
    given.payload = json.loads(given.payload)
    if given.quick:
        given.chunks, given.warm, given.wire_chunks, given.sessions = 2, 1, 3, [1, 2]
    os.environ.update(TOYS)
    report: dict[str, Any] = {
        "model": given.model, "size": given.size, "set": given.set, "device": given.device,
        "machine": platform.machine(), "cpus": os.cpu_count(), "load": os.getloadavg(),
        "torch": torch.__version__, "quick": given.quick,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }  # fmt: skip
    if not given.wire:
        report["engine"] = engine(given)
    if not given.engine:
        report["wire"] = wire(given)
    given.output.mkdir(parents=True, exist_ok=True)
    name = "wire" if given.wire else given.model.partition(":")[2] or Path(given.model).name
    if given.quick:
        name = "quick"
    path = given.output / f"realtime-{name}.json"
    path.write_text(json.dumps(report, indent=2) + "\n")
    print(f"wrote {path.name}")


if __name__ == "__main__":
    main()
