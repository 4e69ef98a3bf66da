"""Owns one device: admits jobs, runs the calls their stages yield, and reports what happens.

The engine is driven from one thread: `submit` and `cancel` queue wishes, `turn` does one forward.
Between two calls of a job anything may happen to it: other jobs run, its call joins theirs in one
forward, it is cancelled. Nothing here knows a model family.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import structlog
import torch

from sgld.api.errors import RequestError, SgldError
from sgld.engine.batching import BatchLimit, gather, join, part
from sgld.engine.call import Call
from sgld.engine.job import Job
from sgld.engine.memo import Memo
from sgld.engine.pipeline import Pipeline
from sgld.engine.residency.store import ComponentStore
from sgld.engine.running import Running
from sgld.engine.stage import check_chain
from sgld.engine.timing import Share, Stopwatch
from sgld.messages import Event, Output, Request

log = structlog.get_logger("sgld.engine")


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How an engine shares its device.

    Args:
        batching: `off`, `auto`, or the most rows that one forward may hold.
        max_running: jobs admitted at once; the others wait in order of arrival.
        memo_bytes: budget for repeated results such as prompt embeddings.
    """

    batching: Literal["off", "auto"] | int = "auto"
    max_running: int = 4
    memo_bytes: int = 64 * 2**20


@dataclass(slots=True)
class _Open:
    """A request with outputs still to come."""

    request: Request
    params: Any
    started: float
    left: int
    failed: bool = False
    running: list[Running] = field(default_factory=list)


