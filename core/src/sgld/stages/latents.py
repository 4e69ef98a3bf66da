"""Initial noise."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from sgld.engine.call import StageRun
from sgld.engine.job import Job
from sgld.engine.stage import Stage


class InitialNoise(Stage):
    """Draws standard normal noise, float32, from the job's CPU generator.

    `shape` gives the family's latent shape for the job's parameters, rows first ([1, C, F, H, W]).
    """

    id = "latents"
    writes: ClassVar[tuple[str, ...]] = ("latents",)

    def __init__(self, shape: Callable[[Job], tuple[int, ...]]) -> None:
        self._shape = shape

    def run(self, job: Job) -> StageRun:
        job.slots.latents = job.noise(self._shape(job))
        return
        yield
