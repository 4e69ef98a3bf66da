"""The reference for parity tests: diffusers' Wan pipelines run on a checkpoint folder.

Every function takes its noise from `noise(...)`, float32 from a CPU generator with the given seed,
so that another implementation can start from exactly the same latents.

- `run(folder, …)`: text to video, and image to video when `image` is given; covers Wan 2.1, the
  two-expert 2.2 models and TI2V-5B in both modes.
- `run_dmd(folder, …)`: FastWan's few-step sampler, re-derived here because diffusers has none;
  with `image` also TI2V-5B's pinned first frame and the two image-to-video experts.
- `halve(pipe)`: a pipeline in bfloat16 with diffusers' float32 islands.
- `picture(width, height)`: a deterministic image for image-to-video tests.

Pipelines are loaded once per folder and kept; they are only read.
"""

from __future__ import annotations

import copy
import importlib
import json
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

DMD_STEPS = (1000, 757, 522)


class Reference(NamedTuple):
    """Final latents `[1, C, F, h, w]` before decoding, and frames `[F, H, W, 3]` in 0..1."""

    latents: torch.Tensor
    frames: np.ndarray[Any, np.dtype[np.float32]]


def run(
    folder: Path,
    *,
    prompt: str,
    negative_prompt: str = "",
    image: Image.Image | None = None,
    last_image: Image.Image | None = None,
    height: int = 32,
    width: int = 48,
    num_frames: int = 9,
    steps: int = 4,
    guidance: float = 5.0,
    guidance_2: float | None = None,
    flow_shift: float | None = None,
    seed: int = 0,
    latents: torch.Tensor | None = None,
    pipe: Any = None,
) -> Reference:
    """Run the diffusers pipeline of `folder` in float32 on the CPU, or `pipe`.

    `latents` replaces the noise of `seed`. `flow_shift` replaces the shift of the checkpoint's
    scheduler. Guidance 1 or less means a single forward pass per step.
    """
    pipe = pipe or pipeline(folder, image is not None)
    start = noise(folder, height, width, num_frames, seed) if latents is None else latents
    arguments: dict[str, Any] = {"image": image} if image is not None else {}
    if last_image is not None:
        arguments["last_image"] = last_image
    with fresh_scheduler(pipe, flow_shift):
        final = pipe(
            prompt=prompt,
            negative_prompt=negative_prompt,
            height=height,
            width=width,
            num_frames=num_frames,
            num_inference_steps=steps,
            guidance_scale=guidance,
            guidance_scale_2=guidance_2,
            latents=start.clone(),
            output_type="latent",
            max_sequence_length=512,
            **arguments,
        ).frames
    return Reference(final, decode(pipe, final))


def run_dmd(
    folder: Path,
    *,
    prompt: str,
    image: Image.Image | None = None,
    height: int = 32,
    width: int = 48,
    num_frames: int = 9,
    steps: tuple[int, ...] = DMD_STEPS,
    shift: float = 8.0,
    seed: int = 0,
) -> Reference:
    """Few-step distribution-matching sampling on diffusers' transformers, without guidance.

    Draws from one CPU generator, in this order, all float32 of the latents' shape: the starting
    noise, then one fresh noise after every step but the last. For a step value t the level σ is
    the nearest entry (by 1000·σ) of the shifted 1000-entry table, and the transformer gets t
    itself as its timestep. x0 = x - σ·v is computed in float64 and rounded to float32; then
    x = (1 - σ')·x0 + σ'·ε with σ' of the next step value. The last x0 is the result.

    With an image the condition is diffusers' own (`prepare_latents` of its image pipeline):
    channels beside the latents, or, with per-token times, a first frame that replaces the latents'
    and stands at time zero. Two experts are split at `boundary_ratio`.
    """
    pipe = pipeline(folder, image is not None)
    generator = torch.Generator("cpu").manual_seed(seed)
    shape = latent_shape(folder, height, width, num_frames)
    sigmas = [nearest_sigma(step, shift) for step in steps]
    with torch.no_grad():
        embeds, _ = pipe.encode_prompt(
            prompt, do_classifier_free_guidance=False, max_sequence_length=512
        )
        condition, mask = _dmd_condition(pipe, image, shape, height, width, num_frames)
        sample = torch.randn(shape, generator=generator, dtype=torch.float32)
        for index, step in enumerate(steps):
            shown = sample if mask is None else (1 - mask) * condition + mask * sample
            if condition is not None and mask is None:
                shown = torch.cat([sample, condition], 1)
            velocity = _expert(pipe, step)(
                hidden_states=shown,
                timestep=_dmd_timestep(pipe, step, sample, mask),
                encoder_hidden_states=embeds,
                return_dict=False,
            )[0]
            clean = (sample.double() - sigmas[index] * velocity.double()).float()
            if index == len(steps) - 1:
                sample = clean
                continue
            fresh = torch.randn(shape, generator=generator, dtype=torch.float32)
            sample = (1 - sigmas[index + 1]) * clean + sigmas[index + 1] * fresh
        if mask is not None:
            sample = (1 - mask) * condition + mask * sample
    return Reference(sample, decode(pipe, sample))


