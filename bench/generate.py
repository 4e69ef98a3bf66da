"""A whole generation beside diffusers: the same random weights, the same card, one run.

    python bench/generate.py --model wan2.1-t2v-1.3b --width 832 --height 480 --frames 81 --steps 50
    python bench/generate.py --model tiny --device cpu --steps 4 --width 96 --height 64 --frames 9

Prints seconds per stage, peak memory and the relative difference of the final latents, and writes
them as JSON to bench/results/. diffusers runs eagerly, with its default attention (torch's own
choice) and, on CUDA, also with cuDNN attention first, as sgld chooses it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import platform
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import sgld
from sgld.testing.parity import relative_l2

RESULTS = Path(__file__).parent / "results"
PROMPT = "a red kite over the sea, slow camera, late light"


class Clock:
    """Seconds and peak memory of a block, the device waited for at both ends."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self.seconds: dict[str, float] = {}
        self.peak_gib: dict[str, float] = {}

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        if self._cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        begin = time.perf_counter()
        yield
        if self._cuda:
            torch.cuda.synchronize()
            self.peak_gib[name] = torch.cuda.max_memory_allocated() / 2**30
        self.seconds[name] = time.perf_counter() - begin


def run_sgld(model: sgld.Model, params: dict[str, Any], clock: Clock) -> Any:
    """One generation by sgld; its own stage times join the clock's total."""
    with clock("total"):
        result = model.generate(prompt=PROMPT, seed=0, want_latents=True, **params)
    clock.seconds.update({f"stage {k}": v for k, v in result.outputs[0].timings.items()})
    return result.outputs[0]


def build_diffusers(model: sgld.Model, executor_store: Any) -> Any:
    """diffusers' pipeline on the very tensors that sgld holds."""
    import diffusers

    modules, parts = executor_store._modules, model._executor._engine._pipeline.parts
    config = {name: dict(located.config) for name, located in model.plan.located.items()}
    with torch.device("meta"):
        transformer = diffusers.WanTransformer3DModel.from_config(config["transformer"])
    # Buffers that no state dict holds (rotary tables) are made on the real device.
    real = diffusers.WanTransformer3DModel.from_config({**config["transformer"], "num_layers": 1})
    transformer.rope = real.rope.to(next(modules["transformer"].parameters()).device)
    transformer.load_state_dict(modules["transformer"].state_dict(), assign=True)
    return diffusers.WanPipeline(
        tokenizer=parts["tokenizer"],
        text_encoder=modules["text_encoder"].model,
        transformer=transformer.eval(),
        vae=modules["vae"].model,
        scheduler=diffusers.UniPCMultistepScheduler.from_config(parts["scheduler"]),
    )


@torch.no_grad()
def run_diffusers(
    pipe: Any, params: dict[str, Any], clock: Clock, noise: torch.Tensor, device: torch.device
) -> torch.Tensor:
    """The same generation by diffusers, timed in the same three parts."""
    pipe.set_progress_bar_config(disable=True)
    scale = params["guidance_scale"]
    with clock("total"):
        with clock("stage text"):
            positive, negative = pipe.encode_prompt(
                PROMPT,
                params["negative_prompt"],
                do_classifier_free_guidance=scale > 1,
                max_sequence_length=512,
                device=device,
            )
        with clock("stage denoise"):
            latents = pipe(
                prompt_embeds=positive,
                negative_prompt_embeds=negative,
                height=params["height"],
                width=params["width"],
                num_frames=params["num_frames"],
                num_inference_steps=params["num_inference_steps"],
                guidance_scale=scale,
                latents=noise,
                output_type="latent",
            ).frames
        with clock("stage decode"):
            vae = pipe.vae
            z = latents.to(vae.dtype)
            mean = torch.tensor(vae.config.latents_mean).view(1, -1, 1, 1, 1).to(z)
            std = torch.tensor(vae.config.latents_std).view(1, -1, 1, 1, 1).to(z)
            frames = vae.decode(z * std + mean, return_dict=False)[0]
            pipe.video_processor.postprocess_video(frames, output_type="np")
    return latents


