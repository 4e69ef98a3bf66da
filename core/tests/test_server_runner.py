"""The runner's races: cancellation at every moment, stores that fail, engines that are lost."""

from __future__ import annotations

import asyncio
import os
import queue
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from sgld.api.errors import RequestError, SgldError
from sgld.engine.executors.executor import Executor
from sgld.engine.executors.folder import OwnedFolder
from sgld.messages import Event, Output, Request
from sgld.observe.metrics import Metrics
from sgld.observe.requests import RequestLog
from sgld.observe.tracing import RequestTrace, Tracing
from sgld.params.server import ServerOptions
from sgld.server.active import MOST_STEPS, Active
from sgld.server.engine import EngineClient
from sgld.server.errors import NotReady, QueueFull
from sgld.server.jobs.store import Job, JobStore
from sgld.server.outputs.local import LocalOutputs
from sgld.server.runner import Runner
from sgld.server.services import Services
from sgld.server.uploads import Uploads

STEPS = 4


class Script(Executor):
    """An engine that does what the test says."""

    def __init__(self) -> None:
        self.events: queue.Queue[Event | Exception] = queue.Queue()
        self.open: dict[str, Request] = {}
        self.seen: list[str] = []
        self.cancelled: list[str] = []
        self.refuse: Exception | None = None

    def submit(self, requests: Sequence[Request]) -> None:
        if self.refuse is not None:
            raise self.refuse
        for request in requests:
            self.open[request.id] = request
            self.seen.append(request.id)
            self.events.put(Event("queued", request.id))
            self.events.put(Event("started", request.id))

    def cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)
        if self.open.pop(request_id, None):
            self.events.put(Event("cancelled", request_id))

    def next_event(self, timeout: float | None = None) -> Event | None:
        try:
            event = self.events.get(timeout=0.01)
        except queue.Empty:
            return None
        if isinstance(event, Exception):
            raise event
        return event

    def close(self) -> None:
        for request_id in list(self.open):
            self.cancel(request_id)

    def step(self, id: str, number: int = 1) -> None:
        self.events.put(Event("step", id, stage="denoise", step=number, total=STEPS))

    def finish(self, id: str) -> None:
        frames = np.zeros((1, 16, 16, 3), np.uint8)
        output = Output(0, 7, "image", frames, 0, {"prompt": "a"}, timings={"total": 0.1})
        self.open.pop(id, None)
        self.step(id, STEPS)
        self.events.put(Event("output", id, output=output))
        self.events.put(Event("done", id))


class Outputs(LocalOutputs):
    """A folder whose `put` may wait or fail."""

    entered = threading.Event()
    may_store = threading.Event()
    fails = False

    def put(self, key: str, path: Path, media_type: str, *, flush: bool = True) -> None:
        self.entered.set()
        self.may_store.wait(5)
        if self.fails:
            raise RequestError("no space", code="output_store_failed")
        super().put(key, path, media_type, flush=flush)