def _expert(pipe: Any, step: int) -> Any:
    boundary = pipe.config.boundary_ratio
    low = boundary is not None and step < boundary * 1000
    return pipe.transformer_2 if low else pipe.transformer


def _dmd_condition(
    pipe: Any,
    image: Image.Image | None,
    shape: tuple[int, ...],
    height: int,
    width: int,
    num_frames: int,
) -> tuple[Any, Any]:
    """The condition of diffusers' image pipeline, and its mask where it replaces latents."""
    if image is None:
        return None, None
    pixels = pipe.video_processor.preprocess(image, height=height, width=width).float()
    _, *found = pipe.prepare_latents(
        pixels, 1, shape[1], height, width, num_frames, torch.float32, torch.device("cpu"),
        latents=torch.zeros(shape),
    )  # fmt: skip
    return found[0], found[1] if len(found) > 1 else None


def halve(pipe: Any) -> Any:
    """A pipeline of the same parts in bfloat16; what diffusers keeps in float32 stays so, and so
    does the VAE. The given pipeline is left alone."""
    parts = dict(pipe.components)
    for name, part in parts.items():
        if isinstance(part, torch.nn.Module) and name not in ("vae", "image_encoder"):
            kept = getattr(part, "_keep_in_fp32_modules", None) or ()
            parts[name] = copy.deepcopy(part)
            for key, tensor in parts[name].named_parameters():
                if not set(kept) & set(key.split(".")):
                    tensor.data = tensor.data.to(torch.bfloat16)
    scalars = {name: pipe.config[name] for name in ("boundary_ratio", "expand_timesteps")}
    half = type(pipe)(**parts, **scalars)
    half.set_progress_bar_config(disable=True)
    return half


def nearest_sigma(step: float, shift: float) -> float:
    """σ of the entry nearest to `step` in the table 1000·s·u/(1+(s-1)·u), u = 1/1000..1000/1000."""
    levels = np.arange(1000, 0, -1, dtype=np.float64) / 1000
    sigmas = shift * levels / (1 + (shift - 1) * levels)
    return float(sigmas[np.abs(sigmas * 1000 - step).argmin()])


def noise(folder: Path, height: int, width: int, num_frames: int, seed: int) -> torch.Tensor:
    """Starting latents `[1, C, F, h, w]`, float32, from a CPU generator seeded with `seed`."""
    generator = torch.Generator("cpu").manual_seed(seed)
    shape = latent_shape(folder, height, width, num_frames)
    return torch.randn(shape, generator=generator, dtype=torch.float32)


