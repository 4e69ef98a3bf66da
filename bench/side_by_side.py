"""What the benches beside diffusers share: sgld driven on this thread, a clock, and the comparison.

    model = Sgld(model_path="config:flux.1-dev", load_format="dummy")
    sides = {"sgld": lambda steps, clock: ..., **with_kernels("diffusers", run, model.device)}
    measured = compare(sides, steps, model.device, repeats=3)

Both sides are measured the same way: seconds on the wall and peak memory per stage, the device
waited for at the end of each, everything warm. Sides take turns, so that a card that slows down
slows all of them.
"""

from __future__ import annotations

import contextlib
import json
import logging
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import structlog
import torch

from sgld.engine.build import build_engine
from sgld.engine.engine import Engine
from sgld.messages import Event, Output, Request
from sgld.params.merge import Layer, build
from sgld.params.sampling import SamplingParams
from sgld.params.serving import ServingOptions
from sgld.plan import ModelPlan, make_plan
from sgld.testing.parity import relative_l2

RESULTS = Path(__file__).parent / "results"
PROMPT = "a red kite over the sea, slow camera, late light"
WARM_STEPS = 2
COMPARED = ("total", "stage text", "stage denoise", "stage decode")


class Clock:
    """Seconds and peak memory of a run and of the stages that it is cut into by `mark`."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._last = 0.0
        self.seconds: dict[str, float] = {}
        self.peak_gib: dict[str, float] = {}

    @contextlib.contextmanager
    def total(self) -> Iterator[None]:
        """Time what is inside as `total`; its peak is the highest of the stages."""
        self._now()
        begin = self._last
        yield
        self.mark("rest")
        self.seconds = {"total": self._last - begin, **self.seconds}
        if self._cuda:
            self.peak_gib = {"total": max(self.peak_gib.values()), **self.peak_gib}

    def mark(self, stage: str) -> None:
        """End a stage, which began where the one before ended."""
        begin = self._last
        peak = self._now()
        name = f"stage {stage}"
        self.seconds[name] = self.seconds.get(name, 0.0) + self._last - begin
        if self._cuda:
            self.peak_gib[name] = max(self.peak_gib.get(name, 0.0), peak)

    def _now(self) -> float:
        """Wait for the device, note the time, and start over with the peak, which is returned."""
        peak = 0.0
        if self._cuda:
            torch.cuda.synchronize()
            peak = torch.cuda.max_memory_allocated() / 2**30
            torch.cuda.reset_peak_memory_stats()
        self._last = time.perf_counter()
        return peak


class Sgld:
    """A planned and loaded model whose engine is driven here, on this thread."""

    def __init__(self, **options: Any) -> None:
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
        self.plan: ModelPlan = make_plan(build(ServingOptions, [Layer("call", options)]).params)
        self._events: list[Event] = []
        self._clock: Clock | None = None
        begin = time.perf_counter()
        self.engine: Engine = build_engine(self.plan, self._take)
        self.device: torch.device = self.engine._device
        self.modules: Mapping[str, Any] = self.engine._forwards._store._modules
        self.parts: Mapping[str, Any] = self.engine._pipeline.parts
        print(f"loaded in {time.perf_counter() - begin:.1f} s on {self.device}", flush=True)

    def config(self, component: str) -> dict[str, Any]:
        """The configuration of a component, as its file has it."""
        return dict(self.plan.located[component].config)

    def settle(self, params: Mapping[str, Any]) -> SamplingParams:
        """The validated parameters of a request: what is not given has the model's default."""
        return self.plan.build([Layer("call", {"prompt": PROMPT, **params})]).params

    def generate(self, params: Mapping[str, Any], clock: Clock) -> Output:
        """One generation of seed 0, each of its stages marked on the clock."""
        values = self.settle(params).model_dump(mode="json")
        self._events.clear()
        # The warm-up embedded the same prompt; remembering that would flatter the timed run.
        self.engine._forwards._memo.clear()
        self._clock = clock
        with clock.total():
            self.engine.submit(Request("bench", values, (0,), want_latents=True))
            while self.engine.turn():
                pass
        output = next((event.output for event in self._events if event.output), None)
        if output is None:
            raise SystemExit(f"sgld failed: {self._events[-1].message}")
        return output

    def close(self) -> None:
        """Free the model."""
        self.engine.close()
        self.plan.close()

    def _take(self, event: Event) -> None:
        self._events.append(event)
        if event.kind == "stage" and self._clock is not None:
            self._clock.mark(event.stage)


def twin(network: Any, config: Mapping[str, Any], module: torch.nn.Module, **buffers: Any) -> Any:
    """A diffusers model on the very tensors of ours; `buffers` are submodules that no state dict
    holds (rotary tables), ready on the device."""
    with torch.device("meta"):
        made = network.from_config(dict(config))
    for name, value in buffers.items():
        setattr(made, name, value)
    made.load_state_dict(module.state_dict(), strict=True, assign=True)
    empty = [name for name, t in chain(made.named_parameters(), made.named_buffers()) if t.is_meta]
    if empty:
        raise SystemExit(f"{network.__name__}: nothing fills {', '.join(empty)}")
    return made.eval().requires_grad_(False)


