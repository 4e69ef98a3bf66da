"""Latents to frames."""

from __future__ import annotations

import torch

from sgld.engine.call import Call, StageRun
from sgld.engine.job import Job
from sgld.engine.stage import Stage
from sgld.stages.denoise import Frames
from sgld_sana.stages.size import resized


class ImageScale:
    """The one factor between the autoencoder's latents and what the transformer sees."""

    def __init__(self, factor: float) -> None:
        self._factor = factor

    def restore(self, latents: torch.Tensor) -> torch.Tensor:
        """Back to what the autoencoder decodes."""
        return latents / self._factor


class Decode(Stage):
    """Writes `frames` [F, H, W, 3] in 0..1; a picture is one frame."""

    id = "decode"
    reads = ("latents",)
    writes = ("frames",)
    uses = ("vae",)

    def run(self, job: Job) -> StageRun:
        job.slots.frames = yield from decoded(job, job.slots.latents)


def decoded(job: Job, latents: torch.Tensor) -> Frames:
    """The frames [F, H, W, 3] of latents."""
    scaled = job.parts["latent_scale"].restore(latents.to(job.parts["vae_dtype"]))
    pixels = yield Call("vae", {"latents": scaled}, method="decode")
    frames = pixels[0].transpose(0, 1) if pixels.ndim == 5 else pixels
    frames = resized(frames, job.params.height, job.params.width)
    return frames.float().div(2).add(0.5).clamp(0, 1).permute(0, 2, 3, 1)
