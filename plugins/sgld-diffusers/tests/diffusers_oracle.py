"""The reference for the parity tests: the same checkpoint, called through diffusers directly.

- `run(folder, **arguments)`: the pipeline that the folder names, with its own argument names.
- `picture(width, height, turn)`: a deterministic image.

Pipelines are loaded once per folder and kept; they are only read. Noise comes from a CPU generator
with the request's seed, as diffusers' users do it.
"""

from __future__ import annotations

import importlib
import warnings
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from sgld.testing.encoders import quiet

# Typed as Any: its classes are loaded lazily, which type checkers cannot follow.
diffusers: Any = importlib.import_module("diffusers")

Array = np.ndarray[Any, np.dtype[np.float32]]


class Reference(NamedTuple):
    """What diffusers made, and how often it called back."""

    latents: torch.Tensor
    """As they were after the last step, in the pipeline's own shape."""
    frames: Array
    """`[F, H, W, 3]` in 0..1."""
    calls: int

    @property
    def pixels(self) -> Array:
        """Frames as 8-bit values, as they leave an engine."""
        return np.round(self.frames * 255)


def run(folder: Path, class_name: str = "", *, seed: int, **arguments: Any) -> Reference:
    """Call the pipeline of `folder` in float32 on the CPU with `arguments` as they are.

    `class_name` is another class than the one that the folder names.
    """
    pipe = pipeline(folder, class_name)
    latents: list[torch.Tensor] = []

    def each(pipe: Any, index: int, time: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        del pipe, index, time
        latents.append(tensors["latents"].clone())
        return tensors

    generator = torch.Generator("cpu").manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the library's own, which are not what is tested
        made = pipe(generator=generator, output_type="np", callback_on_step_end=each, **arguments)[
            0
        ]
    frames = np.asarray(made, dtype=np.float32)
    return Reference(latents[-1], frames.reshape(-1, *frames.shape[-3:]), len(latents))


@cache
def pipeline(folder: Path, class_name: str = "") -> Any:
    """diffusers' pipeline of a folder in float32, once per session."""
    cls = getattr(diffusers, class_name or "DiffusionPipeline")
    diffusers.utils.logging.disable_progress_bar()
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded = cls.from_pretrained(folder, torch_dtype=torch.float32)
    loaded.set_progress_bar_config(disable=True)
    return loaded


def picture(width: int = 64, height: int = 64, turn: int = 0) -> Image.Image:
    """A smooth RGB image with another slope in each channel and a bright square; `turn` shifts the
    channels, so that several pictures differ."""
    rows, columns = np.mgrid[0:height, 0:width]
    red = 255 * columns / max(width - 1, 1)
    green = 255 * rows / max(height - 1, 1)
    blue = 255 * (0.5 + 0.5 * np.sin(rows / 3 + columns / 5))
    pixels = np.stack([red, green, blue], axis=-1).astype(np.uint8)
    pixels[height // 4 : height // 2, width // 4 : width // 2] = (250, 220, 30)
    return Image.fromarray(np.roll(pixels, turn, axis=-1))
