"""One step of a pipeline: a generator over a job."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from sgld.engine.call import StageRun
from sgld.engine.job import Job


class Stage(ABC):
    """Reads slots, yields calls, writes slots.

    `reads`, `writes` and `uses` are declared so that a pipeline's chain can be checked when it is
    built. State that must be freed goes into a `finally` block of `run`: a cancelled job's
    generator is closed.
    """

    id: ClassVar[str]
    reads: ClassVar[tuple[str, ...]] = ()
    writes: ClassVar[tuple[str, ...]] = ()
    uses: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def run(self, job: Job) -> StageRun:
        """Do this stage's work for one job; see `sgld.engine.call.Call`."""


def check_chain(stages: tuple[Stage, ...] | list[Stage]) -> None:
    """Raise ValueError unless every slot that a stage reads was written by an earlier one."""
    written: set[str] = set()
    for stage in stages:
        missing = [name for name in stage.reads if name not in written]
        if missing:
            raise ValueError(
                f"stage {stage.id!r} reads {', '.join(missing)}, which no earlier stage writes"
            )
        written.update(stage.writes)
