"""Latents to a picture."""

from __future__ import annotations

import torch

from sgld.engine.call import Call, StageRun
from sgld.engine.job import Job
from sgld.engine.stage import Stage
from sgld.stages.denoise import Frames


class Decode(Stage):
    """Writes `frames` [1, H, W, 3] in 0..1."""

    id = "decode"
    reads = ("latents",)
    writes = ("frames",)
    uses = ("vae",)

    def run(self, job: Job) -> StageRun:
        job.slots.frames = yield from decoded(job.slots.latents)


def decoded(latents: torch.Tensor) -> Frames:
    """The picture [1, H, W, 3] of latents."""
    picture = yield Call("vae", {"latents": latents}, method="decode")
    return picture.float().div(2).add(0.5).clamp(0, 1).permute(0, 2, 3, 1)
