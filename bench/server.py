"""What the server adds to the engine: milliseconds per request, answers to probes, memory.

    python bench/server.py            all of it, about two minutes
    python bench/server.py --quick    a smoke test

Four measurements, each on a server of its own, all in one run on this machine:

* overhead: the same tiny picture made in this process (engine and encoder) and over HTTP, in turns,
  on one thread each;
* probes: `/liveness`, `/health` and `/metrics` while the engine computes on every core;
* queue: resident memory of the server with waiting videos, and waiting edits of large pictures;
* stream: resident memory while a large result is sent.

Prints a table with the targets and writes it as JSON to bench/results/. Linux only.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import torch
from PIL import Image

import sgld
from sgld.media.saving import save_output
from sgld.server.jobs.store import Job, JobStore, new_job_id
from sgld.testing.life import Life
from sgld.testing.served import TOYS, wait_for

RESULTS = Path(__file__).parent / "results"
MIB = 2**20


class Row(NamedTuple):
    """One figure; `target` is an upper limit, None where there is none."""

    name: str
    value: float
    unit: str
    target: float | None = None

    @property
    def verdict(self) -> str:
        """`ok` or `MISSED` where there is a target."""
        return "" if self.target is None else "ok" if self.value < self.target else "MISSED"


def took(work: Callable[[], Any]) -> float:
    """Milliseconds that a call takes."""
    begin = time.perf_counter()
    work()
    return (time.perf_counter() - begin) * 1000


def percentile(values: list[float], share: float) -> float:
    """The value below which `share` of all lie."""
    return float(np.quantile(values, share))


def resident(pid: int) -> float:
    """Resident memory of a process in MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"no VmRSS of {pid}")


