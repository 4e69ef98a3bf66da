"""What sharing forwards is worth: the same mixed requests run in three ways on one model.

    python bench/batching.py --quick                          seconds on a CPU: does it run
    python bench/batching.py --model small --requests 12      a random SANA of 33 M parameters
    python bench/batching.py --model config:sana-1.6b --device cuda --dtype bfloat16 \\
        --width 1024 --height 1024 --requests 32 --rate 4 --rows 16
    python bench/batching.py --model tiny:flux.1-schnell      any model that sgld knows

alone      one request at a time, in order of arrival
admission  what waits when the device falls idle starts together, if it has the same size, steps and
           guidance; nobody joins later: batching as request-level servers do it
step       a request joins at its arrival, at whatever step the others stand

Requests differ in prompt, seed, steps and guidance, and arrive at random times of a fixed seed (or
all at once with --rate 0). Latency counts from arrival to the finished picture; on a busy machine
compare "cpu s", the process's own time. In float32 on a CPU the three ways must give the same
latents; a difference above 1e-4 fails the run. Prints a table and writes JSON to bench/results/.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import platform
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import structlog
import torch

from sgld.engine.build import build_engine
from sgld.messages import Event, Request
from sgld.params.merge import Layer, build
from sgld.params.serving import ServingOptions
from sgld.plan import ModelPlan, make_plan
from sgld.testing.parity import relative_l2

RESULTS = Path(__file__).parent / "results"
WAYS = ("alone", "admission", "step")
SUBJECTS = ("a red kite", "an old ship", "two cats", "rain on a window", "a lamp", "a quiet street")
TOLERANCE = 1e-4


class Wish(NamedTuple):
    """One request: when it comes, what it asks for, and what must be equal to start together."""

    arrival: float
    request: Request
    start: tuple[Any, ...]


class Outcome(NamedTuple):
    """What one way of running took."""

    seconds: float
    cpu_seconds: float
    latencies: dict[str, float]
    latents: dict[str, Any]
    forwards: int
    rows: int


class Driven:
    """An engine turned from here, which notes when each request ends."""

    def __init__(self, plan: ModelPlan) -> None:
        self.latents: dict[str, Any] = {}
        self.ends: dict[str, float] = {}
        self.engine = build_engine(plan, self._take)

    def _take(self, event: Event) -> None:
        if event.kind == "failed":
            raise SystemExit(f"{event.request_id}: {event.message}")
        if event.output is not None:
            self.latents[event.request_id] = event.output.latents
            self.ends[event.request_id] = time.perf_counter()


def plan_for(path: str, way: str, args: argparse.Namespace) -> ModelPlan:
    """The model, served in one of the three ways."""
    options: dict[str, Any] = {
        "model_path": path,
        "device": args.device,
        "dtype": args.dtype,
        "batching": "off" if way == "alone" else args.rows,
        "max_running": 1 if way == "alone" else args.rows,
    }
    if path.startswith("config:"):
        options["load_format"] = "dummy"
    return make_plan(build(ServingOptions, [Layer("call", options)]).params)


def make_wishes(plan: ModelPlan, args: argparse.Namespace) -> list[Wish]:
    """Mixed requests; parameters that the family does not have are left out."""
    draw, accepted, arrival = random.Random(0), plan.params_class.accepted(), 0.0
    wishes: list[Wish] = []
    for index in range(args.requests):
        values: dict[str, Any] = {
            "prompt": f"{SUBJECTS[index % len(SUBJECTS)]} number {index}",
            "num_inference_steps": draw.choice(args.steps),
            "guidance_scale": draw.choice((1.0, 3.0, 4.5, 6.0)),
            "width": args.width,
            "height": args.height,
        }
        values = {name: value for name, value in values.items() if name in accepted}
        params = plan.build([Layer("call", values)]).params
        start = (params.width, params.height, params.num_inference_steps, params.uses_cfg)
        request = Request(
            f"r{index}", params.model_dump(mode="json"), (1000 + index,), want_latents=True
        )
        wishes.append(Wish(arrival, request, start))
        arrival += draw.expovariate(args.rate) if args.rate else 0.0
    return wishes


def run(way: str, path: str, args: argparse.Namespace) -> Outcome:
    """All wishes in one way, on an engine of its own."""
    plan = plan_for(path, way, args)
    try:
        driven, wishes = Driven(plan), make_wishes(plan, args)
        engine = driven.engine
        first = wishes[0].request
        # Once before the clock runs: kernels are chosen and tables made at the first call.
        engine.submit(Request("warm", first.params, first.seeds))
        while engine.turn():
            pass
        before, counter = dict(engine.forwards), Rows(engine)
        begin, worked = time.perf_counter(), time.process_time()
        pending = [wish._replace(arrival=begin + wish.arrival) for wish in wishes]
        come = {wish.request.id: wish.arrival for wish in pending}
        while pending or not engine.idle():
            for wish in due(way, pending, engine.idle(), args.rows):
                pending.remove(wish)
                engine.submit(wish.request)
            if not engine.turn() and pending:
                time.sleep(max(0.0, min(w.arrival for w in pending) - time.perf_counter()))
        worked = time.process_time() - worked
        end = max(driven.ends[id] for id in come)
        forwards = engine.forwards["transformer"] - before["transformer"]
        engine.close()
    finally:
        plan.close()
    latencies = {id: driven.ends[id] - arrival for id, arrival in come.items()}
    return Outcome(end - begin, worked, latencies, driven.latents, forwards, counter.rows)


class Rows:
    """Counts the rows that the transformer saw, by standing in front of its forward."""

    def __init__(self, engine: Any) -> None:
        self.rows = 0
        with engine._forwards._store.acquire("transformer") as module:
            module.register_forward_pre_hook(self._count, with_kwargs=True)

    def _count(self, _module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.rows += len(next(v for v in (*args, *kwargs.values()) if torch.is_tensor(v)))


def due(way: str, pending: Sequence[Wish], idle: bool, rows: int) -> list[Wish]:
    """The wishes to submit now."""
    now = time.perf_counter()
    here = [wish for wish in pending if wish.arrival <= now]
    if way != "admission":
        return here
    if not idle or not here:
        return []
    return [wish for wish in here if wish.start == here[0].start][:rows]


def summary(outcome: Outcome, alone: Outcome) -> dict[str, float]:
    """The numbers of one row of the table."""
    times = sorted(outcome.latencies.values())
    apart = max(relative_l2(outcome.latents[id], alone.latents[id]) for id in outcome.latencies)
    return {
        "seconds": outcome.seconds,
        "cpu_seconds": outcome.cpu_seconds,
        "per_second": len(times) / outcome.seconds,
        "speedup": alone.seconds / outcome.seconds,
        "latency_mean": sum(times) / len(times),
        "latency_median": times[len(times) // 2],
        "latency_p95": times[min(len(times) - 1, int(0.95 * len(times)))],
        "forwards": outcome.forwards,
        "rows_per_forward": outcome.rows / outcome.forwards,
        "relative_l2_to_alone": apart,
    }


@contextlib.contextmanager
def model_path(name: str) -> Iterator[str]:
    """`small` and `tiny` as folders that vanish afterwards; everything else as it is."""
    if name not in ("small", "tiny"):
        yield name
        return
    from sgld_sana import testing

    with tempfile.TemporaryDirectory() as folder:
        (testing.small_sana if name == "small" else testing.tiny_sana)(Path(folder) / name)
        yield str(Path(folder) / name)


def parse() -> argparse.Namespace:
    """The command line, with the sizes of --quick put in."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", default="small")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--requests", type=int, default=12)
    parser.add_argument("--rate", type=float, default=0.5, help="arrivals per second; 0: at once")
    parser.add_argument("--rows", type=int, default=8, help="most rows of a forward")
    parser.add_argument("--steps", type=int, nargs="+", default=[8, 12, 20])
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--height", type=int, default=128)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--name", default="", help="name of the result file")
    args = parser.parse_args()
    if args.quick:
        args.model, args.requests, args.rate = "tiny", 5, 0.0
        args.steps, args.width, args.height = [2, 3], 96, 64
    return args