def main() -> None:
    """Parse, run both sides, print and write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="wan2.1-t2v-1.3b")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--width", type=int, default=832)
    parser.add_argument("--height", type=int, default=480)
    parser.add_argument("--frames", type=int, default=81)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--guidance", type=float, default=5.0)
    parser.add_argument("--vae", default="float32", help="precision of the VAE on both sides")
    parser.add_argument("--skip-default-attention", action="store_true")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()

    tiny = options.model == "tiny"
    path = "tiny:wan-t2v" if tiny else f"config:{options.model}"
    begin = time.perf_counter()
    model = sgld.load(
        path,
        load_format="auto" if tiny else "dummy",
        device=options.device,
        component_precisions={"vae": options.vae},
        attention={"all": "auto"},
    )
    engine = model._executor._engine
    device = engine._device
    print(f"loaded in {time.perf_counter() - begin:.1f} s on {device}", flush=True)
    params: dict[str, Any] = {
        "width": options.width,
        "height": options.height,
        "num_frames": options.frames,
        "num_inference_steps": options.steps,
        "guidance_scale": options.guidance,
        "negative_prompt": "blurry",
        "flow_shift": 3.0,
    }
    run_sgld(model, {**params, "num_inference_steps": 2}, Clock(device))  # warm
    ours_clock = Clock(device)
    ours = run_sgld(model, params, ours_clock)

    shape = ours.latents.shape
    noise = torch.randn(shape, generator=torch.Generator("cpu").manual_seed(0)).to(device)
    pipe = build_diffusers(model, engine._store)
    config = pipe.scheduler.config
    import diffusers
    from torch.nn.attention import SDPBackend, sdpa_kernel

    theirs: dict[str, Any] = {}
    kinds = ["cudnn first"] if device.type == "cuda" else []
    if not options.skip_default_attention:
        kinds.insert(0, "default")
    for kind in kinds:
        order = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]
        chosen = (
            sdpa_kernel(order, set_priority=True)
            if kind == "cudnn first"
            else contextlib.nullcontext()
        )
        with chosen:
            pipe.scheduler = diffusers.UniPCMultistepScheduler.from_config(config, flow_shift=3.0)
            warm = {**params, "num_inference_steps": 2}
            run_diffusers(pipe, warm, Clock(device), noise.clone(), device)
            clock = Clock(device)
            pipe.scheduler = diffusers.UniPCMultistepScheduler.from_config(config, flow_shift=3.0)
            latents = run_diffusers(pipe, params, clock, noise.clone(), device)
        theirs[kind] = {
            "seconds": clock.seconds,
            "peak_gib": clock.peak_gib,
            "relative_l2": relative_l2(ours.latents, latents.float()),
            "ratio_total": clock.seconds["total"] / ours_clock.seconds["total"],
        }
    report = {
        "model": options.model,
        "request": params,
        "precisions": {n: str(p) for n, p in model.plan.precisions.items()},
        "device": torch.cuda.get_device_name() if device.type == "cuda" else platform.machine(),
        "torch": torch.__version__,
        "warm": True,
        "sgld": {"seconds": ours_clock.seconds, "peak_gib": ours_clock.peak_gib},
        "diffusers": theirs,
    }
    options.output.mkdir(parents=True, exist_ok=True)
    name = f"generate-{options.model}-{options.height}p-{device.type}.json"
    (options.output / name).write_text(json.dumps(report, indent=2) + "\n")
    show("sgld", report["sgld"])
    for kind, side in theirs.items():
        show(f"diffusers, {kind} attention", side)
    model.close()


def show(name: str, side: dict[str, Any]) -> None:
    """One side of the comparison as lines."""
    print(name)
    for stage, seconds in side["seconds"].items():
        print(f"  {stage:<20} {seconds:9.3f} s")
    for stage, peak in side["peak_gib"].items():
        print(f"  peak in {stage:<12} {peak:9.2f} GiB")
    if "ratio_total" in side:
        print(f"  takes {side['ratio_total']:.3f} times as long; latents {side['relative_l2']:.2e}")


if __name__ == "__main__":
    main()
