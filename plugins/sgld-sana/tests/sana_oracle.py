"""The reference for parity tests: diffusers' SANA pipelines run on a checkpoint folder.

Noise is float32 from a CPU generator with the request's seed, so that both sides start from exactly
the same latents (and, for SANA-Sprint, draw the same noise in between).

- `run(folder, …)`: any variant by the class name in its `model_index.json`; a video checkpoint with
  `image` runs diffusers' image-to-video pipeline.
- `pipeline(folder, image_to_video)`: the pipeline itself.
- `picture(width, height)`: a deterministic image.

Pipelines are loaded once per folder and kept; they are only read.
"""

from __future__ import annotations

import importlib
import json
import warnings
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from sgld.testing.encoders import quiet

# Typed as Any: their classes are loaded lazily, which type checkers cannot follow.
diffusers: Any = importlib.import_module("diffusers")
transformers: Any = importlib.import_module("transformers")


class Reference(NamedTuple):
    """Final latents before decoding, and frames `[F, H, W, 3]` in 0..1."""

    latents: torch.Tensor
    frames: np.ndarray[Any, np.dtype[np.float32]]


def run(
    folder: Path,
    *,
    prompt: str,
    negative_prompt: str | None = None,
    image: Image.Image | None = None,
    height: int = 96,
    width: int = 128,
    num_frames: int = 9,
    steps: int = 4,
    guidance: float = 4.5,
    seed: int = 0,
    flow_shift: float | None = None,
    instruction: str | None = None,
    use_resolution_binning: bool = False,
    frames: bool = True,
    **more: Any,
) -> Reference:
    """Run the diffusers pipeline of `folder` in float32 on the CPU.

    `instruction` None is the pipeline's own, an empty text is none. `more` are further arguments of
    the pipeline's call. Without `frames` nothing is decoded.
    """
    pipe = pipeline(folder, image is not None)
    video = is_video(folder)
    generator = torch.Generator("cpu").manual_seed(seed)
    arguments: dict[str, Any] = dict(more)
    if negative_prompt is not None:
        arguments["negative_prompt"] = negative_prompt
    if video:
        arguments["frames"] = num_frames
    if image is not None:
        arguments["image"] = image
    if instruction is not None:
        arguments["complex_human_instruction"] = instruction.split("\n") if instruction else []
    made = height, width
    if use_resolution_binning:
        made = binned(pipe, folder, height, width)
    start = torch.randn(latent_shape(pipe, video, made, num_frames), generator=generator)
    with FreshScheduler(pipe, flow_shift), warnings.catch_warnings():
        # diffusers' DPM-Solver++ converts a tensor in a way that NumPy 2 deprecates.
        warnings.filterwarnings("ignore", "__array__ implementation", DeprecationWarning)
        final = pipe(
            prompt=prompt,
            height=height,
            width=width,
            num_inference_steps=steps,
            guidance_scale=guidance,
            latents=start,
            generator=generator,
            output_type="latent",
            use_resolution_binning=use_resolution_binning,
            **arguments,
        )[0]
    decoded = decode(pipe, final, (height, width)) if frames else np.zeros(0, np.float32)
    return Reference(final, decoded)


def binned(pipe: Any, folder: Path, height: int, width: int) -> tuple[int, int]:
    """The trained size nearest in shape, by diffusers' own table and rule."""
    from diffusers.pipelines.pixart_alpha import pipeline_pixart_alpha
    from diffusers.pipelines.sana_video import pipeline_sana_video

    if is_video(folder):
        table = pipeline_sana_video.ASPECT_RATIO_480_BIN
        return pipe.video_processor.classify_height_width_bin(height, width, ratios=table)
    table = pipeline_pixart_alpha.ASPECT_RATIO_1024_BIN
    return pipe.image_processor.classify_height_width_bin(height, width, ratios=table)


