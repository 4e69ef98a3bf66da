"""Owns one device: admits jobs, runs the calls their stages yield, and reports what happens.

The engine is driven from one thread: `submit`, `cancel` and `command` queue wishes, `turn` does one
forward. Between two calls of a job anything may happen to it: other jobs run, its call joins theirs
in one forward, it is cancelled. Nothing here knows a model family.

Whatever a stage, a family or a module does wrong ends its own request or session; `turn` raises
only when the engine itself is lost. `emit` may call `submit`, `cancel` and `command`, unless it is
told of a session's chunk: those that are decoded beside the engine come from another thread.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import structlog
import torch

from sgld.api.errors import RequestError, SgldError
from sgld.engine.admission import Line, Queued
from sgld.engine.batching import BatchLimit
from sgld.engine.causal import CausalPipeline
from sgld.engine.delivery import make_output
from sgld.engine.entries import Entry
from sgld.engine.faults import as_request_error
from sgld.engine.forwards import Forwards, Member
from sgld.engine.job import Job
from sgld.engine.memo import Memo
from sgld.engine.pipeline import Pipeline, stages_of
from sgld.engine.residency.store import ComponentStore
from sgld.engine.running import Running
from sgld.engine.sessions.answers import refusal
from sgld.engine.sessions.budget import Refusal
from sgld.engine.sessions.desk import Sessions
from sgld.engine.sessions.opening import SessionSettings
from sgld.engine.sessions.turns import Turns
from sgld.engine.stage import check_chain
from sgld.messages import Event, Request
from sgld.realtime.messages import SessionCommand, SessionReport

log = structlog.get_logger("sgld.engine")


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How an engine shares its device.

    Args:
        batching: `off`, `auto`, or the most rows that one forward may hold.
        max_running: jobs admitted at once; the others wait in order of arrival.
        memo_bytes: budget for repeated results such as prompt embeddings.
        sessions: what realtime sessions of a causal pipeline need.
        together: whether calls of different jobs may share a forward at all: what a pipeline says
            with the feature `step-batching`. Calls of one job may in any case.
    """

    batching: Literal["off", "auto"] | int = "auto"
    max_running: int = 4
    memo_bytes: int = 64 * 2**20
    sessions: SessionSettings = field(default_factory=SessionSettings)
    together: bool = True


