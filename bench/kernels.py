"""Elementwise ops at the shapes of Wan and LingBot: plain torch, torch.compile, Triton, in one run.

    uv run python bench/kernels.py             CUDA: every op at every shape, bf16
    uv run python bench/kernels.py --output    the same, also as bench/results/kernels-<gpu>.json
    uv run python bench/kernels.py --sweep --ops norm.rms_rope --shapes lingbot-14b
    uv run python bench/kernels.py --quick     a tiny shape; on a CPU in Triton's interpreter

Every side's results are first compared with the reference's; where Triton's are further away than
the kernels' contract allows, the exit code is 1. Times are CUDA events around one call each,
the second-level cache overwritten before, the sides taking turns; the median is shown. GB/s counts
each operand once and each result once, whatever a side really moves: so it is comparable, and for a
side of several passes it is below what its passes reach. `--sweep` times Triton with every sensible
program size, not only that of `sgld_kernels_triton.launch`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from sgld.ops import Ops, rope
from sgld.plugins.catalog import load_target
from sgld.testing.conformance.hardware import tolerance
from sgld.testing.conformance.kernel import OTHERWISE_ROUNDED
from sgld_kernels_triton.launch import SWEPT, launch_for, sensible
from sgld_kernels_triton.plugin import TARGETS

RESULTS: Final = Path(__file__).parent / "results"
EPS: Final = 1e-6
PEAK_TBS: Final = {"H200": 4.8}
"""Terabytes a second that the maker's data sheet states."""
DTYPE: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Shape(NamedTuple):
    """Tokens of one forward, and how many vectors modulate them."""

    tokens: int
    width: int
    heads: int
    groups: int


SHAPES: Final[Mapping[str, Shape]] = {
    "lingbot-14b": Shape(3 * 30 * 52, 5120, 40, 3),  # a chunk of 3 latent frames at 832x480
    "lingbot-1.3b": Shape(3 * 30 * 52, 1536, 12, 3),
    "wan-14b": Shape(21 * 30 * 52, 5120, 40, 1),  # 81 frames at 832x480
    "wan-1.3b": Shape(21 * 30 * 52, 1536, 12, 1),
    "vae-480p": Shape(4 * 480 * 832, 96, 1, 1),  # the decoder's last level, four frames
    "vae-240p": Shape(4 * 240 * 416, 192, 1, 1),
}
QUICK: Final[Mapping[str, Shape]] = {
    "quick": Shape(24, 96, 3, 3),
    "vae-quick": Shape(4 * 6, 96, 1, 1),
}

Call = Callable[..., Any]


def happens(op: str, name: str) -> bool:
    """Whether the op is called at the shape: those of a VAE are apart."""
    return (op == "norm.channel_rms_silu") == name.startswith("vae-")


