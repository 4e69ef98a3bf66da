"""Realtime sessions: where the time of a chunk goes, and what several sessions at once cost.

    python bench/realtime.py                                    demo:world: engine, then wire
    python bench/realtime.py --wire --wire-model tiny:toy-world --wire-size 64x48 --wire-chunks 200
    python bench/realtime.py --engine --model config:lingbot-world-v2-14b --load-format dummy \
        --size 832x480 --device cuda --sessions 1,2,4,8 --set recipe=v2

Engine, in this process: seconds per chunk and their parts (prepare, denoise, commit, decode),
frames per second, bytes of a session against its reservation, the peak of the device. Sessions run
side by side, each as fast as it can.

Wire (`--wire`), against a real server on this machine: from sending a key to having the first and
the last frame of the chunk that shows it, by format; a world of few pixels shows the protocol's own
share best. The same chunks are made in this process in the same run, so that it is known what the
engine adds to the stages' own work, and what the server, its second process and the protocol add to
that. Every chunk waits for its predecessor, so the commit pass before it counts as its work; where
it overlaps with other parts, they add up to more than the chunk: the engine's share is below 0.

`sgld bench realtime` measures what a client sees of sessions that run free.

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

import numpy as np
import torch

import sgld

TOYS = {"SGLD_EXTERNAL_MODEL_PACKAGE": "sgld.testing.toy_plugin"}
RESULTS = Path(__file__).parent / "results"
PARTS = ("prepare", "denoise", "commit", "decode")
GIB = 2**30
TOY_WORLD = "tiny:toy-world"
PROMPT = "dusk, clear, warm, tall pillars"


def median(values: Sequence[float]) -> float:
    """The median; 0 of nothing."""
    return statistics.median(values) if values else 0.0


def engine(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Chunks of 1, 2, 4, ... sessions in this process."""
    width, height = (int(side) for side in given.size.split("x"))
    picture = np.random.default_rng(0).integers(0, 255, (height, width, 3), np.uint8)
    begin = time.perf_counter()
    rows: list[dict[str, Any]] = []
    with sgld.load(given.model, **_options(given)) as model:
        print(f"loaded {given.model} in {time.perf_counter() - begin:.1f} s", flush=True)
        for count in given.sessions:
            rows.append(_side_by_side(model, picture, count, given))
            _show(rows[-1])
    return rows


def _side_by_side(
    model: sgld.Model, picture: np.ndarray, count: int, given: argparse.Namespace
) -> dict[str, Any]:
    height, width = picture.shape[:2]
    asked = {"prompt": PROMPT, "width": width, "height": height, **given.set}
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
    # Here, because the engine alone is measured where no server is installed.
    from sgld.bench.own_server import OwnServer

    rows: list[dict[str, Any]] = []
    # The chunk of a toy is too small to be shared among threads.
    alone = given.wire_model.startswith("tiny:")
    threads_before = torch.get_num_threads()
    torch.set_num_threads(1 if alone else threads_before)
    here = _here(given)
    torch.set_num_threads(threads_before)
    print(f"in this process: {here['chunk_ms']:.2f} ms a chunk, engine {here['engine_ms']:.2f} ms")
    environ = {**os.environ, **({"OMP_NUM_THREADS": "1"} if alone else {})}
    words = [given.wire_model]
    words += [f"--{name.replace('_', '-')}={value}" for name, value in _options(given).items()]
    with (
        tempfile.TemporaryDirectory(prefix="sgld-bench-") as folder,
        OwnServer(words, Path(folder), environ) as server,
    ):
        server.wait_until_ready()
        for form in ("raw", "webp", "jpeg", "h264"):
            row = _talk(server.address, form, given)
            adds = row["key_to_frames_ms"] - here["chunk_ms"]
            rows.append({**row, "engine_ms": here["engine_ms"], "server_and_wire_ms": adds})
            print(form, end=": ")
            _show({name: value for name, value in row.items() if name != "format"})
            print(f"  engine {here['engine_ms']:.2f} ms, server and wire {adds:.2f} ms")
    return rows


