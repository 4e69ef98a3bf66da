"""Every way a session can end: its state is freed, one report says so, nobody else notices."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from typing import Any

import pytest
import torch

from sgld.causal.state import CausalState
from sgld.engine.call import StageRun
from sgld.engine.job import Job
from sgld.engine.stage import Stage
from sgld.messages import Request
from sgld.realtime.messages import SessionReport
from sgld.testing.sessions import SessionRig
from sgld.testing.toy_world import ToyWorldPipeline, world_modules
from sgld.testing.toy_world_params import ToyWorldAdapter, ToyWorldParams

HILL = {"prompt": "a hill"}
ADAPTERS = {"toy-world": ToyWorldAdapter}


class Watched(ToyWorldPipeline):
    """Keeps an eye on every state that it makes."""

    def __init__(self) -> None:
        super().__init__({})
        self.states: list[CausalState] = []

    def open_stages(self, params: Any) -> tuple[Stage, ...]:
        return (*super().open_stages(params), Note(self.states))

    def held(self) -> int:
        return sum(state.nbytes() + state.host_nbytes() for state in self.states)


class Note(Stage):
    """Writes down the state that was made."""

    id = "note"
    reads = ("state",)

    def __init__(self, states: list[CausalState]) -> None:
        self._states = states

    def run(self, job: Job) -> StageRun:
        self._states.append(job.slots.state)
        return
        yield  # pragma: no cover


def watched(**keywords: Any) -> tuple[SessionRig, Watched]:
    pipeline = Watched()
    rig = SessionRig(pipeline, world_modules(), ToyWorldParams, ADAPTERS, **keywords)
    return rig, pipeline


def ended(rig: SessionRig, id: str) -> SessionReport:
    rig.drive()
    rows = rig.reports(id)
    assert [row.kind for row in rows].count("closed") == 1
    assert rows[-1].kind == "closed"
    return rows[-1]


@pytest.mark.parametrize("where", ["chunk", "frames", "commit"])
@pytest.mark.parametrize("lane", [True, False])
def test_a_failure_in_a_stage_closes_that_session_only(where: str, lane: bool) -> None:
    modes = {} if lane else {"vae": "component-offload"}
    rig, pipeline = watched(modes=modes)
    rig.open("bad", {**HILL, "fail_at_chunk": 2, "fail_in": where}, free_running=True)
    rig.open("good", HILL)
    chunks = [rig.step("good") for _ in range(4)]
    report = ended(rig, "bad")
    assert (report.code, report.values["reason"]) == ("stage_failed", "failed")
    stages = {"chunk": "denoise", "frames": "decode", "commit": "commit"}
    assert report.message.startswith(f"stage {stages[where]} failed: ")
    assert f"told to fail in {where} 1" in report.message
    # What was made before is handed over, also where the lane was still at it.
    assert len(rig.reports("bad", "chunk")) == (2 if where == "commit" else 1)
    assert [row.chunk for row in chunks] == [0, 1, 2, 3]
    assert pipeline.states[0].nbytes() == 0
    assert rig.sessions.budget.live == 1
    rig.close()
    assert pipeline.held() == 0


def test_a_failure_while_it_opens_refuses_it_and_frees_what_there_was() -> None:
    rig, pipeline = watched()
    params = {**HILL, "fail_at_chunk": 1, "fail_in": "open"}
    report = rig.answer("a", "open", request=rig.request("a", params))
    assert (report.kind, report.code) == ("opened", "stage_failed")
    rig.drive()
    assert len(rig.reports("a")) == 1
    assert rig.sessions.budget.live == 0
    rig.open("a", HILL)
    rig.close()
    assert pipeline.held() == 0


def test_a_state_that_was_half_made_is_freed() -> None:
    class Stumbles(Watched):
        def open_stages(self, params: Any) -> tuple[Stage, ...]:
            return (*super().open_stages(params), Fail())

    class Fail(Stage):
        id = "fail"

        def run(self, job: Job) -> StageRun:
            raise ValueError("the second open stage fails")
            yield  # pragma: no cover

    pipeline = Stumbles()
    rig = SessionRig(pipeline, world_modules(), ToyWorldParams, ADAPTERS)
    report = rig.answer("a", "open", request=rig.request("a", HILL))
    assert report.code == "stage_failed"
    assert len(pipeline.states) == 1
    assert pipeline.held() == 0
    rig.close()


@pytest.mark.parametrize("inf", [True, False])
def test_what_is_not_finite_closes_with_its_code(inf: bool) -> None:
    rig, pipeline = watched()
    if not inf:
        # Only the decoded frames are wrong: found on the lane.
        vae: Any = world_modules()["vae"]
        vae.out.bias.fill_(torch.nan)
        rig.close()
        modules = {**world_modules(), "vae": vae}
        rig = SessionRig(pipeline, modules, ToyWorldParams, ADAPTERS)
    params = {**HILL, "inf_at_step": 1} if inf else HILL
    rig.open("a", params, free_running=True)
    report = ended(rig, "a")
    assert report.code == "non_finite_output"
    assert ("stage denoise, step 1" if inf else "stage decode") in report.message
    assert not rig.reports("a", "chunk")
    rig.close()
    assert pipeline.held() == 0


def test_want_of_memory_closes_with_its_code() -> None:
    rig, pipeline = watched()
    rig.open("a", {**HILL, "oom_at_step": 1}, free_running=True)
    assert ended(rig, "a").code == "out_of_memory"
    rig.close()
    assert pipeline.held() == 0


def test_what_waits_is_answered_when_the_session_fails() -> None:
    rig, _ = watched()
    rig.open("a", {**HILL, "fail_at_chunk": 1, "fail_in": "commit"}, rewind_chunks=2)
    rig.send("a", "step")
    rig.engine.turn()
    numbers = [rig.send("a", "snapshot"), rig.send("a", "fork", id="b"), rig.send("a", "pause")]
    rig.drive()
    answers = [row for row in rig.reports("a", "answer") if row.number in numbers]
    assert [row.number for row in answers] == numbers
    assert {row.code for row in answers} == {"stage_failed"}
    assert rig.reports("a")[-1].kind == "closed"
    rig.close()


@pytest.mark.parametrize("turns", range(14))
def test_closing_at_any_moment_frees_all(turns: int) -> None:
    rig, pipeline = watched()
    rig.send("a", "open", request=rig.request("a", HILL, free_running=True, rewind_chunks=2))
    for _ in range(turns):
        rig.engine.turn()
    rig.send("a", "close")
    rig.drive()
    kinds = [row.kind for row in rig.reports("a")]
    if turns:
        assert (kinds[-1], kinds.count("closed")) == ("closed", 1)
    else:
        assert [(row.kind, row.code) for row in rig.reports("a")] == [
            ("answer", ""),
            ("opened", "session_not_found"),
        ]
    assert pipeline.held() == 0
    assert rig.sessions.budget.live == 0
    assert rig.engine.idle()
    rig.close()


@pytest.mark.parametrize("turns", [0, 1, 3, 6])
def test_closing_the_engine_closes_every_session(turns: int) -> None:
    rig, pipeline = watched()
    rig.open("a", HILL, free_running=True)
    rig.open("b", HILL, free_running=True, queue_chunks=5)
    for _ in range(turns):
        rig.engine.turn()
    rig.send("c", "open", request=rig.request("c", HILL))
    rig.close()
    for id in "ab":
        last = rig.reports(id)[-1]
        assert (last.kind, last.code) == ("closed", "cancelled")
        assert [row.kind for row in rig.reports(id)].count("closed") == 1
    assert [(row.kind, row.code) for row in rig.reports("c")] == [("opened", "cancelled")]
    assert pipeline.held() == 0
    assert rig.sessions.budget.reserved == 0


def test_a_family_that_cannot_free_does_not_keep_the_memory_promised() -> None:
    rig, pipeline = watched()
    rig.open("a", HILL)

    def fails() -> None:
        raise RuntimeError("it cannot")

    pipeline.states[0].free = fails  # type: ignore[method-assign]
    rig.ask("a", "close")
    assert ended(rig, "a").code == ""
    assert rig.sessions.budget.live == 0
    rig.close()


def test_nothing_is_told_of_a_session_after_its_end() -> None:
    """Also where its last chunks are still being decoded."""
    rig, _ = watched()
    for id in "abcdefgh":
        rig.open(id, {**HILL, "decode_delay": 0.001}, free_running=True, queue_chunks=4)
    for _ in range(30):
        rig.engine.turn()
    for id in "abcdefgh":
        rig.send(id, "close")
    rig.drive()
    for id in "abcdefgh":
        assert [row.kind for row in rig.reports(id)].index("closed") == len(rig.reports(id)) - 1
    rig.close()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_thousand_sessions_leave_nothing() -> None:
    torch.set_num_threads(1)
    rig, pipeline = watched()
    params = {**HILL, "num_inference_steps": 1, "width": 16, "height": 16}

    def cycle(number: int) -> None:
        id = f"s{number}"
        request = rig.request(id, params, free_running=True, queue_chunks=2, rewind_chunks=1)
        rig.send(id, "open", request=request)
        for _ in range(number % 7):
            rig.engine.turn()
        if number % 3 == 0:
            rig.send(id, "fork", id=f"{id}f")
        if number % 5 == 0:
            rig.send(id, "event", 0, kind="prompt", control={"prompt": "the sea"})
        rig.send(id, "close")
        rig.send(f"{id}f", "close")
        rig.drive()

    for number in range(30):
        cycle(number)
    rig.told.clear()
    pipeline.states.clear()
    gc.collect()
    before = (threading.active_count(), descriptors(), len(gc.get_objects()))
    watching: list[weakref.ref[CausalState]] = []
    for number in range(30, 1030):
        cycle(number)
        assert pipeline.held() == 0
        watching += [weakref.ref(state) for state in pipeline.states]
        pipeline.states.clear()
        if number % 100 == 0:
            rig.told.clear()
    rig.told.clear()
    gc.collect()
    after = (threading.active_count(), descriptors(), len(gc.get_objects()))
    assert after[:2] == before[:2]
    assert after[2] - before[2] < 1000, (before, after)
    assert len(watching) > 700
    assert not any(ref() for ref in watching)
    assert rig.sessions.budget.reserved == 0
    assert rig.engine.idle()
    assert rig.engine.submit(Request("r", {**HILL, "num_frames": 3}, (1,))) is None
    rig.close()


def test_the_lane_ends_with_the_engine() -> None:
    others = set(threading.enumerate())
    rig, _ = watched()
    rig.open("a", HILL)
    rig.step("a")
    lanes = [row for row in set(threading.enumerate()) - others if row.name == "sgld-lane"]
    assert lanes
    rig.close()
    assert not any(thread.is_alive() for thread in lanes)


def test_a_family_that_remembers_less_is_not_asked_to_go_back() -> None:
    class Forgets(ToyWorldPipeline):
        def open_stages(self, params: Any) -> tuple[Stage, ...]:
            return (*super().open_stages(params), Forget())

    class Forget(Stage):
        id = "forget"
        reads = ("state",)

        def run(self, job: Job) -> StageRun:
            job.slots.state.undo = 1
            return
            yield  # pragma: no cover

    rig = SessionRig(Forgets({}), world_modules(), ToyWorldParams, ADAPTERS)
    report = rig.answer("a", "open", request=rig.request("a", HILL, rewind_chunks=2))
    assert (report.code, report.values["field"]) == ("unsupported_feature", "rewind_chunks")
    assert rig.sessions.budget.live == 0
    rig.open("a", HILL, rewind_chunks=1)
    rig.close()