class Bench:
    """A runner on real stores and a scripted engine."""

    def __init__(self, folder: Path) -> None:
        self.script = Script()
        self.folder = folder
        self.outputs = Outputs(folder / "outputs")
        self.outputs.entered, self.outputs.may_store = threading.Event(), threading.Event()
        self.outputs.may_store.set()
        (folder / "scratch").mkdir()
        unused: Any = None
        self.services = Services(
            options=ServerOptions(), plan=unused, name="m", facts=unused, limits=unused,
            engine=EngineClient(self.script),
            jobs=JobStore.open(f"sqlite:///{folder}/jobs.sqlite3"),
            outputs=self.outputs, uploads=Uploads(folder / "uploads"), metrics=Metrics(),
            request_log=RequestLog.off(), tracing=Tracing(), policy=unused,
            scratch_folder=OwnedFolder(folder / "scratch"),
        )  # fmt: skip
        self.runner = Runner(self.services, max_running=2, max_queue=3)
        self.services.runner = self.runner

    def job(self, kind: str = "video", **fields: Any) -> Job:
        request = {
            "params": {"prompt": "a"},
            "seeds": [7],
            "output": {"format": "png", "extension": ".png", "media_type": "image/png"},
        }
        name: Any = kind
        return Job(
            id=f"{kind}_{uuid.uuid4().hex}", kind=name, created_at=time.time(), request=request,
            **fields,
        )  # fmt: skip

    async def admit(self, kind: str = "video", **fields: Any) -> str:
        job = self.job(kind, **fields)
        await self.runner.admit(job, RequestTrace())
        return job.id

    async def until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(5):
            while not condition():
                await asyncio.sleep(0.005)

    async def begun(self, job_id: str) -> str:
        """Wait until the engine has done a step of the job; returns the request's id."""
        await self.until(lambda: any(id.startswith(job_id) for id in self.script.seen))
        request_id = next(id for id in self.script.seen if id.startswith(job_id))
        self.script.step(request_id)
        await self.until(lambda: self.now(job_id).status == "in_progress")
        return request_id

    def now(self, job_id: str) -> Job:
        job = self.runner.get(job_id) or self.services.jobs.get(job_id)
        assert job is not None
        return job

    def stored(self, job_id: str) -> Job:
        job = self.services.jobs.get(job_id)
        assert job is not None
        return job

    def files(self) -> list[str]:
        return [path.name for path in (self.folder / "outputs").rglob("*.png")]

    def count(self, name: str, **labels: str) -> float:
        return self.services.metrics.registry.get_sample_value(name, labels) or 0.0


Test = Callable[[Bench], Awaitable[None]]
Play = Callable[[Test], None]


@pytest.fixture
def play(tmp_path: Path) -> Play:
    """Runs a coroutine with a bench; afterwards nothing may be left."""

    async def run(test: Test) -> None:
        bench = Bench(tmp_path)
        bench.services.engine.start()
        bench.runner.open()
        try:
            await test(bench)
        finally:
            bench.outputs.may_store.set()
            await bench.runner.stop(0)
            await bench.services.engine.close()
            bench.services.close()
        assert bench.runner.running == bench.runner.queued == 0
        assert list((tmp_path / "scratch").iterdir()) == []
        assert len(asyncio.all_tasks()) == 1

    return lambda test: asyncio.run(run(test))


async def ends_cancelled(bench: Bench, job_id: str, reason: str) -> None:
    assert bench.stored(job_id).status == "cancelled"
    assert bench.runner.get(job_id) is None
    assert bench.count("sgld_cancellations_total", kind="video", reason=reason) == 1
    assert bench.files() == []
    # The place is free again.
    for _ in range(2):
        other = await bench.admit()
        bench.script.finish(await bench.begun(other))
        await bench.until(lambda id=other: bench.stored(id).status == "completed")


def test_cancelled_before_its_task_has_begun(play: Play) -> None:
    async def test(bench: Bench) -> None:
        job_id = await bench.admit()
        assert await bench.runner.cancel(job_id, "request") is True
        assert bench.script.seen == []
        await ends_cancelled(bench, job_id, "request")

    play(test)


def test_cancelled_before_and_after_the_first_step(play: Play) -> None:
    async def test(bench: Bench) -> None:
        first, second = await bench.admit(), await bench.admit()
        await bench.until(lambda: len(bench.script.seen) == 2)
        assert await bench.runner.cancel(first, "early") is True
        await bench.begun(second)
        assert await bench.runner.cancel(second, "late") is True
        assert len(bench.script.cancelled) == 2
        assert bench.script.open == {}
        assert bench.count("sgld_cancellations_total", kind="video", reason="early") == 1
        await ends_cancelled(bench, second, "late")

    play(test)


