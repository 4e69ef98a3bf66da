"""Takes jobs from the store to the engine and writes down how they end.

A job is `queued` until its first step, then `in_progress`. What changes often (progress) is kept
here and written down at most once a second; every change of status is written at once, so that a
killed server finds its jobs as they were. An end that the store does not take is kept here and
offered again until it does: nobody has to wait for a database to hear of their result.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import structlog

from sgld.api.errors import SgldError
from sgld.observe.logs import bound
from sgld.observe.metrics import Meter
from sgld.observe.tracing import RequestTrace
from sgld.server.active import Active, JobEvent
from sgld.server.errors import NotReady, QueueFull
from sgld.server.jobs.retention import release_uploads
from sgld.server.jobs.store import Job
from sgld.server.jobs.table import ENDED
from sgld.server.work import Work, output_key

if TYPE_CHECKING:
    from sgld.server.services import Services

__all__ = ["ENDED", "SHUTDOWN", "JobEvent", "Runner"]

log = structlog.get_logger("sgld.server")

REWRITE_SECONDS: Final = 2.0
ANSWER_FIRST: Final = 0.01
"""Seconds by which a picture's answer is ahead of its record in the store: writing that is Python
too, and would take turns with making the answer."""
TIDY_SECONDS: Final = 10.0
"""How long a stop waits for jobs that were told to end."""
SHUTDOWN: Final = "shutdown"
"""The reason of a cancellation by the server's own stop."""
STOPPING: Final = {"code": "not_ready", "message": "the server is stopping."}
RESTARTED: Final = {"code": "server_restarted", "message": "The server was restarted."}


