"""The reference for FLUX.1 parity tests: diffusers' pipelines run on a checkpoint folder.

`run(folder, …)` is `FluxPipeline`, or `FluxImg2ImgPipeline` with a picture. All noise comes from a
float32 CPU generator with the given seed, so that another implementation can start from
exactly the same numbers. Pipelines are loaded once per folder and kept; they are only read.
"""

from __future__ import annotations

import copy
import importlib
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file

from sgld.testing.encoders import quiet

# Typed as Any: their classes are loaded lazily, which type checkers cannot follow.
diffusers: Any = importlib.import_module("diffusers")
transformers: Any = importlib.import_module("transformers")


class Reference(NamedTuple):
    """Final packed latents `[1, N, C]` before decoding, and a picture `[1, H, W, 3]` in 0..1."""

    latents: torch.Tensor
    frames: np.ndarray[Any, np.dtype[np.float32]]


def run(
    folder: Path,
    *,
    prompt: str,
    prompt_2: str | None = None,
    negative_prompt: str | None = None,
    true_cfg_scale: float = 1.0,
    image: Image.Image | None = None,
    strength: float = 0.6,
    height: int = 48,
    width: int = 64,
    num_inference_steps: int = 4,
    guidance_scale: float = 3.5,
    max_sequence_length: int = 512,
    seed: int = 0,
    pipe: Any = None,
) -> Reference:
    """Run the diffusers pipeline of `folder` in float32 on the CPU, or `pipe`."""
    pipe = pipe or pipeline(folder, image is not None)
    generator = torch.Generator("cpu").manual_seed(seed)
    arguments: dict[str, Any] = {}
    if image is not None:
        arguments = {"image": image, "strength": strength, "generator": generator}
    else:
        arguments = {"latents": noise(pipe, height, width, generator)}
    final = pipe(
        prompt=prompt,
        prompt_2=prompt_2,
        negative_prompt=negative_prompt,
        true_cfg_scale=true_cfg_scale,
        height=height,
        width=width,
        num_inference_steps=num_inference_steps,
        guidance_scale=guidance_scale,
        max_sequence_length=max_sequence_length,
        output_type="latent",
        **arguments,
    ).images
    return Reference(final, decode(pipe, final, height, width))


def noise(pipe: Any, height: int, width: int, generator: torch.Generator) -> torch.Tensor:
    """Starting noise, packed, in the precision of the pipeline's text states."""
    channels = pipe.transformer.config.in_channels // 4
    drawn = torch.randn((1, channels, height // 8, width // 8), generator=generator)
    drawn = drawn.to(pipe.text_encoder_2.dtype)
    return pipe._pack_latents(drawn, 1, channels, height // 8, width // 8)


@torch.no_grad()
def decode(
    pipe: Any, latents: torch.Tensor, height: int, width: int
) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The picture `[1, H, W, 3]` in 0..1 of packed latents."""
    config = pipe.vae.config
    whole = pipe._unpack_latents(latents, height, width, pipe.vae_scale_factor)
    whole = whole / config.scaling_factor + config.shift_factor
    pixels = pipe.vae.decode(whole, return_dict=False)[0]
    return pipe.image_processor.postprocess(pixels, output_type="np")


@cache
def pipeline(folder: Path, image_to_image: bool) -> Any:
    """Build diffusers' text- or image-to-image pipeline of a folder, once per session."""
    name = "FluxImg2ImgPipeline" if image_to_image else "FluxPipeline"
    loaded = getattr(diffusers, name)(**components(folder))
    loaded.set_progress_bar_config(disable=True)
    return loaded


def halved(folder: Path) -> Any:
    """The text-to-image pipeline with every module in bfloat16."""
    parts = {
        name: copy.deepcopy(part).to(torch.bfloat16) if isinstance(part, torch.nn.Module) else part
        for name, part in components(folder).items()
    }
    loaded = diffusers.FluxPipeline(**parts)
    loaded.set_progress_bar_config(disable=True)
    return loaded


@cache
def components(folder: Path) -> dict[str, Any]:
    """The parts of a checkpoint folder in float32, by their names in `model_index.json`."""
    with quiet():
        return {
            "tokenizer": transformers.AutoTokenizer.from_pretrained(folder / "tokenizer"),
            "tokenizer_2": transformers.AutoTokenizer.from_pretrained(folder / "tokenizer_2"),
            "text_encoder": transformers.CLIPTextModel.from_pretrained(folder / "text_encoder"),
            "text_encoder_2": transformers.T5EncoderModel.from_pretrained(
                folder / "text_encoder_2"
            ),
            "scheduler": diffusers.FlowMatchEulerDiscreteScheduler.from_pretrained(
                folder / "scheduler"
            ),
            "vae": load_diffusers(diffusers.AutoencoderKL, folder / "vae"),
            "transformer": load_diffusers(diffusers.FluxTransformer2DModel, folder / "transformer"),
        }


def load_diffusers(model_class: Any, folder: Path) -> Any:
    """Build a diffusers model from its config and load all of its weights, strictly.

    `from_pretrained` insists on the package accelerate, which nothing else here needs.
    """
    model = model_class.from_config(model_class.load_config(folder))
    weights: dict[str, torch.Tensor] = {}
    for shard in sorted(folder.glob("*.safetensors")):
        weights.update(load_file(shard))
    model.load_state_dict(weights, strict=True)
    return model.eval().requires_grad_(False)


def picture(width: int = 64, height: int = 48) -> Image.Image:
    """A smooth RGB image with a different slope in each channel and a bright square."""
    rows, columns = np.mgrid[0:height, 0:width]
    red = 255 * columns / max(width - 1, 1)
    green = 255 * rows / max(height - 1, 1)
    blue = 255 * (0.5 + 0.5 * np.sin(rows / 3 + columns / 5))
    pixels = np.stack([red, green, blue], axis=-1).astype(np.uint8)
    pixels[height // 4 : height // 2, width // 4 : width // 2] = (250, 220, 30)
    return Image.fromarray(pixels)
