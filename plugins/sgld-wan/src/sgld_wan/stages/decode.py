"""Latents to frames."""

from __future__ import annotations

import torch

from sgld.engine.call import Call, StageRun
from sgld.engine.job import Job
from sgld.engine.stage import Stage
from sgld.stages.denoise import Frames


class Decode(Stage):
    """Writes `frames` [F, H, W, 3] in 0..1."""

    id = "decode"
    reads = ("latents",)
    writes = ("frames",)
    uses = ("vae",)

    def run(self, job: Job) -> StageRun:
        job.slots.frames = yield from decoded(job, job.slots.latents)


def decoded(job: Job, latents: torch.Tensor) -> Frames:
    """The frames [F, H, W, 3] of latents."""
    scaled = job.parts["latent_scale"].restore(latents.to(job.parts["vae_dtype"]))
    video = yield Call("vae", {"latents": scaled}, method="decode")
    return to_frames(video)


def to_frames(video: torch.Tensor) -> torch.Tensor:
    """What the VAE decodes, [1, 3, F, H, W] in -1..1, as [F, H, W, 3] in 0..1."""
    return video[0].float().div(2).add_(0.5).clamp_(0, 1).permute(1, 2, 3, 0)
