"""The reference for FLUX.2 parity tests: diffusers' pipelines run on a checkpoint folder.

- `run(folder, …)`: text to picture, and editing when `images` are given; covers dev, klein, klein
  base and klein KV by the class in `model_index.json`.
- `halve(pipe)`: a pipeline of the same parts in bfloat16.
- `picture(width, height, seed)`: a deterministic picture, another one for each seed.
- `noise(folder, height, width, seed)`: what both sides start from, float32 from a CPU generator.

Pipelines are loaded once per folder and kept; they are only read.
"""

from __future__ import annotations

import copy
import importlib
import json
from collections.abc import Sequence
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

GRID = 16


class Reference(NamedTuple):
    """The sampler's final latents `[1, C, h, w]`, and the picture `[H, W, 3]` in 0..1."""

    latents: torch.Tensor
    picture: np.ndarray[Any, np.dtype[np.float32]]


@torch.no_grad()
def run(
    folder: Path,
    *,
    prompt: str,
    images: Sequence[Image.Image] = (),
    negative_prompt: str = "",
    height: int = 64,
    width: int = 64,
    explicit_size: bool = True,
    steps: int = 4,
    guidance: float | None = None,
    seed: int = 0,
    length: int = 512,
    pipe: Any = None,
) -> Reference:
    """Run the diffusers pipeline of `folder` in float32 on the CPU, or `pipe`.

    `height` and `width` are those of the result; without `explicit_size` diffusers must find them
    itself, from the first picture.
    """
    pipe = pipe or pipeline(folder)
    name = type(pipe).__name__
    arguments: dict[str, Any] = {}
    if guidance is not None:
        arguments["guidance_scale"] = guidance
    elif name == "Flux2KleinPipeline":
        arguments["guidance_scale"] = 1.0
    if name == "Flux2KleinPipeline" and not pipe.config.is_distilled and (guidance or 0) > 1:
        arguments["negative_prompt_embeds"] = pipe.encode_prompt(
            negative_prompt, max_sequence_length=length
        )[0]
    if explicit_size:
        arguments |= {"height": height, "width": width}
    pipe.scheduler = type(pipe.scheduler).from_config(pipe.scheduler.config)
    start = noise(folder, height, width, seed)
    final = pipe(
        image=list(images) or None,
        prompt=prompt,
        num_inference_steps=steps,
        latents=start.clone(),
        output_type="latent",
        max_sequence_length=length,
        **arguments,
    ).images
    latents = normalised(pipe, final, start.shape)
    return Reference(latents, decode(pipe, latents))


def normalised(pipe: Any, final: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """The sampler's latents from what a pipeline returns as `latent`.

    That is tokens for dev, and latents in the VAE's own scale for klein and KV.
    """
    final = final.float()
    if final.ndim == 3:
        return final.transpose(1, 2).reshape(shape)
    mean, deviation = statistics(pipe)
    if final.shape == shape:
        return (final - mean) / deviation
    return (pipe._patchify_latents(final) - mean) / deviation


def statistics(pipe: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and deviation of the normalised latents."""
    norm, eps = pipe.vae.bn, pipe.vae.config.batch_norm_eps
    mean = norm.running_mean.float().view(1, -1, 1, 1)
    return mean, torch.sqrt(norm.running_var.float().view(1, -1, 1, 1) + eps)


def decode(pipe: Any, latents: torch.Tensor) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The picture of normalised latents."""
    mean, deviation = statistics(pipe)
    scaled = pipe._unpatchify_latents(latents * deviation + mean).to(pipe.vae.dtype)
    picture = pipe.vae.decode(scaled, return_dict=False)[0].float()
    return pipe.image_processor.postprocess(picture, output_type="np")[0]


def noise(folder: Path, height: int, width: int, seed: int) -> torch.Tensor:
    """Starting latents `[1, C, h, w]`, float32, from a CPU generator seeded with `seed`."""
    channels = pipeline(folder).transformer.config.in_channels
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randn(1, channels, height // GRID, width // GRID, generator=generator)


@cache
def pipeline(folder: Path) -> Any:
    """Build diffusers' pipeline of a folder, once per session."""
    index = json.loads((folder / "model_index.json").read_text())
    parts = dict(components(folder))
    if "is_distilled" in index:
        parts["is_distilled"] = index["is_distilled"]
    loaded = getattr(diffusers, index["_class_name"])(**parts)
    loaded.set_progress_bar_config(disable=True)
    return loaded


@cache
def components(folder: Path) -> dict[str, Any]:
    """The parts of a checkpoint folder in float32, by their names in `model_index.json`."""
    index = json.loads((folder / "model_index.json").read_text())
    text_class = getattr(transformers, index["text_encoder"][1])
    with quiet():
        return {
            "tokenizer": transformers.AutoTokenizer.from_pretrained(folder / "tokenizer"),
            "text_encoder": text_class.from_pretrained(folder / "text_encoder").eval(),
            "scheduler": diffusers.FlowMatchEulerDiscreteScheduler.from_pretrained(
                folder / "scheduler"
            ),
            "vae": load_diffusers(diffusers.AutoencoderKLFlux2, folder / "vae"),
            "transformer": load_diffusers(
                diffusers.Flux2Transformer2DModel, folder / "transformer"
            ),
        }


def load_diffusers(model_class: Any, folder: Path) -> Any:
    """Build a diffusers model from its config and load all of its weights, strictly.

    `from_pretrained` of the transformer insists on the package accelerate, which nothing else here
    needs.
    """
    model = model_class.from_config(model_class.load_config(folder))
    weights: dict[str, torch.Tensor] = {}
    for shard in sorted(folder.glob("*.safetensors")):
        weights.update(load_file(shard))
    model.load_state_dict(weights, strict=True)
    return model.eval().requires_grad_(False)


def halve(pipe: Any) -> Any:
    """A pipeline of the same parts in bfloat16; the VAE and the given pipeline are left alone."""
    parts = dict(pipe.components)
    for name in ("text_encoder", "transformer"):
        parts[name] = copy.deepcopy(parts[name]).to(torch.bfloat16)
    if "is_distilled" in pipe.config:
        parts["is_distilled"] = pipe.config.is_distilled
    half = type(pipe)(**parts)
    half.set_progress_bar_config(disable=True)
    return half


def picture(width: int = 64, height: int = 64, seed: int = 0) -> Image.Image:
    """A smooth RGB picture with a different slope in each channel and a bright square."""
    rows, columns = np.mgrid[0:height, 0:width].astype(np.float64)
    waves = [
        np.sin(rows / (5 + channel + seed) + columns / (9 - channel) + seed) for channel in range(3)
    ]
    values = np.stack(waves, axis=-1) * 100 + 128
    values[height // 4 : height // 2, width // 4 : width // 2] = 240 - 10 * seed
    return Image.fromarray(values.astype(np.uint8))