def test_cancelled_by_many_at_once_counts_once(play: Play) -> None:
    async def test(bench: Bench) -> None:
        ids = [await bench.admit() for _ in range(3)]  # the third waits
        await bench.begun(ids[0])
        for job_id in ids:
            asked = [bench.runner.cancel(job_id, "many") for _ in range(4)]
            assert await asyncio.gather(*asked) == [True] * 4
            assert bench.stored(job_id).status == "cancelled"
            assert await bench.runner.cancel(job_id, "many") is False
        assert bench.count("sgld_cancellations_total", kind="video", reason="many") == 3
        cancelled = {"kind": "video", "status": "cancelled", "code": "cancelled"}
        assert bench.count("sgld_requests_total", **cancelled) == 3

    play(test)


def test_cancelled_while_its_output_is_stored(play: Play) -> None:
    """What the thread stores after the cancellation goes too."""

    async def test(bench: Bench) -> None:
        job_id = await bench.admit()
        request_id = await bench.begun(job_id)
        bench.outputs.may_store.clear()
        bench.script.finish(request_id)
        await bench.until(bench.outputs.entered.is_set)
        cancelling = asyncio.create_task(bench.runner.cancel(job_id, "deleted"))
        await asyncio.sleep(0.05)
        assert not cancelling.done()
        bench.outputs.may_store.set()
        assert await cancelling is True
        await ends_cancelled(bench, job_id, "deleted")

    play(test)


def test_cancelled_too_late_is_completed(play: Play) -> None:
    async def test(bench: Bench) -> None:
        job_id = await bench.admit()
        request_id = await bench.begun(job_id)
        holding = threading.Event()
        bench.script.finish(request_id)
        await bench.until(bench.outputs.entered.is_set)
        blocked = asyncio.create_task(bench.services.db(holding.wait, 5))
        await asyncio.sleep(0.05)  # the end waits for the store's thread now
        cancelling = asyncio.create_task(bench.runner.cancel(job_id, "late"))
        await asyncio.sleep(0.05)
        holding.set()
        assert await cancelling is (bench.stored(job_id).status == "cancelled")
        assert bench.stored(job_id).status == "completed"
        assert len(bench.files()) == 1
        assert bench.count("sgld_cancellations_total", kind="video", reason="late") == 0
        await blocked

    play(test)


def test_an_output_store_that_fails_fails_the_job(play: Play) -> None:
    async def test(bench: Bench) -> None:
        bench.outputs.fails = True
        job_id = await bench.admit()
        bench.script.finish(await bench.begun(job_id))
        await bench.until(lambda: bench.stored(job_id).status == "failed")
        assert (bench.stored(job_id).error or {})["code"] == "output_store_failed"
        bench.outputs.fails = False
        other = await bench.admit()
        bench.script.finish(await bench.begun(other))
        await bench.until(lambda: bench.stored(other).status == "completed")

    play(test)


