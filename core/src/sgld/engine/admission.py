"""Jobs that have not begun: in order of arrival, and no more of them than there is memory for."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

from sgld.api.errors import RequestError
from sgld.engine.causal import CausalPipeline, EachChunk
from sgld.engine.entries import Entry
from sgld.engine.pipeline import Pipeline, stages_of
from sgld.engine.sessions.budget import Budget, shown


class Queued(NamedTuple):
    """One output of a request. It is also what its memory is reserved under.

    Args:
        entry: the request.
        index: which output.
        needed: bytes that its state will hold on the device.
    """

    entry: Entry
    index: int
    needed: int


class Line:
    """The jobs that wait.

    Args:
        pipeline: the family.
        budget: where the states of a causal family are reserved; None: it has none.
    """

    def __init__(self, pipeline: Pipeline, budget: Budget | None) -> None:
        self._pipeline = pipeline
        self._budget = budget
        self._queued: deque[Queued] = deque()

    def __len__(self) -> int:
        return len(self._queued)

    def add(self, entry: Entry) -> None:
        """Put every output of a request at the end.

        Raises RequestError (`out_of_memory`) when its state can never fit.
        """
        needed = self._needed(entry.params)
        self._queued.extend(Queued(entry, n, needed) for n in range(len(entry.request.seeds)))

    def take(self) -> Queued | None:
        """The first one that may begin, with its memory reserved; None when all have to wait.

        One that needs memory never goes before another that does; one that needs none never waits.
        """
        waits = False
        for item in self._queued:
            if self._budget is None or not item.needed:
                break
            if not waits and self._budget.begin(item, item.needed):
                break
            waits = True
        else:
            return None
        self._queued.remove(item)
        return item

    def drop(self, entry: Entry) -> None:
        """A request has ended."""
        self.release(item for item in self._queued if item.entry is entry)
        self._queued = deque(item for item in self._queued if item.entry is not entry)

    def release(self, items: Iterable[Queued]) -> None:
        """Give back what is reserved for them; safe to call again."""
        for item in items:
            if self._budget is not None:
                self._budget.release(item)

    def _needed(self, params: Any) -> int:
        pipeline, budget = self._pipeline, self._budget
        if budget is None or not isinstance(pipeline, CausalPipeline):
            return 0
        if not any(isinstance(stage, EachChunk) for stage in stages_of(pipeline, "stages", params)):
            return 0  # a family may have ordinary jobs as well
        needed = pipeline.state_bytes(params)
        if needed > budget.total:
            values = [f"{name}={getattr(params, name, None)}" for name in pipeline.state_fields]
            raise RequestError(
                f"the state of this clip needs {shown(needed)} ({', '.join(values)}); the memory "
                f"for all of them is {shown(budget.total)}.",
                code="out_of_memory",
                remedy=f"Try less of {' or '.join(pipeline.state_fields)}, or more "
                "--session-memory.",
            )
        return needed
