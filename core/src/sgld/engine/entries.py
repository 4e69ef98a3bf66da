"""A request inside the engine, from its arrival to its last event."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from sgld.engine.delivery import plain, to_pixels
from sgld.engine.job import Job
from sgld.engine.running import Running
from sgld.messages import Event, Request


class Entry:
    """A request with outputs still to come, and what it tells its owner.

    `closed` once its last event is on its way; it reports nothing after that. Ids may be used again
    then, so an entry is known by itself and not by its id.
    """

    def __init__(self, request: Request, emit: Callable[[Event], None]) -> None:
        self.request = request
        self.params: Any = None
        self.left = len(request.seeds)
        self.closed = False
        self.running: list[Running] = []
        self.began = 0.0
        self._started = False
        self._emit = emit

    def start(self) -> None:
        """Report the start, the first time it is called."""
        if not self._started:
            self._started, self.began = True, time.perf_counter()
            self.tell(Event("started", self.request.id))

    def tell(self, event: Event) -> None:
        """Report, while the request is open."""
        if not self.closed:
            self._emit(event)

    def elapsed(self) -> float:
        """Seconds since the request was admitted."""
        return time.perf_counter() - self.began

    def step(self, job: Job, step: int, total: int, latents: torch.Tensor | None) -> None:
        """Report a step of a job and, where the request asked for it, its latents."""
        event = self._at(job, step, total)
        self.tell(event("step"))
        every = self.request.preview_every
        if every and latents is not None and step % every == 0 and not self.closed:
            self.tell(event("preview", latents=plain(latents)))

    def preview(self, job: Job, step: int, total: int, frames: torch.Tensor) -> None:
        """Report what a job's result looks like so far."""
        if not self.closed:
            self.tell(self._at(job, step, total)("preview", frames=to_pixels(frames)))

    def part(self, job: Job, part: int, total: int, frames: torch.Tensor) -> None:
        """Report a finished part of a job's clip."""
        if not self.closed:
            self.tell(self._at(job, part, total)("frames", frames=to_pixels(frames)))

    def _at(self, job: Job, step: int, total: int) -> Callable[..., Event]:
        """Makes events of this step of a job."""
        return partial(
            Event,
            request_id=self.request.id,
            index=job.index,
            stage=job.stage,
            step=step,
            total=total,
            seconds=self.elapsed(),
        )

    def stage(self, job: Job, stage: str, seconds: float) -> None:
        """Report the end of a stage and the seconds it took."""
        self.tell(Event("stage", self.request.id, job.index, stage, seconds=seconds))
