"""The denoising loop: ask the family for its calls, combine their results, let the sampler step."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Protocol, runtime_checkable

import torch

from sgld.engine.call import Call, StageRun, Wish
from sgld.engine.job import Job
from sgld.engine.stage import Stage
from sgld.stages.sampler import Estimates


class Denoiser(Protocol):
    """How a family predicts: which calls one step needs and how their results become one output.

    `reads`, `writes` and `uses`, if they are there, name the slots that it reads beside `latents`
    and `sampler`, those that it writes, and the components that it calls.
    """

    def calls(self, job: Job, index: int) -> Sequence[Call]:
        """The calls of step `index` (from 0): one, or one per guidance pass."""
        ...

    def combine(self, job: Job, index: int, results: Sequence[torch.Tensor]) -> torch.Tensor:
        """One model output from the results of `calls`, in the same order."""
        ...

    def finish(self, job: Job) -> torch.Tensor:
        """The final latents, after the last step."""
        ...


Frames = Generator[Wish, Any, torch.Tensor]
"""What decodes latents: a generator of calls that returns RGB in 0..1, [F, H, W, 3]."""


@runtime_checkable
class Previews(Protocol):
    """A denoiser that can show what the result looks like before it is there."""

    def preview(self, job: Job, clean: torch.Tensor) -> Frames:
        """Decode an estimate of the clean latents. Of a clip one frame will do; no slot and no
        random number may change, because the result must not depend on who watches."""
        ...


def preview_steps(count: int, total: int) -> frozenset[int]:
    """The steps (from 1) of `total` after which `count` previews are due: evenly spaced, never the
    last one, which the result itself follows."""
    due = {number * total // (count + 1) for number in range(1, count + 1)}
    return frozenset(due - {0})


def guide(positive: torch.Tensor, negative: torch.Tensor, scale: float) -> torch.Tensor:
    """Classifier-free guidance (Ho and Salimans, arXiv 2207.12598): away from `negative`."""
    return negative + scale * (positive - negative)


class Denoise(Stage):
    """Runs the sampler's steps over `latents`; one engine turn per step and guidance pass.

    Where the request asks for previews, and denoiser and sampler can make them, the estimate of the
    clean latents is decoded after some steps.
    """

    id = "denoise"
    reads = ("latents", "sampler")
    writes = ("latents",)

    def __init__(self, denoiser: Denoiser) -> None:
        self._denoiser = denoiser
        # What the denoiser touches is touched in this stage; the class itself knows of no denoiser.
        for name in ("reads", "writes", "uses"):
            setattr(self, name, (*getattr(self, name), *getattr(denoiser, name, ())))

    def run(self, job: Job) -> StageRun:
        slots = job.slots
        total = len(slots.sampler.times)
        due = preview_steps(job.request.previews, total)
        for index in range(total):
            results = yield list(self._denoiser.calls(job, index))
            output = self._denoiser.combine(job, index, results)
            before = slots.latents
            slots.latents = slots.sampler.step(output, index, before)
            job.progress(index + 1, total, slots.latents)
            if index + 1 in due:
                yield from self._show(job, output, index, before)
        slots.latents = self._denoiser.finish(job)

    def _show(
        self, job: Job, output: torch.Tensor, index: int, before: torch.Tensor
    ) -> Generator[Wish, Any, None]:
        sampler, total = job.slots.sampler, len(job.slots.sampler.times)
        if not isinstance(self._denoiser, Previews) or not isinstance(sampler, Estimates):
            return
        clean = sampler.estimate(output, index, before)
        if clean is None:
            return
        frames = yield from self._denoiser.preview(job, clean.to(job.slots.latents.dtype))
        job.preview(index + 1, total, frames)