def latent_shape(folder: Path, height: int, width: int, num_frames: int) -> tuple[int, ...]:
    """`(1, C, F, h, w)` of the checkpoint for a pixel size and frame count."""
    config = pipeline(folder, False).vae.config
    stride = config.scale_factor_spatial
    return (1, config.z_dim, (num_frames - 1) // 4 + 1, height // stride, width // stride)


@cache
def pipeline(folder: Path, image_to_video: bool) -> Any:
    """Build diffusers' text-to-video or image-to-video pipeline of a folder, once per session.

    The class name inside the folder is not obeyed: parts are the same for every Wan class, and
    FastWan's class is unknown to diffusers. Text-to-video needs nothing of the image encoder.
    """
    index = json.loads((folder / "model_index.json").read_text())
    parts = dict(components(folder))
    parts["boundary_ratio"] = index.get("boundary_ratio")
    parts["expand_timesteps"] = bool(index.get("expand_timesteps"))
    if image_to_video:
        loaded = diffusers.WanImageToVideoPipeline(**parts)
    else:
        parts = {name: part for name, part in parts.items() if not name.startswith("image_")}
        loaded = diffusers.WanPipeline(**parts)
    loaded.set_progress_bar_config(disable=True)
    return loaded


@cache
def components(folder: Path) -> dict[str, Any]:
    """The parts of a checkpoint folder in float32, by their names in `model_index.json`."""
    with quiet():
        parts: dict[str, Any] = {
            "tokenizer": transformers.AutoTokenizer.from_pretrained(folder / "tokenizer"),
            "text_encoder": transformers.UMT5EncoderModel.from_pretrained(folder / "text_encoder"),
            "scheduler": diffusers.UniPCMultistepScheduler.from_pretrained(folder / "scheduler"),
            "vae": load_diffusers(diffusers.AutoencoderKLWan, folder / "vae"),
        }
        for name in ("transformer", "transformer_2"):
            if (folder / name).exists():
                parts[name] = load_diffusers(diffusers.WanTransformer3DModel, folder / name)
        if (folder / "image_encoder").exists():
            parts["image_encoder"] = transformers.CLIPVisionModel.from_pretrained(
                folder / "image_encoder"
            )
            parts["image_processor"] = transformers.CLIPImageProcessorPil.from_pretrained(
                folder / "image_processor"
            )
    return parts


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


class fresh_scheduler:
    """While open, a pipeline has a new UniPC scheduler, optionally with another shift."""

    def __init__(self, pipe: Any, flow_shift: float | None) -> None:
        self.pipe, self.flow_shift = pipe, flow_shift

    def __enter__(self) -> None:
        self.old = self.pipe.scheduler
        changes = {} if self.flow_shift is None else {"flow_shift": self.flow_shift}
        self.pipe.scheduler = type(self.old).from_config(self.old.config, **changes)

    def __exit__(self, *error: object) -> None:
        self.pipe.scheduler = self.old


@torch.no_grad()
def decode(pipe: Any, latents: torch.Tensor) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Frames `[F, H, W, 3]` in 0..1 of normalised latents `[1, C, F, h, w]`."""
    config = pipe.vae.config
    mean = torch.tensor(config.latents_mean).view(1, -1, 1, 1, 1)
    std = torch.tensor(config.latents_std).view(1, -1, 1, 1, 1)
    video = pipe.vae.decode(latents * std + mean, return_dict=False)[0]
    return pipe.video_processor.postprocess_video(video, output_type="np")[0]


def picture(width: int = 48, height: int = 32) -> Image.Image:
    """A smooth RGB image with a different slope in each channel and a bright square."""
    rows, columns = np.mgrid[0:height, 0:width]
    red = 255 * columns / max(width - 1, 1)
    green = 255 * rows / max(height - 1, 1)
    blue = 255 * (0.5 + 0.5 * np.sin(rows / 3 + columns / 5))
    pixels = np.stack([red, green, blue], axis=-1).astype(np.uint8)
    pixels[height // 4 : height // 2, width // 4 : width // 2] = (250, 220, 30)
    return Image.fromarray(pixels)


def _dmd_timestep(pipe: Any, step: int, sample: torch.Tensor, mask: Any) -> torch.Tensor:
    time = torch.full((1,), float(step))
    if not pipe.config.expand_timesteps:
        return time
    frames, height, width = sample.shape[2:]
    if mask is None:
        return time[:, None].expand(1, frames * (height // 2) * (width // 2))
    return (mask[0][0][:, ::2, ::2] * time).flatten()[None]
