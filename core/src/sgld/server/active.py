"""A job between its admission and its end: what is known of it, who watches it, how it is told to
stop. Everything here happens on the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from sgld.messages import Event
from sgld.observe.metrics import Meter
from sgld.observe.tracing import RequestTrace
from sgld.server.jobs.store import Job

MOST_STEPS = 256
MOST_LARGE = 4
"""What waits for a watcher that does not read; further steps, latents or chunks are left out."""


@dataclass(slots=True)
class JobEvent:
    """What watchers of a job are told: the job as it is now, and the engine's event, if any."""

    job: Job
    event: Event | None = None


class _Watcher:
    """What waits for one who watches a job."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[JobEvent | None] = asyncio.Queue()
        self._large = 0

    def has_room_for(self, event: Event) -> bool:
        """Whether an event may wait, too: few large ones, more of the others."""
        if _is_large(event) and self._large >= MOST_LARGE:
            return False
        return self._queue.qsize() < MOST_STEPS

    def put(self, happened: JobEvent | None) -> None:
        """Have it wait; None is the end."""
        self._large += _is_large(happened and happened.event)
        self._queue.put_nowait(happened)

    async def get(self) -> JobEvent | None:
        """The next one."""
        happened = await self._queue.get()
        self._large -= _is_large(happened and happened.event)
        return happened


def _is_large(event: Event | None) -> bool:
    """Frames of a chunk, or latents. Decoded previews are few: a request says how many it wants."""
    if event is None:
        return False
    return event.kind == "frames" or (event.kind == "preview" and event.frames is None)


@dataclass(slots=True)
class Active:
    """One job in the server's hands.

    Args:
        job: as it is now.
        cancelled: why it is to stop; empty while it is not.
        begun: whether the engine has started on it.
        keys: outputs that are stored or being stored.
        steps: output → steps done and steps in all.
        work: the part of `task` that may be cancelled, while it runs.
        task: from its start to its end, with the end written down; None while it waits.
    """

    job: Job
    meter: Meter
    trace: RequestTrace
    cancelled: str = ""
    begun: bool = False
    keys: list[str] = field(default_factory=list)
    steps: dict[int, tuple[int, int]] = field(default_factory=dict)
    work: asyncio.Task[None] | None = None
    task: asyncio.Task[None] | None = None
    accepted: float = field(default_factory=time.monotonic)
    _watchers: list[_Watcher] = field(default_factory=list)

    def stop(self, reason: str) -> None:
        """Ask for its end; only the first reason counts, and what has ended stays as it is."""
        if not self.cancelled:
            self.cancelled = reason
            if self.work is not None:
                # Once only: a second one would break into the tidying up after the first.
                self.work.cancel()

    def tell(self, event: Event | None = None) -> None:
        """Tell the watchers how the job is now; those that do not read miss something."""
        for watcher in self._watchers:
            if event is None or watcher.has_room_for(event):
                watcher.put(JobEvent(self.job, event))

    def leave(self) -> None:
        """Nothing more will be told: the server has done with the job."""
        for watcher in self._watchers:
            watcher.put(None)

    async def watch(self) -> AsyncIterator[JobEvent]:
        """What happens to the job, from now until the server has done with it."""
        watcher = _Watcher()
        self._watchers.append(watcher)
        try:
            yield JobEvent(self.job)
            while (happened := await watcher.get()) is not None:
                yield happened
        finally:
            with contextlib.suppress(ValueError):
                self._watchers.remove(watcher)
