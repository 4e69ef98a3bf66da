"""The toy families of `sgld.testing.toy_plugin`: pictures and clips from the modules of
`sgld.testing.toy`, loaded from a checkpoint like any family, with hooks that make trouble."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from sgld.engine.call import Call, StageRun
from sgld.engine.job import Job
from sgld.engine.loading import Loader
from sgld.engine.pipeline import Loaded, Media, Pipeline
from sgld.engine.stage import Stage
from sgld.stages.denoise import Denoise, Frames
from sgld.stages.latents import InitialNoise
from sgld.stages.timesteps import Timesteps
from sgld.testing.toy import (
    WIDTH,
    EncodePrompt,
    EulerSampler,
    ToyDenoiser,
    ToyText,
    ToyTransformer,
    ToyVae,
)

GRID = 16
"""Pixels per latent, in both directions."""
CRASH = 9
"""Exit status of an engine that `exit_at_step` ended."""
SHORTAGE = (
    "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 24.00 GiB of "
    "which 1.50 GiB is free."
)


class TroubledDenoiser(ToyDenoiser):
    """The toy denoiser, obeying the hooks of the request."""

    def calls(self, job: Job, index: int) -> Sequence[Call]:
        """The usual calls, unless a hook says that this step goes wrong."""
        params, step = job.params, index + 1
        time.sleep(params.step_delay + (params.warmup_delay if step == 1 else 0.0))
        if step == params.exit_at_step:
            os._exit(CRASH)
        if step == params.oom_at_step:
            raise torch.OutOfMemoryError(SHORTAGE)
        if step == params.fail_at_step:
            raise ValueError(f"told to fail at step {step}")
        return super().calls(job, index)

    def combine(self, job: Job, index: int, results: Sequence[torch.Tensor]) -> torch.Tensor:
        """The usual velocity, or infinity where a hook wants it."""
        output = super().combine(job, index, results)
        return output * torch.inf if index + 1 == job.params.inf_at_step else output

    def preview(self, job: Job, clean: torch.Tensor) -> Frames:
        """The estimate as the result would show it."""
        return enlarged(job, clean)


class Enlarge(Stage):
    """Latents to pixels, each latent a square of `GRID` pixels, mixed with the input pictures."""

    id = "decode"
    reads: ClassVar[tuple[str, ...]] = ("latents",)
    writes: ClassVar[tuple[str, ...]] = ("frames",)
    uses: ClassVar[tuple[str, ...]] = ("vae",)

    def run(self, job: Job) -> StageRun:
        job.slots.frames = yield from enlarged(job, job.slots.latents)


def enlarged(job: Job, latents: torch.Tensor) -> Frames:
    """Latents as frames, mixed with the input pictures; where a mask says so, the first of them."""
    pixels = yield Call("vae", {"latents": latents}, method="decode")
    frames, height, width = _grid(job)
    small = pixels.view(frames, height, width, 3)
    large = small.repeat_interleave(GRID, 1).repeat_interleave(GRID, 2)
    pictures = [_resized(picture, job) for picture in job.request.images]
    if not pictures:
        return large
    mixed = torch.stack([large, *pictures]).mean(0)
    if job.request.mask is None:
        return mixed
    mask = np.repeat(job.request.mask[:, :, None].astype(np.uint8) * 255, 3, axis=2)
    return torch.where(_resized(mask, job) > 0, mixed, pictures[0])


class ToyImagePipeline(Pipeline):
    """Text to a picture."""

    batch_tokens: ClassVar[int] = 64
    # The shared toy stages work in float32 only.
    float32_groups: ClassVar[tuple[str, ...]] = ("text_encoder", "dit", "vae")

    @classmethod
    def load(cls, loader: Loader) -> Loaded:
        delay = loader.located["transformer"].config.get("load_delay", 0.0)
        time.sleep(delay)
        builders: dict[str, Callable[[], nn.Module]] = {
            "text_encoder": ToyText,
            "transformer": partial(ToyTransformer, ops=loader.ops),
            "vae": ToyVae,
        }
        return Loaded({name: loader.module(name, build) for name, build in builders.items()})

    def stages(self, params: Any) -> Sequence[Stage]:
        return (
            EncodePrompt(),
            Timesteps(lambda job: EulerSampler(job.params.num_inference_steps, job.device)),
            InitialNoise(_latents),
            Denoise(TroubledDenoiser()),
            Enlarge(),
        )

    def media(self, job: Job) -> Media:
        return Media("image", job.slots.frames, 0, job.slots.latents)


class ToyEditPipeline(ToyImagePipeline):
    """Text and pictures to a picture."""


class ToyVideoPipeline(ToyImagePipeline):
    """Text to a clip."""

    def media(self, job: Job) -> Media:
        return Media("video", job.slots.frames, job.params.fps, job.slots.latents)


def _grid(job: Job) -> tuple[int, int, int]:
    frames = getattr(job.params, "num_frames", 1)
    return frames, job.params.height // GRID, job.params.width // GRID


def _latents(job: Job) -> tuple[int, int, int]:
    frames, height, width = _grid(job)
    return (1, frames * height * width, WIDTH)


def _resized(picture: Any, job: Job) -> torch.Tensor:
    """A picture as [1, height, width, 3] in 0..1, by nearest pixels."""
    pixels = torch.from_numpy(picture).to(job.device).float() / 255
    rows = torch.arange(job.params.height) * pixels.shape[0] // job.params.height
    columns = torch.arange(job.params.width) * pixels.shape[1] // job.params.width
    return pixels[rows][:, columns][None]
