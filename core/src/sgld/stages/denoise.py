"""The denoising loop: ask the family for its calls, combine their results, let the sampler step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from sgld.engine.call import Call, StageRun
from sgld.engine.job import Job
from sgld.engine.stage import Stage


class Denoiser(Protocol):
    """How a family predicts: which calls one step needs and how their results become one output."""

    def calls(self, job: Job, index: int) -> Sequence[Call]:
        """The calls of step `index` (from 0): one, or one per guidance pass."""
        ...

    def combine(self, job: Job, index: int, results: Sequence[torch.Tensor]) -> torch.Tensor:
        """One model output from the results of `calls`, in the same order."""
        ...

    def finish(self, job: Job) -> torch.Tensor:
        """The final latents, after the last step."""
        ...


def guide(positive: torch.Tensor, negative: torch.Tensor, scale: float) -> torch.Tensor:
    """Classifier-free guidance (Ho and Salimans, arXiv 2207.12598): away from `negative`."""
    return negative + scale * (positive - negative)


class Denoise(Stage):
    """Runs the sampler's steps over `latents`; one engine turn per step and guidance pass."""

    id = "denoise"
    reads = ("latents", "sampler")
    writes = ("latents",)

    def __init__(self, denoiser: Denoiser) -> None:
        self._denoiser = denoiser

    def run(self, job: Job) -> StageRun:
        slots = job.slots
        total = len(slots.sampler.times)
        for index in range(total):
            results = yield list(self._denoiser.calls(job, index))
            output = self._denoiser.combine(job, index, results)
            slots.latents = slots.sampler.step(output, index, slots.latents)
            job.progress(index + 1, total, slots.latents)
        slots.latents = self._denoiser.finish(job)