class Engine:
    """Runs requests of one loaded pipeline on one device.

    Args:
        pipeline: the family, already holding its light parts.
        validate: turns a request's parameters into the family's validated object.
        store: the loaded components and where they live.
        device: where calls run and latents live.
        emit: receives every event and report, in order, on the thread that calls `turn`; chunks of
            a session that are decoded beside the engine come, in their order, from another one.
        clock: seconds, never going back; decides which session is the most urgent.
    """

    def __init__(
        self,
        *,
        pipeline: Pipeline,
        validate: Callable[[Any], Any],
        store: ComponentStore,
        device: torch.device,
        emit: Callable[[Event | SessionReport], None],
        settings: EngineSettings = EngineSettings(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pipeline = pipeline
        self._validate = validate
        self._device = device
        self._emit = emit
        self._settings = settings
        limit = BatchLimit(settings.batching, pipeline.batch_tokens)
        memo = Memo(settings.memo_bytes)
        self._forwards = Forwards(
            store, device, limit, memo, self._fault, together=settings.together
        )
        self._open: dict[str, Entry] = {}
        self._ready: deque[tuple[Entry, Running]] = deque()
        self._turns = Turns()
        self._wake: Callable[[], None] | None = None
        self.sessions: Sessions | None = None
        if isinstance(pipeline, CausalPipeline):
            self.sessions = Sessions(
                pipeline,
                validate,
                self._forwards,
                device,
                emit,
                settings.sessions,
                wake=self._woken,
                clock=clock,
            )
        self._queued = Line(pipeline, self.sessions.budget if self.sessions else None)

    @property
    def pipeline(self) -> Pipeline:
        """The family that it runs."""
        return self._pipeline

    @property
    def forwards(self) -> dict[str, int]:
        """Component name → forwards so far."""
        return self._forwards.counts

    def on_wake(self, wake: Callable[[], None]) -> None:
        """Have `wake` called, from another thread, when `turn` has something to do again though
        nothing was asked; before the first session is opened."""
        self._wake = wake

    def _woken(self) -> None:
        if self._wake is not None:
            self._wake()

    def submit(self, request: Request) -> None:
        """Queue a request; its events follow, and the last one says how it ended.

        Raises ValueError when the id is already open.
        """
        if request.id in self._open:
            raise ValueError(f"request id {request.id!r} is already open")
        entry = Entry(request, self._emit)
        self._open[request.id] = entry
        entry.tell(Event("queued", request.id))
        if entry.closed:
            return
        try:
            if not request.seeds:
                raise RequestError("the request has no seed", code="invalid_parameter")
            entry.params = self._validate(request.params)
            self._queued.add(entry)
        except Exception as error:
            self._fail(entry, error, "")

    def cancel(self, request_id: str) -> bool:
        """Drop a request: no further call of it runs and its state is freed. False if unknown."""
        entry = self._open.get(request_id)
        if entry is None:
            return False
        self._close(entry, None)
        self._emit(Event("cancelled", request_id, code="cancelled"))
        return True

    @torch.inference_mode()
    def command(self, command: SessionCommand) -> None:
        """Do what is asked of a session; it is answered by a report."""
        if self.sessions is not None:
            self.sessions.command(command)
        elif command.kind != "taken":
            error = Refusal("this model has no realtime sessions.", code="unsupported_feature")
            self._emit(refusal(command, error))

    def idle(self) -> bool:
        """Whether nothing is queued or running."""
        busy = self.sessions is not None and self.sessions.busy()
        return not busy and not self._queued and not self._ready

    @torch.inference_mode()
    def turn(self) -> bool:
        """Admit what fits and run one forward. False when there was nothing to do."""
        if self.sessions is not None:
            self.sessions.collect()  # what has ended may have left memory for who waits
        self._admit()
        if self.sessions is not None:
            urgent = self.sessions.next()
            if urgent is not None:
                session, hungry = urgent
                if self._turns.session_next(ordinary=bool(self._ready), hungry=hungry):
                    self.sessions.turn(session)
                    return True
        return self._ordinary_turn()

    def _ordinary_turn(self) -> bool:
        """One forward of the job at the head of the line."""
        if not self._ready:
            return False
        # The head keeps its place until its step is complete, so that a step ends soon; then it
        # goes to the back: one step each in turn. Whoever takes part in its forward keeps its own
        # place too: moving it forward could make the others wait without end.
        head = self._ready[0][1]
        waiting = head.waiting()
        touched = [head]
        if waiting:
            place, call = waiting[0]
            line = [running for _, running in self._ready]
            touched = self._forwards.run(Member(head, place, call), line)
        for entry, running in list(self._ready):
            if running in touched and not running.closed and not running.waiting():
                self._advance(entry, running)
        return True

    def close(self) -> None:
        """Cancel everything and free the components."""
        for request_id in list(self._open):
            self.cancel(request_id)
        if self.sessions is not None:
            self.sessions.close()
        self._forwards.close()

    def _admit(self) -> None:
        while len(self._ready) < self._settings.max_running:
            item = self._queued.take()
            if item is None:
                return
            item.entry.start()
            if item.entry.closed:
                self._queued.release([item])
            else:
                self._begin(item)

    def _begin(self, item: Queued) -> None:
        entry = item.entry
        running: Running | None = None
        try:
            stages = stages_of(self._pipeline, "stages", entry.params)
            check_chain(stages)
            job = Job(
                id=f"{entry.request.id}#{item.index}",
                request=entry.request,
                index=item.index,
                params=entry.params,
                device=self._device,
                parts=self._pipeline.parts,
                report=entry.step,
                show=entry.preview,
                give=entry.part,
            )
            running = Running(job, stages, entry.stage, lambda: self._queued.release([item]))
            entry.running.append(running)
            running.start()
        except Exception as error:
            if running is None:
                self._queued.release([item])
            self._fail(entry, error, running.stage if running else "")
            return
        self._place(entry, running)

    def _advance(self, entry: Entry, running: Running) -> None:
        """Resume a job whose calls all have results, and put it to the back of the line."""
        self._ready.remove((entry, running))
        try:
            running.advance()
        except Exception as error:
            self._fail(entry, error, running.stage)
            return
        self._place(entry, running)

    def _place(self, entry: Entry, running: Running) -> None:
        """Put a running job where it belongs: back in line, or out of the door with its output."""
        if running.closed:
            return
        if running.finished:
            self._finish(entry, running)
        else:
            self._ready.append((entry, running))

    def _finish(self, entry: Entry, running: Running) -> None:
        try:
            output = make_output(self._pipeline, running, entry.began)
        except Exception as error:
            self._fail(entry, error, "output")
            return
        running.close()
        entry.running.remove(running)
        entry.left -= 1
        seconds, request_id = entry.elapsed(), entry.request.id
        entry.tell(Event("output", request_id, output.index, seconds=seconds, output=output))
        if entry.left == 0 and not entry.closed:
            self._close(entry, None)
            self._emit(Event("done", request_id, seconds=seconds))

    def _fault(self, running: Running, error: Exception) -> None:
        entry = next(entry for entry, other in self._ready if other is running)
        self._fail(entry, error, running.stage)

    def _fail(self, entry: Entry, error: Exception, stage: str) -> None:
        """End a request with an error, unless one of its own events has ended it meanwhile."""
        if entry.closed:
            return
        self._close(entry, error)
        cause, request_id = as_request_error(error, stage), entry.request.id
        # What sgld raises on purpose says where and why; only surprises need their traceback.
        trace = None if isinstance(error, SgldError) else error
        log.error(
            "request failed",
            request=request_id,
            stage=stage,
            code=cause.code,
            message=str(cause),
            exc_info=trace,
        )
        self._emit(Event("failed", request_id, stage=stage, code=cause.code, message=str(cause)))

    def _close(self, entry: Entry, error: Exception | None) -> None:
        """Take a request out of everything and free its state."""
        entry.closed = True
        del self._open[entry.request.id]
        self._queued.drop(entry)
        self._ready = deque(item for item in self._ready if item[0] is not entry)
        jobs, entry.running = entry.running, []
        for running in jobs:
            if error is None:
                running.close()
            else:
                running.fail(error)