def _here(given: argparse.Namespace) -> dict[str, float]:
    """The same chunks without a server."""
    walls: list[float] = []
    adds: list[float] = []
    width, height = (int(side) for side in given.wire_size.split("x"))
    asked = {"prompt": PROMPT, "seed": 1, "width": width, "height": height, **given.set}
    with (
        sgld.load(given.wire_model, **_options(given)) as model,
        model.session(**asked) as session,
    ):
        for turn in range(given.warm + given.wire_chunks):
            begin = time.perf_counter()
            session.send("camera_actions", [["w"]], turn)
            chunk = session.step()
            wall = (time.perf_counter() - begin) * 1e3
            if turn >= given.warm:
                walls.append(wall)
                adds.append(wall - 1e3 * sum(chunk.seconds.values()))
    return {"chunk_ms": median(walls), "engine_ms": median(adds)}


def _talk(address: str, form: str, given: argparse.Namespace) -> dict[str, Any]:
    """Chunks one after another, each asked for with a new key."""
    from sgld.bench.client import connected
    from sgld.bench.figures import latencies
    from sgld.bench.model_facts import init_of, place_of, served_model
    from sgld.bench.realtime import Wishes, stepping

    place = place_of(f"ws://{address}")
    wanted = {"prompt": PROMPT, "size": given.wire_size, "seed": 1, **given.set}
    wanted |= {"realtime_output_format": form}
    init = init_of(served_model(place), wanted)
    run = stepping(
        lambda: connected(place.ws, key="", patience=600, proxy=False),
        init,
        Wishes(sessions=1, warm=given.warm, chunks=None, steps=given.wire_chunks),
        lambda *_: None,
    )
    if [chunk.event_id for chunk in run.chunks] != [key.event_id for key in run.keys]:
        raise RuntimeError("a chunk has not seen the key that it was made for")
    whole = [(chunk.last - key.sent) * 1e3 for key, chunk in zip(run.keys, run.chunks, strict=True)]
    return {
        "format": form,
        "key_to_frame_ms": median(latencies(run.keys, run.chunks)) * 1e3,
        "key_to_frames_ms": median(whole),
        "key_to_frames_ms_p90": float(np.quantile(whole, 0.9)),
        "encode_ms": statistics.fmean(c.stats["raw_payload_build_ms"] for c in run.chunks),
        "send_ms": statistics.fmean(c.stats["ws_write_ms"] for c in run.chunks),
    }


def _options(given: argparse.Namespace) -> dict[str, Any]:
    """How the model is loaded, in this process and by the server."""
    load = {"load_format": given.load_format} if given.load_format else {}
    return {"device": given.device, **load, **given.serve}


def _pairs(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def _name(given: argparse.Namespace) -> str:
    """What the file of results is called."""
    if given.quick:
        return "quick"
    if given.wire and given.wire_model == TOY_WORLD:
        return "wire"
    model = given.wire_model if given.wire else given.model
    kind, _, rest = model.partition(":")
    name = f"demo-{rest}" if kind == "demo" else rest or Path(model).name
    return f"wire-{name}" if given.wire else name


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="demo:world")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--load-format", default=None)
    parser.add_argument("--size", default="160x96")
    parser.add_argument("--sessions", default="1,2")
    parser.add_argument("--chunks", type=int, default=12, help="measured, per session")
    parser.add_argument("--warm", type=int, default=3, help="not measured, per session")
    parser.add_argument("--wire-model", default="", help="--model unless given")
    parser.add_argument("--wire-size", default="", help="--size unless given")
    parser.add_argument("--wire-chunks", type=int, default=16)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--serve", action="append", default=[], metavar="OPTION=VALUE")
    parser.add_argument("--kind", default="camera_actions", help="of the engine's events")
    parser.add_argument("--payload", default='[["w"],["w"],["d"]]', help="the same")
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
    given.wire_model = given.wire_model or given.model
    given.wire_size = given.wire_size or given.size
    os.environ.update(TOYS)
    report: dict[str, Any] = {
        "model": given.model, "size": given.size, "wire_model": given.wire_model,
        "wire_size": given.wire_size, "set": given.set, "serve": given.serve,
        "plugins": os.environ.get("SGLD_PLUGINS", ""), "device": given.device,
        "machine": platform.machine(), "cpus": os.cpu_count(), "load": os.getloadavg(),
        "torch": torch.__version__, "quick": given.quick,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }  # fmt: skip
    if not given.wire:
        report["engine"] = engine(given)
    if not given.engine:
        report["wire"] = wire(given)
    given.output.mkdir(parents=True, exist_ok=True)
    path = given.output / f"realtime-{_name(given)}.json"
    path.write_text(json.dumps(report, indent=2) + "\n")
    print(f"wrote {path.name}")


if __name__ == "__main__":
    main()
