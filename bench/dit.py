"""One forward pass of the Wan denoiser: ours beside diffusers eager, same weights, same run.

    uv run python bench/dit.py                       CUDA: Wan2.1-1.3B, 480×832, 81 frames, bf16
    uv run python bench/dit.py --model 14b --size 720x1280
    uv run python bench/dit.py --device cpu          a tiny shape, to see that it runs

Weights are random and drawn on the device. Times are CUDA events around one forward; the sides
take turns, and median, lowest and highest are shown. "activations" is the peak above what was held
before. The distance to a float32 run is printed for both sides: ours must not be further away.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sgld.ops import Ops
from sgld.testing.host_sync import no_host_sync
from sgld_wan.models.dit import WanConfig, WanTransformer, keep_fp32, tokens

MODELS: dict[str, dict[str, Any]] = {
    "1.3b": {"num_attention_heads": 12, "ffn_dim": 8960, "num_layers": 30},
    "14b": {"num_attention_heads": 40, "ffn_dim": 13824, "num_layers": 40},
    "5b": {
        "num_attention_heads": 24,
        "ffn_dim": 14336,
        "num_layers": 30,
        "in_channels": 48,
        "out_channels": 48,
    },
    "tiny": {
        "num_attention_heads": 2,
        "attention_head_dim": 32,
        "ffn_dim": 128,
        "num_layers": 2,
        "text_dim": 32,
    },
}
Forward = Callable[[], Tensor]


class Row(NamedTuple):
    """One side's result: milliseconds, and bytes at the peak of one forward."""

    name: str
    times: list[float]
    peak: int
    activations: int

    @property
    def median(self) -> float:
        """Median milliseconds."""
        return statistics.median(self.times)


def random_weights(config: WanConfig, device: torch.device, dtype: torch.dtype) -> WanTransformer:
    """Our network with weights that keep activations at their usual size."""
    with torch.device("meta"):
        model = WanTransformer(config, Ops.torch())
    for name, parameter in model.named_parameters():
        kept = torch.float32 if keep_fp32(name) else dtype
        fan_in = parameter[0].numel() if parameter.ndim > 1 else 0
        value = torch.empty(parameter.shape, dtype=kept, device=device)
        value.normal_(std=fan_in**-0.5 if fan_in else 0.05)
        if "norm" in name and name.endswith("weight"):
            value += 1
        owner, _, last = name.rpartition(".")
        setattr(model.get_submodule(owner), last, nn.Parameter(value, requires_grad=False))
    return model.eval()


def diffusers_twin(model: WanTransformer, device: torch.device) -> nn.Module:
    """diffusers' class on the same storage, so that nothing is held twice."""
    from diffusers.models.transformers.transformer_wan import (
        WanRotaryPosEmbed,
        WanTransformer3DModel,
    )

    config = {name: getattr(model.config, name) for name in model.config.__dataclass_fields__}
    with torch.device("meta"):
        twin = WanTransformer3DModel(**config)
    twin.load_state_dict(model.state_dict(), strict=True, assign=True)
    # Its tables are buffers that no checkpoint holds.
    twin.rope = WanRotaryPosEmbed(
        config["attention_head_dim"], config["patch_size"], config["rope_max_seq_len"]
    ).to(device)
    return twin.eval().requires_grad_(False)


def kernel(name: str) -> Any:
    """Context in which torch's attention uses only the named kernel."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    chosen = {"flash": "FLASH_ATTENTION", "cudnn": "CUDNN_ATTENTION"}[name]
    return sdpa_kernel([getattr(SDPBackend, chosen)])


def measure(run: Forward, device: torch.device) -> tuple[float, int, int]:
    """Milliseconds, peak bytes, and peak bytes above those held before."""
    if device.type != "cuda":
        start = time.perf_counter()
        run()
        return 1000 * (time.perf_counter() - start), 0, 0
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    held = torch.cuda.memory_allocated(device)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    out = run()
    end.record()
    end.synchronize()
    del out
    peak = torch.cuda.max_memory_allocated(device)
    return begin.elapsed_time(end), peak, peak - held


def compare(
    sides: dict[str, Forward], device: torch.device, warmup: int, repeats: int
) -> list[Row]:
    """Time every side in turns."""
    for run in sides.values():
        for _ in range(warmup):
            run()
    rows = {name: Row(name, [], 0, 0) for name in sides}
    for _ in range(repeats):
        for name, run in sides.items():
            elapsed, peak, extra = measure(run, device)
            old = rows[name]
            rows[name] = Row(
                name, [*old.times, elapsed], max(old.peak, peak), max(old.activations, extra)
            )
    return list(rows.values())


def relative(found: Tensor, wanted: Tensor) -> float:
    """Relative L2 distance, in float64."""
    found, wanted = found.double(), wanted.double()
    return ((found - wanted).norm() / wanted.norm()).item()


def float32_run(twin: nn.Module, arguments: tuple[Tensor, ...]) -> Tensor:
    """The reference's result in float32; turns `twin` to float32, so call it last."""
    twin = twin.float()
    latent, timestep, text = arguments
    with torch.no_grad():
        return twin(latent.float(), timestep, text.float(), return_dict=False)[0]


