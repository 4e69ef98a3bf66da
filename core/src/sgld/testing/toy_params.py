"""Parameters of the toy families: the real ones of their kind, and hooks that make trouble.

Torch-free, like the parameters of every family.
"""

from __future__ import annotations

from typing import ClassVar

from sgld.params.options import Options, option
from sgld.params.sampling import Guided, ImageParams, TakesImage, VideoParams


class Hooks(Options):
    """Mixin: ways to be slow or to fail on purpose; steps count from 1, 0 means never."""

    warmup_delay: float = option(
        0.0, "Sleep before the first step.", unit="seconds", ge=0.0, le=600.0
    )
    step_delay: float = option(0.0, "Sleep in every step.", unit="seconds", ge=0.0, le=600.0)
    fail_at_step: int = option(0, "Raise an error in this step.", ge=0)
    exit_at_step: int = option(0, "End the engine's process in this step.", ge=0)
    inf_at_step: int = option(0, "Make this step's result infinite.", ge=0)
    oom_at_step: int = option(0, "Run out of memory in this step.", ge=0)


class ToyImageParams(Hooks, Guided, ImageParams):
    """A small picture in few steps."""

    tasks: ClassVar[tuple[str, ...]] = ("text-to-image",)

    width: int = option(64, "Width of a frame.", unit="pixels", ge=1, le=100_000)
    height: int = option(64, "Height of a frame.", unit="pixels", ge=1, le=100_000)
    num_inference_steps: int = option(4, "Denoising steps.", unit="steps", ge=1, le=1000)
    guidance_scale: float = option(
        3.0, "Strength of guidance; at 1 and below, off.", ge=0.0, le=100.0
    )


class ToyEditParams(TakesImage, ToyImageParams):
    """A picture mixed with the input pictures, of the shape of the first one."""

    tasks: ClassVar[tuple[str, ...]] = ("text-to-image", "image-to-image")
    max_images: ClassVar[int] = 4
    takes_mask: ClassVar[bool] = True
    size_from_image: ClassVar[bool] = True


class ToyVideoParams(Hooks, Guided, VideoParams):
    """A small clip in few steps."""

    tasks: ClassVar[tuple[str, ...]] = ("text-to-video",)

    width: int = option(64, "Width of a frame.", unit="pixels", ge=1, le=100_000)
    height: int = option(64, "Height of a frame.", unit="pixels", ge=1, le=100_000)
    num_frames: int = option(9, "Frames of the clip.", unit="frames", ge=1, le=100_000)
    num_inference_steps: int = option(4, "Denoising steps.", unit="steps", ge=1, le=1000)
    guidance_scale: float = option(
        3.0, "Strength of guidance; at 1 and below, off.", ge=0.0, le=100.0
    )
