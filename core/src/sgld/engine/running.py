"""A job on its way through its stages, as the engine's scheduler sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sgld.api.errors import Cancelled
from sgld.engine.call import Call, StageRun
from sgld.engine.job import Job
from sgld.engine.stage import Stage
from sgld.engine.timing import Stopwatch, Watch


class Running:
    """Drives one job's generators: holds the calls it waits for and resumes it with results.

    `on_stage` is told `(job, stage, seconds)` at the end of each stage.
    """

    def __init__(
        self,
        job: Job,
        stages: Sequence[Stage],
        on_stage: Callable[[Job, str, float], None],
    ) -> None:
        self.job = job
        self.timings: dict[str, float] = {}
        self.finished = False
        self._stages = list(stages)
        self._on_stage = on_stage
        self._position = -1
        self._run: StageRun | None = None
        self._watches: list[Watch] = []
        self._single = True
        self._calls: list[Call] = []
        self._results: list[Any] = []
        self._open: list[int] = []

    @property
    def stage(self) -> str:
        """Name of the current stage, or of the last one; empty before the first."""
        if self._position < 0:
            return ""
        return self._stages[min(self._position, len(self._stages) - 1)].id

    def start(self) -> None:
        """Enter the first stage and run to its first call."""
        self._enter_next()

    def waiting(self) -> list[tuple[int, Call]]:
        """The calls that still lack a result, with their places."""
        return [(place, self._calls[place]) for place in self._open]

    def settle(self, place: int, result: Any, watch: Watch | None) -> None:
        """Hand in the result of one call; `advance` once none is waiting."""
        self._results[place] = result
        self._open.remove(place)
        if watch is not None:
            self._watches.append(watch)

    def advance(self) -> None:
        """Resume the stage with the results of the calls it yielded."""
        results, self._results, self._calls = self._results, [], []
        self._resume(results[0] if self._single else results)

    def fail(self, error: BaseException) -> None:
        """Raise `error` inside the stage, so that its `finally` blocks run, then free the job."""
        try:
            if self._run is not None:
                self._run.throw(error)
        except BaseException:  # the stage may raise on: the caller already holds the cause
            pass
        finally:
            self.close()

    def close(self) -> None:
        """Stop: close the generator and drop the job's tensors. Safe to call again."""
        run, self._run = self._run, None
        try:
            if run is not None:
                run.close()
        finally:
            self._calls, self._results, self._open = [], [], []
            self.finished = True
            self.job.free()

    def _enter_next(self) -> None:
        self._position += 1
        if self._position == len(self._stages):
            self.finished = True
            return
        self.job.stage = self.stage
        self._run = self._stages[self._position].run(self.job)
        self._resume(None)

    def _resume(self, value: Any) -> None:
        if self._run is None:
            raise Cancelled("the job was closed")
        # The stage's own arithmetic counts too, and must not be counted twice: on a GPU the host
        # may wait in it for calls that were timed already, so the device times it as it does them.
        watch = Stopwatch(self.job.device)
        self._watches.append(watch)
        try:
            wish = self._run.send(value)
        except StopIteration:
            watch.stop()
            self._leave()
            return
        watch.stop()
        self._single = isinstance(wish, Call)
        self._calls = [wish] if isinstance(wish, Call) else list(wish)
        self._results = [None] * len(self._calls)
        self._open = list(range(len(self._calls)))
        if not self._open:
            self._resume([])

    def _leave(self) -> None:
        stage = self.stage
        self._run = None
        self.job.finite.check(stage)
        seconds = sum(watch.seconds() for watch in self._watches)
        self._watches = []
        self.timings[stage] = self.timings.get(stage, 0.0) + seconds
        self._on_stage(self.job, stage, seconds)
        self._enter_next()