def no_sync(run: Forward) -> str:
    """Whether a warm forward waits for the device."""
    try:
        with no_host_sync():
            run()
    except RuntimeError as problem:
        return f"yes: {problem}"
    return "none"


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--model", choices=MODELS, help="default: 1.3b on CUDA, tiny on the CPU")
    parser.add_argument("--size", default="480x832", help="height x width in pixels")
    parser.add_argument("--frames", type=int, default=81)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--per-frame-time", action="store_true", help="as TI2V-5B with an image")
    parser.add_argument("--no-float32", action="store_true", help="skip the distance to float32")
    parser.add_argument("--json", type=Path, help="also write the numbers there")
    return parser.parse_args()


def main() -> None:
    """Run the comparison and print it."""
    asked = parse()
    device = torch.device(asked.device)
    cuda = device.type == "cuda"
    name = asked.model or ("1.3b" if cuda else "tiny")
    config = WanConfig(**MODELS[name])
    height, width = (int(side) for side in asked.size.split("x")) if cuda else (48, 80)
    frames = asked.frames if cuda else 9
    stride = 16 if name == "5b" else 8
    shape = ((frames - 1) // 4 + 1, height // stride, width // stride)
    torch.manual_seed(0)
    model = random_weights(config, device, torch.bfloat16)
    twin = diffusers_twin(model, device)
    latent = torch.randn(asked.batch, config.in_channels, *shape, device=device).bfloat16()
    text = torch.randn(asked.batch, 512, config.text_dim, device=device).bfloat16()
    per_row = torch.full((asked.batch,), 700.0, device=device)
    ours_time, their_time = per_row, per_row
    if asked.per_frame_time:
        ours_time = per_row[:, None].repeat(1, shape[0])
        ours_time[:, 0] = 0
        their_time = ours_time.repeat_interleave(tokens(config, *shape) // shape[0], dim=1)

    def ours() -> Tensor:
        return model(latent, ours_time, text)

    def diffusers_with(kernel_name: str) -> Forward:
        @torch.no_grad()
        def run() -> Tensor:
            with kernel(kernel_name) if kernel_name else nullcontext():
                return twin(latent, their_time, text, return_dict=False)[0]

        return run

    kernels = ("flash", "cudnn") if cuda else ("",)
    sides = {f"diffusers eager {kind}".strip(): diffusers_with(kind) for kind in kernels}
    sides["sgld"] = ours
    rows = compare(sides, device, asked.warmup, asked.repeats)
    outputs = {side: run() for side, run in sides.items()}
    report(asked, name, config, shape, rows, outputs, no_sync(ours) if cuda else "not measured")
    if not asked.no_float32:
        exact = float32_run(twin, (latent, their_time, text))
        for side, out in outputs.items():
            print(f"bf16 to float32, {side:24} {relative(out, exact):.3e}")


def report(
    asked: argparse.Namespace,
    name: str,
    config: WanConfig,
    shape: tuple[int, int, int],
    rows: list[Row],
    outputs: dict[str, Tensor],
    syncs: str,
) -> None:
    """Print the table and write the file."""
    device = torch.device(asked.device)
    machine = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    import diffusers

    print(f"Wan {name}, latent {shape}, {tokens(config, *shape)} tokens, batch {asked.batch}, bf16")
    print(f"{machine}, torch {torch.__version__}, diffusers {diffusers.__version__}, warm")
    print(f"{'side':24} {'median ms':>10} {'lowest':>9} {'highest':>9} {'peak GiB':>9} "
          f"{'activations':>12} {'sgld/side':>10} {'rel L2 to sgld':>15}")  # fmt: skip
    mine = next(row for row in rows if row.name == "sgld")
    lines = []
    for row in rows:
        distance = relative(outputs[row.name], outputs["sgld"])
        print(f"{row.name:24} {row.median:10.2f} {min(row.times):9.2f} {max(row.times):9.2f} "
              f"{row.peak / 2**30:9.2f} {row.activations / 2**30:12.2f} "
              f"{mine.median / row.median:10.3f} {distance:15.2e}")  # fmt: skip
        lines.append({**row._asdict(), "median": row.median, "relative_l2_to_sgld": distance})
    print(f"host syncs in a warm forward of ours: {syncs}")
    if asked.json:
        facts = {"model": name, "latent": shape, "gpu": machine, "torch": torch.__version__}
        asked.json.write_text(json.dumps({**facts, "syncs": syncs, "rows": lines}, indent=2))


if __name__ == "__main__":
    main()