class Runner:
    """Runs jobs, oldest first, at most `max_running` at a time; none before `open`."""

    def __init__(self, services: Services, *, max_running: int, max_queue: int) -> None:
        self._services = services
        self._max_running = max_running
        self._max_queue = max_queue
        self._active: dict[str, Active] = {}
        self._waiting: deque[str] = deque()
        self._running: set[str] = set()
        self._admitting = 0
        self._open = False
        self._stopping: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()
        self._unwritten: dict[str, tuple[Active, dict[str, Any]]] = {}
        self._rewriting: asyncio.Task[None] | None = None

    @property
    def queued(self) -> int:
        """Jobs that wait for a place."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Jobs handed to the engine."""
        return len(self._running)

    async def recover(self) -> int:
        """Take up the jobs that an earlier server left; returns how many. They run once the runner
        is open."""
        services = self._services
        await services.db(services.jobs.requeue_running)
        for job in await services.db(services.jobs.queued):
            if job.kind == "image":
                # Whoever waited for it went away with the server.
                await self._discard(job, [output_key(job, i) for i in _outputs(job)])
                await services.db(services.jobs.update, job.id, status="failed", error=RESTARTED)
                continue
            self._enter(job, RequestTrace())
        return len(self._waiting)

    def open(self) -> None:
        """Begin to run jobs: the engine has shown that it works."""
        self._open = True
        self._schedule()

    def admit_check(self) -> None:
        """Refuse a further job.

        Raises:
            QueueFull: too many wait already.
            NotReady: the server is stopping.
        """
        if self._stopping is not None:
            raise NotReady(STOPPING["message"])
        waiting = len(self._waiting) + self._admitting
        if waiting >= self._max_queue:
            raise QueueFull(f"{waiting} jobs are waiting, which is the limit.", retry_after=10)

    async def admit(self, job: Job, trace: RequestTrace, client: str = "") -> None:
        """Store a job and put it in line; `trace` is ended with the job.

        A video is in the store when this returns. A picture does not outlive the server before it
        has ended, so it is stored then.
        """
        services = self._services
        self.admit_check()
        if job.kind == "video":
            await self._add(job)
        services.metrics.request_started(job.kind)
        services.request_log.received(
            job.request_id,
            kind=job.kind,
            job_id=job.id,
            model=job.model,
            parameters=job.request["params"],
            inputs=job.inputs,
            client=client,
        )
        active = self._enter(job, trace)
        if self._stopping is not None:
            self._stop(active, SHUTDOWN)
        self._schedule()

    async def _add(self, job: Job) -> None:
        adding = asyncio.ensure_future(self._services.db(self._services.jobs.add, job))
        self._admitting += 1
        try:
            await asyncio.shield(adding)
        except asyncio.CancelledError:
            # Nobody has heard of this job; calls of the store keep their order.
            await self._services.db(self._services.jobs.delete, job.id)
            raise
        finally:
            self._admitting -= 1

    def _enter(self, job: Job, trace: RequestTrace) -> Active:
        active = Active(job, Meter(self._services.metrics, job.kind), trace)
        self._active[job.id] = active
        self._waiting.append(job.id)
        return active

    def get(self, job_id: str) -> Job | None:
        """A job whose end is not in the store yet, with its latest progress."""
        active = self._active.get(job_id)
        if active is None and job_id in self._unwritten:
            active = self._unwritten[job_id][0]
        return active.job if active else None

    async def watch(self, job_id: str) -> AsyncIterator[JobEvent]:
        """What happens to a job, from now to its end; nothing when it has ended already. When the
        server stops before, the last event is not an end."""
        active = self._active.get(job_id)
        if active is not None:
            async for happened in active.watch():
                yield happened

    async def cancel(self, job_id: str, reason: str) -> bool:
        """Stop a job after at most one more step; False when it has ended otherwise."""
        active = self._active.get(job_id)
        if active is None:
            return False
        self._stop(active, reason)
        if active.task is not None:
            await asyncio.wait([active.task])
        return active.job.status == "cancelled"

    def drop(self, job_id: str, reason: str) -> None:
        """Stop a job like `cancel`, without waiting for its end."""
        active = self._active.get(job_id)
        if active is not None:
            self._stop(active, reason)

    def _stop(self, active: Active, reason: str) -> None:
        active.stop(reason)
        if active.task is None:
            self._waiting.remove(active.job.id)
            self._begin(active)

    def begin_stop(self, drain_seconds: float) -> None:
        """Take no more jobs and start none; see `stop`."""
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._end_all(drain_seconds), name="stop")

    async def stop(self, drain_seconds: float) -> None:
        """Let what runs end within `drain_seconds`; videos that do not, and all that wait, stay
        queued for the next server. Pictures that do not are cancelled."""
        self.begin_stop(drain_seconds)
        assert self._stopping is not None
        await asyncio.shield(self._stopping)

    async def _end_all(self, drain_seconds: float) -> None:
        for active in list(self._active.values()):
            if not active.begun:
                self._stop(active, SHUTDOWN)
        begun = [active for active in self._active.values() if not active.cancelled]
        if begun:
            log.info("waiting for running jobs", jobs=len(begun), seconds=drain_seconds)
            hurry = asyncio.create_task(self._hurry.wait())
            ends = asyncio.gather(*[active.task for active in begun if active.task])
            await asyncio.wait([hurry, ends], timeout=drain_seconds, return_when="FIRST_COMPLETED")
            hurry.cancel()
        for active in list(self._active.values()):
            self._stop(active, SHUTDOWN)
        tasks = [active.task for active in self._active.values() if active.task]
        if tasks:
            await asyncio.wait(tasks, timeout=TIDY_SECONDS)
        if self._rewriting is not None:
            self._rewriting.cancel()
            await self._rewrite()

    def hurry(self) -> None:
        """End the wait of `stop` now."""
        self._hurry.set()

    def _schedule(self) -> None:
        while self._waiting and len(self._running) < self._max_running and self._may_start():
            active = self._active[self._waiting.popleft()]
            self._running.add(active.job.id)
            self._begin(active)
        self._services.metrics.queue(len(self._waiting))
        self._services.metrics.running(len(self._running))

    def _may_start(self) -> bool:
        return self._open and self._stopping is None

    def _begin(self, active: Active) -> None:
        active.task = asyncio.create_task(self._execute(active), name=f"job-{active.job.id}")

    async def _execute(self, active: Active) -> None:
        """A job's life from its start to its end; never raises, and is never cancelled."""
        job = active.job
        with bound(request_id=job.request_id, job_id=job.id):
            try:
                status, fields = await self._outcome(active)
                if status == "queued":
                    await self._requeue(active)
                else:
                    await self._end(active, status, fields)
            except Exception as error:  # it must not stand in the way of others
                log.error("a job could not be ended", exc_info=error)
            finally:
                self._running.discard(job.id)
                self._active.pop(job.id, None)
                active.leave()
                self._schedule()

    async def _outcome(self, active: Active) -> tuple[str, dict[str, Any]]:
        """Run the job: the status it ends with, and what else is to be noted."""
        if active.cancelled:
            return self._stopped(active)
        work = Work(self._services, active)
        active.work = asyncio.create_task(work.run())
        try:
            await active.work
        except asyncio.CancelledError:
            return self._stopped(active)
        except SgldError as error:
            return "failed", {"error": {"code": error.code, "message": str(error)}}
        except Exception as error:
            log.error("job failed", exc_info=error)
            words = {"code": "internal_error", "message": "The server failed; see its log."}
            return "failed", {"error": words}
        done = {"outputs": work.outputs, "timings": dict(work.timings), "progress": 100}
        return "completed", done

    def _stopped(self, active: Active) -> tuple[str, dict[str, Any]]:
        """How a job ends that did not come to its own end."""
        reason = active.cancelled
        if not reason and self._stopping is None:
            message = "The engine was stopped."
            return "failed", {"error": {"code": "engine_lost", "message": message}}
        if reason not in ("", SHUTDOWN):
            message = f"The job was cancelled ({reason})."
            return "cancelled", {"error": {"code": "cancelled", "message": message}}
        return ("queued", {}) if active.job.kind == "video" else ("cancelled", {"error": STOPPING})

    async def _requeue(self, active: Active) -> None:
        """Leave a job to the next server, as if this one had not tried it."""
        services, job = self._services, active.job
        await self._discard(job, active.keys)
        if job.status == "in_progress":
            await services.db(
                services.jobs.update, job.id, status="queued", progress=0, attempts=job.attempts - 1
            )
        active.job = replace(job, status="queued", progress=0)
        active.trace.finish("requeued")

    async def _end(self, active: Active, status: str, fields: dict[str, Any]) -> None:
        """Write the end of a job down, delete its uploads, tell its watchers."""
        services, job = self._services, active.job
        now = time.time()
        keep = services.options.keep_days
        expires = now + keep * 86400 if keep else None
        fields = {**fields, "status": status, "completed_at": now, "expires_at": expires}
        if status != "completed":
            await self._discard(job, active.keys)
        ended = replace(job, **fields)
        self._account(active, ended)
        if job.kind == "image":
            # Whoever waits for the picture need not wait for the store, too.
            active.job = ended
            active.tell()
            self._running.discard(job.id)
            self._schedule()
            await asyncio.sleep(ANSWER_FIRST)
        try:
            kept = await self._write(ended, fields)
        except SgldError as error:
            log.error("the end of a job is not stored yet", status=status, error=str(error))
            active.job = ended
            self._unwritten[job.id] = (active, fields)
            if self._rewriting is None:
                self._rewriting = asyncio.create_task(self._keep_rewriting(), name="rewriting")
        else:
            active.job = ended
            await self._written(active, kept)
        if job.kind != "image":
            active.tell()

    async def _written(self, active: Active, kept: bool) -> None:
        """What follows once the store has taken a job's end, or does not know the job any more."""
        services, job = self._services, active.job
        try:
            if not kept:
                await self._discard(job, active.keys)
            if job.inputs:
                await services.files(release_uploads, services.jobs, services.uploads, job.id)
        except (SgldError, OSError) as error:  # the next start finds them
            log.warning("uploads not removed", job=job.id, error=str(error))

    async def _keep_rewriting(self) -> None:
        while self._unwritten:
            await asyncio.sleep(REWRITE_SECONDS)
            await self._rewrite()
        self._rewriting = None

    async def _write(self, ended: Job, fields: dict[str, Any]) -> bool:
        """Store the end of a job; False when the store does not know the job any more."""
        services = self._services
        if ended.kind == "image":
            await services.db(services.jobs.add, ended)
            return True
        return await services.db(services.jobs.update, ended.id, **fields)

    async def _rewrite(self) -> None:
        for job_id, (active, fields) in list(self._unwritten.items()):
            try:
                kept = await self._write(active.job, fields)
            except SgldError:
                return
            del self._unwritten[job_id]
            await self._written(active, kept)

    def _account(self, active: Active, job: Job) -> None:
        """Tell metrics, request log and trace how a job ended."""
        services = self._services
        seconds = time.monotonic() - active.accepted
        error = job.error or {}
        code = error.get("code", "")
        if job.status == "cancelled":
            services.metrics.cancelled(job.kind, active.cancelled or SHUTDOWN)
        services.metrics.request_finished(job.kind, job.status, code, seconds)
        services.request_log.finished(
            job.request_id,
            kind=job.kind,
            status=job.status,
            seconds=seconds,
            job_id=job.id,
            code=code,
            message=error.get("message", ""),
            seeds=job.request["seeds"],
            outputs=job.outputs,
            timings=job.timings,
        )
        active.trace.finish(job.status, code)

    async def _discard(self, job: Job, keys: list[str]) -> None:
        """Remove outputs that an unfinished job has stored already."""
        services = self._services
        for key in keys:
            try:
                await services.files(services.outputs.delete, key)
            except SgldError as error:
                log.warning("output not removed", key=key, error=str(error))


def _outputs(job: Job) -> range:
    return range(len(job.request["seeds"]))
