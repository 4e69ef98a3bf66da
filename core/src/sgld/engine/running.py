"""A job on its way through its stages, as the engine's scheduler sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import structlog

from sgld.engine.call import Call, StageRun
from sgld.engine.job import Job
from sgld.engine.stage import Stage
from sgld.engine.timing import Stopwatch, Watch

log = structlog.get_logger("sgld.engine")

SHUT_TRIES = 8
"""How often a generator that yields on while it is being closed is closed again."""


class Running:
    """Drives one job's generators: holds the calls it waits for and resumes it with results.

    `finished`: every stage has run to its end. `closed`: its state is freed; whatever is asked of
    it then does nothing. `on_stage` is told `(job, stage, seconds)` at the end of each stage;
    `on_freed` that the state is freed, maybe more than once.
    """

    def __init__(
        self,
        job: Job,
        stages: Sequence[Stage],
        on_stage: Callable[[Job, str, float], None],
        on_freed: Callable[[], None] = lambda: None,
    ) -> None:
        self.job = job
        self.timings: dict[str, float] = {}
        self.finished = False
        self.closed = False
        self._stages = list(stages)
        self._on_stage = on_stage
        self._on_freed = on_freed
        self._position = -1
        self._run: StageRun | None = None
        self._inside = False
        self._watches: list[Watch] = []
        self._single = True
        self._calls: list[Call] = []
        self._results: list[Any] = []
        self._open: list[int] = []

    @property
    def stage(self) -> str:
        """Name of the current stage, or of the last one; empty before the first."""
        if self._position < 0 or not self._stages:
            return ""
        return self._stages[min(self._position, len(self._stages) - 1)].id

    def start(self) -> None:
        """Enter the first stage and run to the first call."""
        self._drive(None)

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
        """Resume the stage with the results of the calls it yielded, to its next calls."""
        results, self._results, self._calls = self._results, [], []
        self._drive(results[0] if self._single else results)

    def fail(self, error: Exception) -> None:
        """Raise `error` inside the stage, so that it can tell a failure from a cancellation, then
        free the job."""
        if self._run is not None and not self._inside:
            # The stage raises it on, or something of its own: the caller holds the cause already.
            with suppress(Exception):
                self._run.throw(error)
        self.close()

    def close(self) -> None:
        """Stop: close the generator and drop the job's tensors. Safe to call again.

        From within the stage itself, such as while it reports progress, the generator cannot be
        closed; that then happens at its next yield.
        """
        self.closed = True
        if self._inside:
            return
        run, self._run = self._run, None
        self._calls, self._results, self._open, self._watches = [], [], [], []
        if run is not None:
            _shut(run, self.job.id)
        self.job.free()
        self._on_freed()

    def _drive(self, value: Any) -> None:
        while not self.closed:
            if self._run is None:
                if not self._enter():
                    return
                value = None
            ended, wish = self._send(value)
            if self.closed:
                return
            if not ended:
                self._take(wish)
                return
            self._leave()

    def _enter(self) -> bool:
        """Make the next stage's generator; False after the last stage."""
        self._position += 1
        if self._position >= len(self._stages):
            self.finished = True
            return False
        self.job.stage = self.stage
        run = self._stages[self._position].run(self.job)
        if not hasattr(run, "send"):
            raise TypeError(
                f"run() gave {type(run).__name__}, not a generator: it must yield its calls"
            )
        self._run = run
        return True

    def _send(self, value: Any) -> tuple[bool, Any]:
        """Resume the stage: whether it ended, and what it yielded."""
        assert self._run is not None
        # The stage's own arithmetic counts too, and must not be counted twice: on a GPU the host
        # may wait in it for calls that were timed already, so the device times it as it does them.
        watch = Stopwatch(self.job.device)
        self._watches.append(watch)
        self._inside = True
        try:
            return False, self._run.send(value)
        except StopIteration:
            return True, None
        finally:
            self._inside = False
            watch.stop()
            if self.closed:
                self.close()

    def _take(self, wish: Any) -> None:
        self._single = isinstance(wish, Call)
        calls = [wish] if isinstance(wish, Call) else wish
        if not isinstance(calls, (list, tuple)) or not all(isinstance(c, Call) for c in calls):
            raise TypeError(f"yielded {type(wish).__name__}, not a Call or a list of Calls")
        for call in calls:
            hash(call.memo_key())  # here, so that only the job that made it fails
        self._calls = list(calls)
        self._results = [None] * len(calls)
        self._open = list(range(len(calls)))

    def _leave(self) -> None:
        stage, self._run = self.stage, None
        self.job.finite.check(stage)
        seconds = sum(watch.seconds() for watch in self._watches)
        self._watches = []
        self.timings[stage] = self.timings.get(stage, 0.0) + seconds
        self._on_stage(self.job, stage, seconds)


def _shut(run: StageRun, job: str) -> None:
    """Close a generator whatever its author thinks of that: neither an error while cleaning up nor
    a caught GeneratorExit may reach the engine, which has other jobs."""
    for _ in range(SHUT_TRIES):
        try:
            run.close()
            return
        except Exception as error:
            log.warning("a stage did not close cleanly", job=job, error=repr(error))
            if getattr(run, "gi_frame", None) is None:
                return