def overhead(folder: Path, count: int) -> list[Row]:
    """The same request in this process and over HTTP, in turns so that both see the same load."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    life = Life("tiny:toy-image", folder, environ={"OMP_NUM_THREADS": "1"}).start()
    here: list[float] = []
    there: list[float] = []
    body = {"prompt": "a lamp", "seed": 1}
    with sgld.load("tiny:toy-image") as model:

        def make() -> None:
            result = model.generate(**body)
            save_output(result.outputs[0], folder=folder / "here", overwrite=True)

        def ask() -> None:
            life.client.post("/v1/images/generations", json=body).raise_for_status()

        for turn in range(count + 10):
            pair = took(make), took(ask)
            if turn >= 10:
                here.append(pair[0])
                there.append(pair[1])
    life.stop()
    life.close()
    torch.set_num_threads(threads)
    added = [b - a for a, b in zip(here, there, strict=True)]
    return [
        Row("request in process, median", statistics.median(here), "ms"),
        Row("request over HTTP, median", statistics.median(there), "ms"),
        Row("HTTP adds, median", statistics.median(added), "ms", 5),
        Row("HTTP adds, p90", percentile(added, 0.9), "ms"),
    ]


def probes(folder: Path, seconds: float, model: str) -> list[Row]:
    """Probes fifty times a second while clips are made."""
    life = Life(model, folder, "--max-running", "2").start()
    clip = {"prompt": "a kite", "size": "160x96", "num_frames": 17, "num_inference_steps": 1000}
    ids = [life.client.post("/v1/videos", json=clip).json()["id"] for _ in range(2)]
    wait_for(lambda: life.metric("sgld_steps_total", kind="video") > 1, "steps")
    times: dict[str, list[float]] = {path: [] for path in ("/liveness", "/health", "/metrics")}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for path, row in times.items():
            row.append(took(lambda path=path: life.client.get(path).raise_for_status()))
        time.sleep(0.02)
    for id in ids:
        life.client.delete(f"/v1/videos/{id}")
    life.stop()
    life.close()
    both = times["/liveness"] + times["/health"]
    return [
        Row("probe, p50", percentile(both, 0.5), "ms"),
        Row("probe, p99", percentile(both, 0.99), "ms", 50),
        Row("/metrics, p99", percentile(times["/metrics"], 0.99), "ms"),
    ]


def queue(folder: Path, count: int, side: int, quick: bool) -> list[Row]:
    """Memory with `count` jobs waiting behind a long one; `quick` leaves the videos out."""
    edits = _queued(folder / "e", "tiny:toy-edit", count, side)
    rows = [Row(f"{count} queued edits, {side} px", edits, "MiB", 100)]
    if not quick:
        videos = _queued(folder / "v", "tiny:toy-video", count, None)
        rows.append(Row(f"{count} queued videos", videos, "MiB", 100))
    return rows


def _queued(folder: Path, model: str, count: int, side: int | None) -> float:
    life = Life(model, folder, "--max-running", "1", "--drain-seconds", "0").start()
    url, limits = str(life.client.base_url), httpx.Limits(max_connections=None)
    with (
        httpx.Client(base_url=url, timeout=600, trust_env=False, limits=limits) as client,
        ThreadPoolExecutor(count + 1) as pool,
    ):
        picture = _picture(side or 16)

        def post(fields: dict[str, Any]) -> httpx.Response:
            if side is None:
                return client.post("/v1/videos", json=fields)
            files = {"image": ("a.png", picture, "image/png")}
            return client.post("/v1/images/edits", data=fields, files=files)

        for _ in range(5):  # what the first request of all allocates is no cost of a queue
            post({"prompt": "warm"}).raise_for_status()
        wait_for(lambda: life.metric("sgld_requests_running") == 0, "an idle server")
        idle = resident(life.pid)
        hold = {"prompt": "hold", "step_delay": 1.0, "num_inference_steps": 900}
        pool.submit(post, hold)
        wait_for(lambda: life.metric("sgld_requests_running") == 1, "the first job")
        for _ in range(count):
            pool.submit(post, {"prompt": "wait " * 50})
        wait_for(lambda: life.metric("sgld_queue_length") == count, "a full queue")
        time.sleep(0.5)
        grown = resident(life.pid) - idle
        life.stop()
    life.close()
    return grown


def _picture(side: int) -> bytes:
    noise = np.random.default_rng(0).integers(0, 255, (side, side, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def stream(folder: Path, mib: int) -> list[Row]:
    """Memory and speed of the server while one large result is read."""
    id = new_job_id("video")
    (folder / "state").mkdir(parents=True)
    (folder / "outputs" / id).mkdir(parents=True)
    with (folder / "outputs" / id / "0.mp4").open("wb") as file:
        for _ in range(mib):
            file.write(os.urandom(MIB))
    output = {
        "key": f"{id}/0.mp4", "media_type": "video/mp4", "bytes": mib * MIB, "width": 16,
        "height": 16, "frames": 1, "fps": 16.0, "seed": 0, "index": 0, "parameters": {},
    }  # fmt: skip
    request = {"params": {}, "seeds": [0], "output": {"extension": ".mp4"}}
    with JobStore.open(f"sqlite:///{folder}/state/jobs.sqlite3") as jobs:
        jobs.add(Job(id, "video", time.time(), "completed", request=request, outputs=[output]))
    life = Life("tiny:toy-video", folder).start()
    life.client.get(f"/v1/videos/{id}/content", headers={"range": "bytes=0-99"})
    idle, peak, size = resident(life.pid), 0.0, 0
    begin = time.perf_counter()
    with life.client.stream("GET", f"/v1/videos/{id}/content") as answer:
        for number, chunk in enumerate(answer.iter_raw()):
            size += len(chunk)
            if number % 64 == 0:
                peak = max(peak, resident(life.pid))
    seconds = time.perf_counter() - begin
    life.stop()
    life.close()
    if size != mib * MIB:
        raise RuntimeError(f"{size} of {mib * MIB} bytes came")
    return [
        Row(f"streaming {mib} MiB, growth", peak - idle, "MiB", 20),
        Row("streaming, speed", size / MIB / seconds, "MiB/s"),
    ]


def main() -> None:
    """Measure, print, write; exit status 1 when a target is missed, except in a smoke test."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a smoke test: figures mean little")
    parser.add_argument("--only", nargs="+", choices=("overhead", "probes", "queue", "stream"))
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    os.environ.update(TOYS)
    quick: bool = given.quick
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="sgld-bench-") as name:
        folder = Path(name)
        parts: dict[str, Callable[[], list[Row]]] = {
            "overhead": lambda: overhead(folder / "overhead", 20 if quick else 300),
            "probes": lambda: probes(
                folder / "probes", *((1, "tiny:toy-video") if quick else (15, "tiny:wan-t2v"))
            ),
            "queue": lambda: queue(
                folder / "queue", 20 if quick else 200, 64 if quick else 1024, quick
            ),
            "stream": lambda: stream(folder / "stream", 16 if quick else 1024),
        }
        for part, measure in parts.items():
            if given.only is None or part in given.only:
                rows += measure()
    width = max(len(row.name) for row in rows)
    for row in rows:
        target = "" if row.target is None else f"< {row.target:g}"
        print(f"{row.name:<{width}}{row.value:>10.1f} {row.unit:<6}{target:>7}  {row.verdict}")
    report = {
        "machine": platform.machine(), "cpus": os.cpu_count(),
        "load": os.getloadavg(), "python": platform.python_version(), "sgld": sgld.__version__,
        "quick": quick, "rows": [r._asdict() for r in rows],
    }  # fmt: skip
    given.output.mkdir(parents=True, exist_ok=True)
    path = given.output / f"server-{'quick' if quick else 'cpu'}.json"
    path.write_text(json.dumps(report, indent=2) + "\n")
    if not quick and any(row.verdict == "MISSED" for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