class Engine:
    """Runs requests of one loaded pipeline on one device.

    Args:
        pipeline: the family, already holding its light parts.
        validate: turns a request's parameters into the family's validated object.
        store: the loaded components and where they live.
        device: where calls run and latents live.
        emit: receives every event, in order, on the thread that calls `turn`.
    """

    def __init__(
        self,
        *,
        pipeline: Pipeline,
        validate: Callable[[Any], Any],
        store: ComponentStore,
        device: torch.device,
        emit: Callable[[Event], None],
        settings: EngineSettings = EngineSettings(),
    ) -> None:
        self._pipeline = pipeline
        self._validate = validate
        self._store = store
        self._device = device
        self._emit = emit
        self._settings = settings
        self._limit = BatchLimit(settings.batching, pipeline.batch_tokens)
        self._memo = Memo(settings.memo_bytes)
        self._open: dict[str, _Open] = {}
        self._queued: deque[tuple[str, int]] = deque()
        self._ready: deque[Running] = deque()
        self.forwards: dict[str, int] = {}

    def submit(self, request: Request) -> None:
        """Queue a request; its events follow. Raises ValueError when the id is already open."""
        if request.id in self._open:
            raise ValueError(f"request id {request.id!r} is already open")
        params = self._validate(request.params)
        self._open[request.id] = _Open(request, params, time.perf_counter(), len(request.seeds))
        self._queued.extend((request.id, index) for index in range(len(request.seeds)))
        self._emit(Event("queued", request.id))

    def cancel(self, request_id: str) -> bool:
        """Drop a request: no further call of it runs and its state is freed. False if unknown."""
        entry = self._open.pop(request_id, None)
        if entry is None:
            return False
        self._drop(entry)
        self._emit(Event("cancelled", request_id, code="cancelled"))
        return True

    def idle(self) -> bool:
        """Whether nothing is queued or running."""
        return not self._queued and not self._ready

    @torch.inference_mode()
    def turn(self) -> bool:
        """Admit what fits and run one forward. False when there was nothing to do."""
        self._admit()
        if not self._ready:
            return False
        head = self._ready.popleft()
        place, call = head.waiting()[0]
        known, value = self._memo.get(call.memo) if call.memo is not None else (False, None)
        if known:
            head.settle(place, value, None)
            self._proceed(head)
            return True
        members = self._gather(head, place, call)
        self._forward(members)
        touched = list(dict.fromkeys(running for running, _, _ in members))
        # A head whose step is not complete keeps its place, so that its step ends soon; the others
        # go to the back: one step each in turn.
        for running in touched:
            if running in self._ready:
                self._ready.remove(running)
        for running in touched:
            self._proceed(running)
        return True

    def close(self) -> None:
        """Cancel everything and free the components."""
        for request_id in list(self._open):
            self.cancel(request_id)
        self._memo.clear()
        self._store.close()

    def _admit(self) -> None:
        while self._queued and len(self._ready) < self._settings.max_running:
            request_id, index = self._queued.popleft()
            entry = self._open.get(request_id)
            if entry is None or entry.failed:
                continue
            if not entry.running:
                self._emit(Event("started", request_id))
            running = self._begin(entry, index)
            if running is not None:
                entry.running.append(running)
                self._step_into(running, entry)

    def _begin(self, entry: _Open, index: int) -> Running | None:
        job = Job(
            id=f"{entry.request.id}#{index}",
            request=entry.request,
            index=index,
            params=entry.params,
            device=self._device,
            parts=self._pipeline.parts,
            report=self._report,
        )
        try:
            stages = self._pipeline.stages(entry.params)
            check_chain(list(stages))
        except Exception as error:
            self._fail_request(entry, error, "")
            return None
        return Running(job, stages, self._report_stage)

    def _step_into(self, running: Running, entry: _Open) -> None:
        try:
            running.start()
        except Exception as error:
            self._fail_request(entry, error, running.stage)
            return
        self._place(running, front=False)

    def _gather(self, head: Running, place: int, call: Call) -> list[tuple[Running, int, Call]]:
        candidates = [(head, at, other) for at, other in head.waiting() if at != place]
        for running in self._ready:
            candidates.extend((running, at, other) for at, other in running.waiting())
        # What is remembered, or computed by this very forward, need not be computed again.
        if call.memo is not None:
            candidates = [c for c in candidates if c[2].memo != call.memo]
        by_call = {id(other): (running, at) for running, at, other in candidates}
        chosen = gather(call, (other for _, _, other in candidates), self._limit)
        members = [(head, place, call)]
        for other in chosen[1:]:
            running, at = by_call[id(other)]
            members.append((running, at, other))
        return members

    def _forward(self, members: Sequence[tuple[Running, int, Call]]) -> None:
        calls = [call for _, _, call in members]
        try:
            results, watch = self._run(calls)
        except Exception as error:
            if len(members) > 1:
                # A shared forward that fails must not take its companions along: each one again,
                # alone, so that only the one at fault fails.
                log.warning("shared forward failed, running its calls alone", error=repr(error))
                for member in members:
                    if not member[0].finished:
                        self._forward([member])
                return
            running = members[0][0]
            entry = self._open.get(running.job.request.id)
            if entry is not None:
                self._fail_request(entry, error, running.stage)
            return
        for (running, place, call), result in zip(members, results, strict=True):
            if call.memo is not None:
                self._memo.put(call.memo, result)
            running.settle(place, result, watch if len(members) == 1 else Share(watch, len(calls)))

    def _run(self, calls: Sequence[Call]) -> tuple[list[Any], Stopwatch]:
        first = calls[0]
        with self._store.acquire(first.component) as module:
            method = module if first.method == "forward" else getattr(module, first.method)
            watch = Stopwatch(self._device)
            result = method(**join(calls))
            watch.stop()
        self.forwards[first.component] = self.forwards.get(first.component, 0) + 1
        return part(result, calls), watch

    def _proceed(self, running: Running) -> None:
        if running.finished:
            return
        if running.waiting():
            self._place(running, front=True)
            return
        entry = self._open.get(running.job.request.id)
        if entry is None:
            return
        try:
            running.advance()
        except Exception as error:
            self._fail_request(entry, error, running.stage)
            return
        self._place(running, front=False)

    def _place(self, running: Running, *, front: bool) -> None:
        """Put a running job where it belongs: back in line, or out of the door with its output."""
        entry = self._open.get(running.job.request.id)
        if entry is None:
            return
        if running.finished:
            self._finish(running, entry)
        elif front:
            self._ready.appendleft(running)
        else:
            self._ready.append(running)

    def _finish(self, running: Running, entry: _Open) -> None:
        job = running.job
        try:
            output = self._output(running, entry)
        except Exception as error:
            self._fail_request(entry, error, running.stage or "output")
            return
        finally:
            running.close()
        seconds = time.perf_counter() - entry.started
        request_id = entry.request.id
        self._emit(Event("output", request_id, index=job.index, seconds=seconds, output=output))
        entry.left -= 1
        if entry.left == 0:
            del self._open[request_id]
            self._emit(Event("done", request_id, seconds=seconds))

    def _output(self, running: Running, entry: _Open) -> Output:
        job = running.job
        begin = time.perf_counter()
        media = self._pipeline.media(job)
        job.finite.note(media.frames, 0)
        job.finite.check(running.stage)
        pixels = media.frames.clamp(0, 1).mul(255).round().to(torch.uint8).cpu().numpy()
        latents = None
        if entry.request.want_latents and media.latents is not None:
            latents = media.latents.float().cpu().numpy()
        timings = dict(running.timings)
        timings["output"] = time.perf_counter() - begin
        timings["total"] = time.perf_counter() - entry.started
        parameters = {**entry.request.params, **self._pipeline.used(job), "seed": job.seed}
        return Output(
            index=job.index,
            seed=job.seed,
            kind=media.kind,
            frames=pixels,
            fps=media.fps,
            parameters=parameters,
            latents=latents,
            timings=timings,
        )

    def _fail_request(self, entry: _Open, error: Exception, stage: str) -> None:
        request_id = entry.request.id
        self._open.pop(request_id, None)
        entry.failed = True
        for running in entry.running:
            if not running.finished:
                running.fail(error)
        self._drop(entry)
        cause = as_request_error(error, stage)
        log.error(
            "request failed", request=request_id, stage=stage, code=cause.code, exc_info=error
        )
        self._emit(Event("failed", request_id, stage=stage, code=cause.code, message=str(cause)))

    def _drop(self, entry: _Open) -> None:
        entry.failed = True
        for running in entry.running:
            if running in self._ready:
                self._ready.remove(running)
            running.close()
        entry.running = []

    def _report(self, job: Job, step: int, total: int, latents: torch.Tensor | None) -> None:
        entry = self._open.get(job.request.id)
        if entry is None:
            return
        stage = job.stage
        seconds = time.perf_counter() - entry.started
        self._emit(
            Event("step", job.request.id, job.index, stage, step=step, total=total, seconds=seconds)
        )
        every = entry.request.preview_every
        if every and latents is not None and step % every == 0:
            array = latents.float().cpu().numpy()
            self._emit(
                Event(
                    "preview",
                    job.request.id,
                    job.index,
                    stage,
                    step=step,
                    total=total,
                    seconds=seconds,
                    latents=array,
                )
            )

    def _report_stage(self, job: Job, stage: str, seconds: float) -> None:
        self._emit(Event("stage", job.request.id, job.index, stage, seconds=seconds))


def as_request_error(error: Exception, stage: str) -> SgldError:
    """The error a caller sees: ours as it is, memory exhaustion by name, others by stage."""
    if isinstance(error, SgldError):
        return error
    if isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and "not enough memory" in str(error)
    ):
        return RequestError(
            f"stage {stage or 'start'} needs more memory than the device has free: {error}",
            code="out_of_memory",
            remedy="Try a smaller size, fewer frames, or --residency all=component-offload.",
        )
    return RequestError(f"stage {stage or 'start'} failed: {type(error).__name__}: {error}")