def test_a_job_store_that_is_away_delays_only_the_note(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sgld.server.runner.REWRITE_SECONDS", 0.02)

    async def test(bench: Bench) -> None:
        job_id = await bench.admit()
        request_id = await bench.begun(job_id)
        update = bench.services.jobs.update

        def away(*_: Any, **__: Any) -> bool:
            raise SgldError("gone", code="job_store_failed")

        bench.services.jobs.update = cast("Any", away)
        bench.script.finish(request_id)
        last = [happened.job.status async for happened in bench.runner.watch(job_id)][-1]
        assert last == "completed"
        assert bench.now(job_id).status == "completed"
        assert bench.stored(job_id).status == "in_progress"
        assert bench.runner.running == 0
        bench.services.jobs.update = update
        await bench.until(lambda: bench.stored(job_id).status == "completed")
        await bench.until(lambda: bench.runner.get(job_id) is None)
        assert len(bench.files()) == 1

    play(test)


def test_a_job_that_the_store_lost_leaves_no_file(play: Play) -> None:
    async def test(bench: Bench) -> None:
        first, second = await bench.admit(), await bench.admit()
        request_id = await bench.begun(first)
        bench.services.jobs.delete(first)
        bench.services.jobs.delete(second)
        bench.script.finish(request_id)
        bench.script.step(bench.script.seen[1])
        last = [happened.job async for happened in bench.runner.watch(second)][-1]
        assert (last.status, (last.error or {})["code"]) == ("failed", "job_lost")
        await bench.until(lambda: bench.runner.running == 0)
        assert bench.files() == []

    play(test)


def test_a_caller_that_is_cancelled_leaves_no_job(play: Play) -> None:
    async def test(bench: Bench) -> None:
        holding = threading.Event()
        blocked = asyncio.create_task(bench.services.db(holding.wait, 5))
        await asyncio.sleep(0.01)
        job = bench.job()
        admitting = asyncio.create_task(bench.runner.admit(job, RequestTrace()))
        await asyncio.sleep(0.01)
        admitting.cancel()
        holding.set()
        with pytest.raises(asyncio.CancelledError):
            await admitting
        await blocked
        assert bench.services.jobs.get(job.id) is None
        assert bench.runner.queued == bench.runner.running == 0

    play(test)


def test_the_queue_is_never_longer_than_it_may_be(play: Play) -> None:
    async def test(bench: Bench) -> None:
        asked = [bench.admit(kind) for kind in ("video", "image") * 10]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        refused = [answer for answer in answers if isinstance(answer, QueueFull)]
        # Two run, three wait; those that came while the first was on its way count as waiting.
        assert bench.runner.running == 2
        assert bench.runner.queued <= 3
        assert len(refused) + bench.runner.running + bench.runner.queued == 20

    play(test)


@pytest.mark.parametrize("hurry", [False, True])
def test_a_stop_leaves_videos_to_the_next_server(play: Play, hurry: bool) -> None:
    async def test(bench: Bench) -> None:
        upload = bench.services.uploads.save(b"x", ".png")
        running = await bench.admit()
        picture = await bench.admit("image")
        waiting = [await bench.admit(), await bench.admit("image", inputs=[upload])]
        request_id = await bench.begun(running)
        await bench.begun(picture)
        watched = asyncio.create_task(_statuses(bench, running))
        await asyncio.sleep(0.02)
        assert bench.stored(running).attempts == 1
        stopping = asyncio.create_task(bench.runner.stop(30 if hurry else 0.1))
        await asyncio.sleep(0.02)
        with pytest.raises(NotReady):
            await bench.admit()
        if hurry:
            bench.runner.hurry()
        await asyncio.wait_for(stopping, 3)
        assert request_id in bench.script.cancelled
        row = bench.stored(running)
        assert (row.status, row.attempts, row.progress) == ("queued", 0, 0)
        assert (await watched)[-1] == "in_progress"
        assert bench.stored(waiting[0]).status == "queued"
        for job_id in (picture, waiting[1]):
            ended = bench.stored(job_id)
            assert (ended.status, (ended.error or {})["code"]) == ("cancelled", "not_ready")
        assert not any((bench.folder / "uploads").iterdir())

    play(test)


async def _statuses(bench: Bench, job_id: str) -> list[str]:
    return [happened.job.status async for happened in bench.runner.watch(job_id)]


def test_a_stop_waits_for_what_runs(play: Play) -> None:
    async def test(bench: Bench) -> None:
        job_id = await bench.admit()
        request_id = await bench.begun(job_id)
        stopping = asyncio.create_task(bench.runner.stop(30))
        await asyncio.sleep(0.05)
        bench.script.finish(request_id)
        await asyncio.wait_for(stopping, 3)
        assert bench.stored(job_id).status == "completed"

    play(test)


def test_nothing_runs_before_the_runner_is_open(play: Play) -> None:
    async def test(bench: Bench) -> None:
        bench.runner._open = False
        jobs = [bench.job(), bench.job("image"), bench.job(status="in_progress", attempts=1)]
        for job in jobs:
            bench.services.jobs.add(job)
        assert await bench.runner.recover() == 2
        await asyncio.sleep(0.05)
        assert (bench.script.seen, bench.runner.queued) == ([], 2)
        lost = bench.stored(jobs[1].id)
        assert (lost.status, (lost.error or {})["code"]) == ("failed", "server_restarted")
        bench.runner.open()
        await bench.until(lambda: len(bench.script.seen) == 2)
        for job, request_id in zip((jobs[0], jobs[2]), bench.script.seen, strict=True):
            assert request_id.startswith(job.id)
            bench.script.finish(await bench.begun(job.id))
        await bench.until(lambda: bench.stored(jobs[2].id).status == "completed")

    play(test)


def test_uploads_of_a_killed_server_go_at_the_start(play: Play) -> None:
    async def test(bench: Bench) -> None:
        names = [bench.services.uploads.save(b"x", ".png") for _ in range(3)]
        for name in names[:2]:
            os.utime(bench.folder / "uploads" / name, (1, 1))
        bench.services.jobs.add(bench.job(inputs=[names[1]]))
        keeper = asyncio.create_task(bench.services.keep())
        await bench.until(lambda: len(list((bench.folder / "uploads").iterdir())) == 2)
        keeper.cancel()
        # One is needed by a job that waits, one has come since the start.
        assert {path.name for path in (bench.folder / "uploads").iterdir()} == {*names[1:]}

    play(test)


def test_an_engine_that_runs_a_job_again_keeps_its_progress(play: Play) -> None:
    async def test(bench: Bench) -> None:
        job_id = await bench.admit()
        request_id = await bench.begun(job_id)
        bench.script.step(request_id, 3)
        await bench.until(lambda: bench.now(job_id).progress == 75)
        bench.script.events.put(Event("queued", request_id))
        bench.script.step(request_id, 1)
        bench.script.finish(request_id)
        seen = [happened.job async for happened in bench.runner.watch(job_id)]
        assert all(job.progress >= 75 for job in seen)
        assert bench.stored(job_id).attempts == 1

    play(test)


@pytest.mark.parametrize("how", ["refuses", "is lost", "stops"])
def test_an_engine_that_is_no_more(play: Play, how: str) -> None:
    async def test(bench: Bench) -> None:
        job_id = await bench.admit()
        request_id = await bench.begun(job_id)
        if how == "refuses":
            bench.script.refuse = RuntimeError("broken")
            bench.script.finish(request_id)
        elif how == "is lost":
            bench.script.events.put(RuntimeError("the device is gone"))
        else:
            bench.script.cancel(request_id)
        if how != "refuses":
            await bench.until(lambda: bench.stored(job_id).status == "failed")
            assert (bench.stored(job_id).error or {})["code"] == "engine_lost"
        after = await bench.admit()
        if how == "stops":
            bench.script.finish(await bench.begun(after))
            await bench.until(lambda: bench.stored(after).status == "completed")
            return
        await bench.until(lambda: bench.stored(after).status == "failed")
        code = {"refuses": "internal_error", "is lost": "engine_lost"}[how]
        assert (bench.stored(after).error or {})["code"] == code

    play(test)


def test_watchers_that_do_not_read_hold_little() -> None:
    async def test() -> None:
        unused: Any = None
        active = Active(Job(id="a", kind="video", created_at=0), unused, RequestTrace())
        quick, slow = active.watch(), active.watch()
        assert (await anext(quick)).event is None
        assert (await anext(slow)).event is None
        waiting = asyncio.ensure_future(anext(quick))
        for step in range(2 * MOST_STEPS):
            active.tell(Event("step", "a", step=step))
            active.tell(Event("preview", "a", latents=np.zeros(4, np.float32)))
            await asyncio.sleep(0)
            if waiting.done():
                waiting = asyncio.ensure_future(anext(quick))
        active.tell()
        active.leave()
        rest = [happened async for happened in slow]
        assert len(rest) <= MOST_STEPS + 1
        assert sum(one.event is not None and one.event.kind == "preview" for one in rest) <= 4
        assert rest[-1].event is None
        await waiting
        assert [happened async for happened in quick][-1].event is None
        assert active._watchers == []

    asyncio.run(test())
