"""Latents to a picture."""

from __future__ import annotations

from typing import ClassVar

import torch

from sgld.engine.call import Call, StageRun
from sgld.engine.job import Job
from sgld.engine.stage import Stage
from sgld.stages.denoise import Frames
from sgld_flux.models.shared import unpack
from sgld_flux.stages.latents1 import Grid


class LatentScale:
    """The shift and scale between VAE latents and what the transformer sees."""

    def __init__(self, scale: float, shift: float) -> None:
        self._scale, self._shift = scale, shift

    def normalise(self, latents: torch.Tensor) -> torch.Tensor:
        """VAE latents to the transformer's scale."""
        return (latents - self._shift) * self._scale

    def restore(self, latents: torch.Tensor) -> torch.Tensor:
        """Back to what the VAE decodes."""
        return latents / self._scale + self._shift


class Decode(Stage):
    """Writes `frames` [1, H, W, 3] in 0..1."""

    id = "decode"
    reads: ClassVar[tuple[str, ...]] = ("latents",)
    writes: ClassVar[tuple[str, ...]] = ("frames",)
    uses: ClassVar[tuple[str, ...]] = ("vae",)

    def run(self, job: Job) -> StageRun:
        job.slots.frames = yield from decoded(job, job.slots.latents)


def decoded(job: Job, latents: torch.Tensor) -> Frames:
    """The picture [1, H, W, 3] of packed latents."""
    scaled = job.parts["latent_scale"].restore(unpack(latents, *Grid.of(job)))
    pixels = yield Call("vae", {"latents": scaled}, method="decode")
    return pixels.float().div(2).add(0.5).clamp(0, 1).permute(0, 2, 3, 1)
