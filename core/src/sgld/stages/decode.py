"""Latents to frames, by the family's own generator of calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch

from sgld.engine.call import StageRun
from sgld.engine.job import Job
from sgld.engine.stage import Stage
from sgld.stages.denoise import Frames


class Decode(Stage):
    """Writes `frames`, RGB in 0..1, [F, H, W, 3], from `latents`.

    Args:
        decode: a generator that calls `vae` and returns the frames; the same one can show previews
            (`sgld.stages.guidance.Guidance`).
    """

    id = "decode"
    reads: ClassVar[tuple[str, ...]] = ("latents",)
    writes: ClassVar[tuple[str, ...]] = ("frames",)
    uses: ClassVar[tuple[str, ...]] = ("vae",)

    def __init__(self, decode: Callable[[Job, torch.Tensor], Frames]) -> None:
        self._decode = decode

    def run(self, job: Job) -> StageRun:
        job.slots.frames = yield from self._decode(job, job.slots.latents)
