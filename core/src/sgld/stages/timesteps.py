"""The time table of a job."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from sgld.engine.call import StageRun
from sgld.engine.job import Job
from sgld.engine.stage import Stage
from sgld.stages.sampler import Sampler


class Timesteps(Stage):
    """Builds the job's sampler by the family's rule."""

    id = "timesteps"
    writes: ClassVar[tuple[str, ...]] = ("sampler",)

    def __init__(self, make: Callable[[Job], Sampler]) -> None:
        self._make = make

    def run(self, job: Job) -> StageRun:
        job.slots.sampler = self._make(job)
        return
        yield