def latent_shape(pipe: Any, video: bool, size: tuple[int, int], num_frames: int) -> tuple[int, ...]:
    """`(1, C, h, w)` or `(1, C, F, h, w)` of a pixel size."""
    channels, stride = pipe.transformer.config.in_channels, pipe.vae_scale_factor
    frames = ((num_frames - 1) // 4 + 1,) if video else ()
    return (1, channels, *frames, size[0] // stride, size[1] // stride)


@torch.no_grad()
def decode(
    pipe: Any, latents: torch.Tensor, size: tuple[int, int]
) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Frames `[F, H, W, 3]` in 0..1 of final latents, by the chain of the pipeline's call."""
    if latents.ndim == 4:
        pixels = pipe.vae.decode(latents / pipe.vae.config.scaling_factor, return_dict=False)[0]
        pixels = pipe.image_processor.resize_and_crop_tensor(pixels, size[1], size[0])
        return pipe.image_processor.postprocess(pixels, output_type="np")
    config = pipe.vae.config
    mean = torch.tensor(config.latents_mean).view(1, -1, 1, 1, 1)
    std = 1.0 / torch.tensor(config.latents_std).view(1, -1, 1, 1, 1)
    pixels = pipe.vae.decode(latents / std + mean, return_dict=False)[0]
    pixels = pipe.video_processor.resize_and_crop_tensor(pixels, size[1], size[0])
    return pipe.video_processor.postprocess_video(pixels, output_type="np")[0]


def is_video(folder: Path) -> bool:
    """Whether a folder holds a video checkpoint."""
    return "Video" in class_name(folder)


def class_name(folder: Path) -> str:
    """The pipeline class that a folder names."""
    return json.loads((folder / "model_index.json").read_text())["_class_name"]


@cache
def pipeline(folder: Path, image_to_video: bool = False) -> Any:
    """diffusers' pipeline of a folder in float32, once per session."""
    name = "SanaImageToVideoPipeline" if image_to_video else class_name(folder)
    loaded = getattr(diffusers, name)(**components(folder))
    loaded.set_progress_bar_config(disable=True)
    return loaded


@cache
def components(folder: Path) -> dict[str, Any]:
    """The parts of a checkpoint folder by their names in `model_index.json`."""
    index = json.loads((folder / "model_index.json").read_text())

    def load(name: str) -> Any:
        return getattr(diffusers, index[name][1]).from_pretrained(folder / name)

    with quiet():
        return {
            "tokenizer": transformers.AutoTokenizer.from_pretrained(folder / "tokenizer"),
            "text_encoder": transformers.Gemma2Model.from_pretrained(folder / "text_encoder"),
            "scheduler": load("scheduler"),
            "vae": load("vae").eval(),
            "transformer": load("transformer").eval(),
        }


class FreshScheduler:
    """While open, `pipe` has an unused scheduler, with another shift if one is given."""

    def __init__(self, pipe: Any, flow_shift: float | None) -> None:
        self.pipe, self.flow_shift, self.old = pipe, flow_shift, pipe.scheduler

    def __enter__(self) -> None:
        key = "flow_shift" if "flow_shift" in self.old.config else "shift"
        changes = {} if self.flow_shift is None else {key: self.flow_shift}
        self.pipe.scheduler = type(self.old).from_config(self.old.config, **changes)

    def __exit__(self, *error: object) -> None:
        self.pipe.scheduler = self.old


def picture(width: int = 96, height: int = 64) -> Image.Image:
    """A smooth RGB image with a different slope in each channel and a bright square."""
    rows, columns = np.mgrid[0:height, 0:width]
    red = 255 * columns / max(width - 1, 1)
    green = 255 * rows / max(height - 1, 1)
    blue = 255 * (0.5 + 0.5 * np.sin(rows / 3 + columns / 5))
    pixels = np.stack([red, green, blue], axis=-1).astype(np.uint8)
    pixels[height // 4 : height // 2, width // 4 : width // 2] = (250, 220, 30)
    return Image.fromarray(pixels)
