"""A whole generation beside diffusers: the same random weights, the same card, one run.

    python bench/generate.py --model wan2.1-t2v-1.3b --width 832 --height 480 --frames 81 --steps 50
    python bench/generate.py --model tiny --device cpu --steps 4 --width 96 --height 64 --frames 9

Prints seconds per stage, peak memory and the relative difference of the final latents, and writes
them as JSON to bench/results/. diffusers runs eagerly, with its default attention (torch's own
choice) and, on CUDA, also with cuDNN attention first, as sgld chooses it.
"""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path
from typing import Any

import torch
from side_by_side import (
    PROMPT,
    RESULTS,
    Clock,
    Sgld,
    compare,
    fresh,
    report,
    show,
    twin,
    with_kernels,
    write,
)

SHIFT = 3.0


class Diffusers:
    """diffusers' pipeline on the very tensors that sgld holds."""

    def __init__(self, model: Sgld, params: dict[str, Any]) -> None:
        # Typed as Any: its classes are loaded lazily, which type checkers cannot follow.
        diffusers: Any = importlib.import_module("diffusers")
        modules, config = model.modules, model.config("transformer")
        # Buffers that no state dict holds (rotary tables) are made on the real device.
        real = diffusers.WanTransformer3DModel.from_config({**config, "num_layers": 1})
        self.pipe: Any = diffusers.WanPipeline(
            tokenizer=model.parts["tokenizer"],
            text_encoder=modules["text_encoder"].model,
            transformer=twin(
                diffusers.WanTransformer3DModel,
                config,
                modules["transformer"],
                rope=real.rope.to(model.device),
            ),
            vae=modules["vae"].model,
            scheduler=diffusers.UniPCMultistepScheduler.from_config(model.parts["scheduler"]),
        )
        self.pipe.set_progress_bar_config(disable=True)
        self.params, self.device = params, model.device

    @torch.no_grad()
    def run(self, steps: int, clock: Clock, noise: torch.Tensor) -> torch.Tensor:
        """One generation, cut into the same three parts."""
        pipe, params, scale = self.pipe, self.params, self.params["guidance_scale"]
        pipe.scheduler = fresh(pipe.scheduler, flow_shift=SHIFT)
        with clock.total():
            positive, negative = pipe.encode_prompt(
                PROMPT,
                params["negative_prompt"],
                do_classifier_free_guidance=scale > 1,
                max_sequence_length=512,
                device=self.device,
            )
            clock.mark("text")
            latents = pipe(
                prompt_embeds=positive,
                negative_prompt_embeds=negative,
                height=params["height"],
                width=params["width"],
                num_frames=params["num_frames"],
                num_inference_steps=steps,
                guidance_scale=scale,
                latents=noise,
                output_type="latent",
            ).frames
            clock.mark("denoise")
            vae = pipe.vae
            z = latents.to(vae.dtype)
            mean = torch.tensor(vae.config.latents_mean).view(1, -1, 1, 1, 1).to(z)
            std = torch.tensor(vae.config.latents_std).view(1, -1, 1, 1, 1).to(z)
            frames = vae.decode(z * std + mean, return_dict=False)[0]
            clock.mark("decode")
            pipe.video_processor.postprocess_video(frames, output_type="np")
        return latents


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
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
    return parser.parse_args()


def main() -> None:
    """Run both sides, print and write."""
    options = parse()
    tiny = options.model == "tiny"
    model = Sgld(
        model_path="tiny:wan-t2v" if tiny else f"config:{options.model}",
        load_format="auto" if tiny else "dummy",
        device=options.device,
        component_precisions={"vae": options.vae},
        attention={"all": "auto"},
    )
    params: dict[str, Any] = {
        "width": options.width,
        "height": options.height,
        "num_frames": options.frames,
        "num_inference_steps": options.steps,
        "guidance_scale": options.guidance,
        "negative_prompt": "blurry",
        "flow_shift": SHIFT,
    }
    reference = Diffusers(model, params)
    shape: list[int] = []

    def ours(steps: int, clock: Clock) -> Any:
        latents: Any = model.generate({**params, "num_inference_steps": steps}, clock).latents
        shape[:] = latents.shape
        return latents

    def theirs(steps: int, clock: Clock) -> Any:
        noise = torch.randn(shape, generator=torch.Generator("cpu").manual_seed(0))
        return reference.run(steps, clock, noise.to(model.device)).float()

    kernels = with_kernels(
        "diffusers", theirs, model.device, skip_default=options.skip_default_attention
    )
    measured = compare({"sgld": ours, **kernels}, options.steps, model.device)
    content = report(model, options.model, params, measured)
    kind = model.device.type
    write(options.output, f"generate-{options.model}-{options.height}p-{kind}", content)
    show(content)
    model.close()


if __name__ == "__main__":
    main()