def arguments(op: str, shape: Shape, dtype: torch.dtype, device: torch.device) -> tuple[Any, ...]:
    """What a network gives the op: a modulation is a view of a table of six, in float32."""
    random = torch.Generator(device).manual_seed(1)

    def noise(*size: int, dtype: torch.dtype = dtype) -> Tensor:
        return torch.randn(size, generator=random, device=device, dtype=torch.float32).to(dtype)

    tokens, width, heads, groups = shape
    if op == "norm.channel_rms_silu":
        clip = noise(1, 4, tokens // 4, 1, width).permute(0, 4, 1, 2, 3)  # channels innermost
        return clip, noise(width), 1e-12
    x, y = noise(1, tokens, width), noise(1, tokens, width)
    shift, scale, gate = noise(1, groups, 6, width, dtype=torch.float32).unbind(2)[:3]
    weight, bias = (noise(width, dtype=torch.float32) for _ in range(2))
    angles = rope.axis(range(tokens), width // heads)
    cos, sin = (table.to(device) for table in angles)
    by_head = noise(width // heads)
    return {
        "norm.layer": (x, weight, bias, EPS),
        "norm.layer_modulate": (x, scale, shift, EPS),
        "norm.rms": (x, noise(width), EPS),
        "norm.rms_rope": (x, noise(width), cos, sin, heads, EPS),
        "norm.head_rms_rope": (x, by_head, cos, sin, heads, EPS),
        "residual.gate": (x, y, gate),
        "residual.gate_layer": (x, y, gate, weight, bias, EPS),
        "residual.gate_layer_modulate": (x, y, None, scale, shift, EPS),
    }[op]


def tensors(values: Any) -> list[Tensor]:
    """The tensors among arguments or results."""
    values = (values,) if isinstance(values, Tensor) else values
    return [value for value in values if isinstance(value, Tensor)]


def moved(args: tuple[Any, ...], results: Any) -> int:
    """Bytes when each operand is read once and each result is written once."""
    return sum(tensor.numel() * tensor.itemsize for tensor in [*tensors(args), *tensors(results)])


def distance(found: Any, wanted: Any) -> tuple[float, float, bool]:
    """Largest error, part of the elements with other bits, and whether the contract allows both."""
    worst, other, fine = 0.0, 0.0, True
    for ours, theirs in zip(tensors(found), tensors(wanted), strict=True):
        error = (ours.double() - theirs.double()).abs()
        part = (ours != theirs).double().mean().item()
        allowed = tolerance(ours.dtype) * (1 + theirs.double().abs())
        fine &= bool((error <= allowed).all())
        fine &= ours.dtype == torch.float32 or part <= OTHERWISE_ROUNDED
        worst, other = max(worst, error.max().item()), max(other, part)
    return worst, other, fine


class Clock:
    """Times calls on one device."""

    def __init__(self, device: torch.device, repeats: int) -> None:
        self.device, self.repeats = device, repeats
        self._cuda = device.type == "cuda"
        if self._cuda:
            # Long enough to write that the call is queued before the clock starts.
            self._flush = torch.empty(512 * 2**20, dtype=torch.uint8, device=device)

    def medians(self, sides: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
        """Median seconds of each side, which take turns."""
        for run in sides.values():
            for _ in range(3 if self._cuda else 1):
                run()
        found: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(self.repeats):
            for name, run in sides.items():
                found[name].append(self._once(run))
        return {name: statistics.median(times) for name, times in found.items()}

    def _once(self, run: Callable[[], Any]) -> float:
        if not self._cuda:
            begin = time.perf_counter()
            run()
            return time.perf_counter() - begin
        self._flush.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1000


def sides_of(op: str, *, compiled: bool) -> dict[str, Call]:
    """Who is compared: the reference first."""
    reference = Ops.reference()[op]
    sides = {"reference": reference}
    if compiled:
        sides["compiled"] = torch.compile(reference, dynamic=False)
    sides["triton"] = load_target(TARGETS[op])
    return sides


def measure(
    op: str, name: str, shape: Shape, dtype: torch.dtype, clock: Clock, *, compiled: bool
) -> dict[str, Any]:
    """One op at one shape, all sides."""
    args = arguments(op, shape, dtype, clock.device)
    sides = sides_of(op, compiled=compiled)
    wanted = sides["reference"](*args)
    size = moved(args, wanted)
    rows: dict[str, Any] = {}
    runs: dict[str, Callable[[], Any]] = {}
    for side, call in sides.items():
        try:
            worst, other, fine = distance(call(*args), wanted)
        except Exception as error:
            if side != "compiled":
                raise
            rows[side] = {"failed": f"{type(error).__name__}: {error}".splitlines()[0]}
            continue
        rows[side] = {"largest_error": worst, "otherwise_rounded": other, "within": fine}
        runs[side] = lambda call=call: call(*args)
    for side, seconds in clock.medians(runs).items():
        rows[side] |= {"microseconds": seconds * 1e6, "gb_per_s": size / seconds / 1e9}
    return {"op": op, "shape": name, "bytes": size, "sides": rows}


def sweep(
    op: str, name: str, shape: Shape, dtype: torch.dtype, clock: Clock
) -> list[dict[str, Any]]:
    """Triton with every sensible size of a program, fastest first."""
    args, kernel = arguments(op, shape, dtype, clock.device), load_target(TARGETS[op])
    size = moved(args, kernel(*args))
    width = shape.width // shape.heads if op == "norm.head_rms_rope" else shape.width
    tried = [launch for launch in SWEPT if sensible(launch, width)]
    runs = {
        f"{launch.rows} {launch.warps}": lambda launch=launch: kernel(*args, launch=launch)
        for launch in tried
    }
    times = clock.medians(runs)
    rows = []
    for launch in sorted(tried, key=lambda launch: times[f"{launch.rows} {launch.warps}"]):
        seconds = times[f"{launch.rows} {launch.warps}"]
        rows.append(
            {
                "op": op,
                "shape": name,
                **launch._asdict(),
                "microseconds": seconds * 1e6,
                "gb_per_s": size / seconds / 1e9,
                "in_use": launch == launch_for(width),
            }
        )
    return rows


def parse(given: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--ops", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--dtype", choices=DTYPE, help="default: bfloat16; float32 on a CPU")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--sweep", action="store_true", help="time sizes of a program as well")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--peak", type=float, help="TB/s to compare with; known for an H200")
    parser.add_argument("--quick", action="store_true", help="a tiny shape, to see that it runs")
    parser.add_argument(
        "--output", nargs="?", type=Path, const=Path(), help="write JSON: a file, or results/"
    )
    asked = parser.parse_args(given)
    if asked.device == "cpu" and not asked.quick:
        parser.error("--device cpu: only with --quick; a CPU runs Triton in its interpreter.")
    if asked.repeats < 1:
        parser.error(f"--repeats {asked.repeats}: must be 1 or more.")
    return asked


def show(row: Mapping[str, Any], peak: float | None) -> None:
    """One line for each side."""
    for side, found in row["sides"].items():
        where = f"{row['shape']:13} {row['op']:30} {side:10}"
        if "failed" in found:
            print(f"{where} {found['failed']}")
            continue
        share = f"{found['gb_per_s'] / peak / 10:5.0f} %" if peak else "      -"
        told = "" if found["within"] else "  NOT WITHIN THE CONTRACT"
        print(f"{where} {found['microseconds']:10.1f} {found['gb_per_s']:8.0f} {share} "
              f"{found['largest_error']:9.1e} {found['otherwise_rounded']:8.2%}{told}")  # fmt: skip


def main(given: list[str] | None = None) -> int:
    """Measure, print, write."""
    asked = parse(given)
    device = torch.device(asked.device)
    if device.type == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    # Its interpreter cuts off where hardware rounds, so that bfloat16 says nothing on a CPU.
    dtype = DTYPE[asked.dtype or ("float32" if device.type == "cpu" else "bfloat16")]
    peak = asked.peak or next((tbs for name, tbs in PEAK_TBS.items() if name in gpu), None)
    shapes = QUICK if asked.quick else {name: SHAPES[name] for name in asked.shapes}
    clock = Clock(device, 2 if asked.quick else asked.repeats)
    compiled = device.type == "cuda" and not asked.no_compile
    print(f"{gpu}, torch {torch.__version__}, {dtype}, peak {peak or 'unknown'} TB/s, median of "
          f"{clock.repeats}")  # fmt: skip
    print(f"{'shape':13} {'op':30} {'side':10} {'us':>10} {'GB/s':>8} {'of peak':>7} "
          f"{'error':>9} {'rounded':>8}")  # fmt: skip
    rows, swept = [], []
    with torch.inference_mode():
        for name, shape in shapes.items():
            for op in (op for op in asked.ops if happens(op, name)):
                rows.append(measure(op, name, shape, dtype, clock, compiled=compiled))
                show(rows[-1], peak)
                if asked.sweep:
                    swept += (found := sweep(op, name, shape, dtype, clock))
                    for place in found:
                        print(f"  rows {place['rows']:2} warps {place['warps']:2} "
                              f"{place['microseconds']:10.1f} us {place['gb_per_s']:8.0f} GB/s"
                              f"{'  in use' if place['in_use'] else ''}")  # fmt: skip
    if asked.output is not None:
        import triton

        short = gpu.lower().replace("nvidia", "").strip().replace(" ", "-")
        path = RESULTS / f"kernels-{short}.json" if asked.output == Path() else asked.output
        facts = {"gpu": gpu, "torch": torch.__version__, "triton": triton.__version__}
        facts |= {"dtype": str(dtype), "peak_tb_per_s": peak, "repeats": clock.repeats}
        sizes = {name: shape._asdict() for name, shape in shapes.items()}
        content = {**facts, "shapes": sizes, "rows": rows, "sweep": swept}
        path.write_text(json.dumps(content, indent=2) + "\n")
        print(f"written to {path}")
    return 0 if all(row["sides"]["triton"]["within"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