def fresh(scheduler: Any, **changes: Any) -> Any:
    """An unused scheduler of the same configuration."""
    made = type(scheduler).from_config(scheduler.config, **changes)
    table = getattr(made, "alphas_cumprod", None)
    if isinstance(table, torch.Tensor):
        # Its set_timesteps turns this into an array, in a way that NumPy 2 deprecates.
        made.alphas_cumprod = table.numpy()
    return made


Side = Callable[[int, Clock], Any]
"""One generation in so many steps; returns the final latents, in the layout of sgld."""


def with_kernels(
    name: str, run: Side, device: torch.device, *, skip_default: bool = False
) -> dict[str, Side]:
    """The side with torch's own choice of attention and, on CUDA, with cuDNN first, as sgld has."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def cudnn_first(steps: int, clock: Clock) -> Any:
        # The others follow for what cuDNN refuses, such as the wide heads of a VAE.
        kernels = ("CUDNN", "FLASH", "EFFICIENT")
        order = [getattr(SDPBackend, f"{kernel}_ATTENTION") for kernel in kernels]
        with sdpa_kernel([*order, SDPBackend.MATH], set_priority=True):
            return run(steps, clock)

    sides = {} if skip_default else {f"{name}, default attention": run}
    if device.type == "cuda":
        sides[f"{name}, cudnn first"] = cudnn_first
    return sides


class Measured(NamedTuple):
    """One side: medians of the seconds, highest peaks, every total, and the last latents."""

    seconds: dict[str, float]
    peak_gib: dict[str, float]
    totals: list[float]
    latents: Any


def compare(
    sides: Mapping[str, Side],
    steps: int,
    device: torch.device,
    *,
    repeats: int = 1,
    budget: float = 60.0,
) -> dict[str, Measured]:
    """Warm every side with a few steps, then run them in turns, `repeats` times or until a round
    ends after `budget` seconds."""
    for run in sides.values():
        run(min(WARM_STEPS, steps), Clock(device))
    print("warm", flush=True)
    clocks: dict[str, list[Clock]] = {name: [] for name in sides}
    latents: dict[str, Any] = {}
    begin = time.perf_counter()
    for _ in range(repeats):
        for name, run in sides.items():
            clock = Clock(device)
            latents[name] = run(steps, clock)
            clocks[name].append(clock)
        if time.perf_counter() - begin > budget:
            break
    return {name: _summed(clocks[name], latents[name]) for name in sides}


def _summed(clocks: list[Clock], latents: Any) -> Measured:
    first = clocks[0]
    return Measured(
        {
            name: statistics.median(clock.seconds[name] for clock in clocks)
            for name in first.seconds
        },
        {name: max(clock.peak_gib[name] for clock in clocks) for name in first.peak_gib},
        [clock.seconds["total"] for clock in clocks],
        latents,
    )


def report(model: Sgld, name: str, params: Mapping[str, Any], measured: dict[str, Measured]) -> Any:
    """The comparison as JSON values; `ratio` is the other side's seconds over those of sgld."""
    import diffusers
    import transformers

    cuda, ours = model.device.type == "cuda", measured["sgld"]
    sides: dict[str, Any] = {}
    for side, found in measured.items():
        sides[side] = {
            "seconds": found.seconds,
            "peak_gib": found.peak_gib,
            "totals": found.totals,
        }
        if side != "sgld":
            sides[side]["relative_l2"] = relative_l2(found.latents, ours.latents)
            sides[side]["ratio"] = {
                stage: found.seconds[stage] / ours.seconds[stage] for stage in COMPARED
            }
    versions = {"diffusers": diffusers.__version__, "transformers": transformers.__version__}
    return {
        "model": name,
        "request": dict(params),
        "precisions": {n: _precision(module) for n, module in model.modules.items()},
        "parameters": {n: _size(module) for n, module in model.modules.items()},
        "device": torch.cuda.get_device_name() if cuda else platform.machine(),
        "versions": {"torch": torch.__version__, **versions, "python": platform.python_version()},
        "warm": True,
        "sides": sides,
    }


def _precision(module: torch.nn.Module) -> str:
    return str(next(module.parameters()).dtype).removeprefix("torch.")


def _size(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def write(folder: Path, name: str, content: Any) -> None:
    """Write the report as `name`.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n")


def show(content: Mapping[str, Any]) -> None:
    """Print a report."""
    print(f"{content['model']} on {content['device']}, torch {content['versions']['torch']}")
    for name, side in content["sides"].items():
        print(name)
        ratio, peak = side.get("ratio", {}), side["peak_gib"]
        for stage, seconds in side["seconds"].items():
            line = f"  {stage:<20} {seconds:9.3f} s"
            line += f"  {peak[stage]:8.2f} GiB" if stage in peak else ""
            print(line + (f"  {ratio[stage]:6.3f} x sgld" if stage in ratio else ""))
        if "relative_l2" in side:
            print(f"  latents {side['relative_l2']:.2e} from those of sgld")