def main() -> None:
    """Run the three ways, print the table, write the file."""
    args = parse()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    with model_path(args.model) as path:
        outcomes = {way: run(way, path, args) for way in WAYS}
    rows = {way: summary(outcome, outcomes["alone"]) for way, outcome in outcomes.items()}
    heads = (
        "way",
        "s",
        "cpu s",
        "1/s",
        "x",
        "mean s",
        "median s",
        "p95 s",
        "forwards",
        "rows",
        "apart",
    )
    print(("{:<10}" + "{:>10}" * 10).format(*heads))
    for way, row in rows.items():
        cells = [f"{value:.4g}" for value in row.values()]
        print(("{:<10}" + "{:>10}" * 10).format(way, *cells))
    device = torch.cuda.get_device_name() if args.device == "cuda" else platform.processor()
    settings = {"torch": torch.__version__, "device_name": device, **vars(args)}
    name = args.name or f"batching-{args.model.replace(':', '-')}-{args.device}"
    if not args.quick:
        RESULTS.mkdir(exist_ok=True)
        content = {"settings": settings, "ways": rows}
        (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n")
    worst = max(row["relative_l2_to_alone"] for row in rows.values())
    if args.dtype == "float32" and args.device == "cpu" and not worst <= TOLERANCE:
        raise SystemExit(f"the ways differ by {worst:.1e}, more than {TOLERANCE:.0e}")


if __name__ == "__main__":
    main()
