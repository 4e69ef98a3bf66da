"""Memory is promised before it is taken: to what sessions can take back, and to causal requests."""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sgld.causal.host import host_bytes
from sgld.causal.state import CausalState
from sgld.engine.build import session_settings
from sgld.engine.call import StageRun
from sgld.engine.executors import worker
from sgld.engine.job import Job
from sgld.engine.sessions.budget import RETRY_AFTER, WISH_SECONDS, Budget, Refusal, Undo
from sgld.engine.stage import Stage
from sgld.messages import Request
from sgld.platforms.cpu import CpuPlatform
from sgld.platforms.platform import Memory
from sgld.testing.sessions import PATIENCE, SessionRig
from sgld.testing.toy_world import ToyWorldPipeline, world_modules
from sgld.testing.toy_world_params import ToyWorldAdapter, ToyWorldParams

HILL = {"prompt": "a hill"}
CPU = torch.device("cpu")
CUDA = torch.device("cuda")
SMALL = ToyWorldParams(**HILL)
STATE = ToyWorldPipeline({}).state_bytes(SMALL)


def undo_of(chunks: int) -> int:
    return ToyWorldPipeline({}).undo_bytes(SMALL, undo=chunks, device=CPU)


class Watched(ToyWorldPipeline):
    """Keeps its states in sight, so that what they hold can be counted."""

    def __init__(self) -> None:
        super().__init__({})
        self.states: list[CausalState] = []

    def open_stages(self, params: Any) -> Sequence[Stage]:
        return (*super().open_stages(params), Note(self.states))

    def held(self) -> int:
        return sum(state.nbytes() for state in self.states)


class Note(Stage):
    id = "note"
    reads = ("state",)

    def __init__(self, states: list[CausalState]) -> None:
        self._states = states

    def run(self, job: Job) -> StageRun:
        self._states.append(job.slots.state)
        return
        yield  # pragma: no cover


def rig_of(pipeline: ToyWorldPipeline | None = None, **keywords: Any) -> SessionRig:
    adapters = {"toy-world": ToyWorldAdapter}
    made = pipeline or ToyWorldPipeline({})
    return SessionRig(made, world_modules(), ToyWorldParams, adapters, **keywords)


def submit(rig: SessionRig, id: str, seeds: tuple[int, ...] = (1,), **params: Any) -> None:
    values = ToyWorldParams(**{**HILL, **params}).model_dump(mode="json")
    rig.engine.submit(Request(id, values, seeds))


def last(rig: SessionRig, id: str) -> str:
    return rig.events(id)[-1].kind


# -- what can be taken back -----------------------------------------------------------------------


@pytest.mark.parametrize("undo", [1, 2, 5])
@pytest.mark.parametrize(
    "more", [{}, {"width": 32, "height": 32, "realtime_causal_kv_cache_num_frames": 9}]
)
def test_undo_holds_what_was_promised_and_no_more(undo: int, more: dict[str, int]) -> None:
    pipeline = Watched()
    # Frames in line with the rest, so that what is held at any moment does not depend on threads.
    rig = rig_of(pipeline, modes={"vae": "component-offload"})
    params = {**HILL, **more}
    promised = rig.open("a", params, rewind_chunks=undo)["undo_bytes"]
    wanted = pipeline.undo_bytes(ToyWorldParams(**params), undo=undo, device=CPU)
    assert promised == wanted > 0
    most = 0
    for number in range(undo + 8):
        rig.ask("a", "event", kind="prompt", control={"prompt": f"hill {number}"})
        rig.send("a", "step")
        while rig.engine.turn():
            most = max(most, pipeline.states[0].host_nbytes())
        rig.send("a", "taken", 0, chunk=number)
    assert most == promised
    rig.close()


def test_nothing_is_promised_where_nothing_can_be_taken_back() -> None:
    pipeline = Watched()
    rig = rig_of(pipeline, memory=STATE, undo_memory=0)
    assert rig.open("a", HILL)["undo_bytes"] == 0
    for _ in range(5):
        rig.step("a")
    assert pipeline.states[0].host_nbytes() == 0
    rig.close()


def test_pinned_memory_comes_in_powers_of_two() -> None:
    assert [host_bytes(size, CUDA) for size in (0, 1, 2, 3, 1024, 1025)] == [0, 1, 2, 4, 1024, 2048]
    assert host_bytes(1025, CPU) == 1025
    there = ToyWorldPipeline({}).undo_bytes(SMALL, undo=3, device=CUDA)
    assert undo_of(3) <= there < 2 * undo_of(3)


def test_too_much_to_take_back_is_refused_by_name() -> None:
    rig = rig_of(undo_memory=undo_of(4))
    request = rig.request("a", HILL, rewind_chunks=64)
    report = rig.answer("a", "open", request=request)
    assert report.code == "rewind_too_large"
    values = dict(report.values)
    assert values.pop("field") == "rewind_chunks"
    assert values == {"fits": 4, "needed": undo_of(64), "free": undo_of(4), "live": 0}
    assert "rewind_chunks=64" in report.message
    assert "At most rewind_chunks=4 would fit." in report.message
    assert rig.sessions.budget.reserved == 0
    rig.open("a", HILL, rewind_chunks=4)
    # What the first one has the others cannot have; its end gives it back.
    report = rig.answer("b", "open", request=rig.request("b", HILL, rewind_chunks=1))
    assert (report.code, report.values["field"]) == ("busy", "rewind_chunks")
    assert (report.values["fits"], report.values["retry_after"]) == (0, RETRY_AFTER)
    assert (report.values["needed"], report.values["free"]) == (undo_of(1), 0)
    rig.open("b", HILL)
    refused = rig.answer("a", "fork", id="c")
    assert (refused.code, refused.values["field"]) == ("busy", "rewind_chunks")
    rig.ask("b", "fork", id="d")
    rig.ask("a", "close")
    rig.drive()
    rig.open("c", HILL, rewind_chunks=1)
    rig.ask("c", "fork", id="e")
    assert rig.sessions.budget.reserved == 4 * STATE + 2 * undo_of(1)
    rig.close()
    assert rig.sessions.budget.reserved == 0


def test_the_remedy_is_told_in_chunks_that_the_client_asked_for() -> None:
    """Three of them are for what waits to be seen, which the client knows nothing of."""
    rig = rig_of(undo_memory=undo_of(5))
    report = rig.answer("a", "open", request=rig.request("a", HILL, rewind_chunks=13, ahead=3))
    assert "rewind_chunks=10 needs" in report.message
    assert report.values["fits"] == 2
    rig.open("a", HILL, rewind_chunks=2 + 3, ahead=3)
    report = rig.answer("b", "open", request=rig.request("b", HILL, rewind_chunks=1, ahead=2))
    assert (report.code, report.values["field"]) == ("invalid_parameter", "ahead")
    rig.close()


def test_on_the_cpu_both_come_out_of_one_memory() -> None:
    memory = 2 * STATE + undo_of(3)
    rig = rig_of(memory=memory)
    fits = max(n for n in range(64) if undo_of(n) <= STATE + undo_of(3))
    report = rig.answer("a", "open", request=rig.request("a", HILL, rewind_chunks=64))
    assert (report.code, report.values["fits"]) == ("rewind_too_large", fits)
    rig.open("a", HILL, rewind_chunks=3)
    assert rig.sessions.budget.reserved == STATE + undo_of(3)
    report = rig.answer("b", "open", request=rig.request("b", HILL, rewind_chunks=1))
    assert (report.code, report.values["field"], report.values["fits"]) == (
        "busy",
        "rewind_chunks",
        0,
    )
    rig.open("b", HILL)
    assert rig.sessions.budget.reserved == memory
    rig.close()


def refused_with(budget: Budget, name: str, needed: int, undo: Undo) -> str:
    try:
        budget.reserve(name, needed, undo)
    except Refusal as refusal:
        return refusal.code
    return ""


@given(st.data())
@settings(max_examples=150)
def test_no_memory_is_ever_overdrawn(data: st.DataObject) -> None:
    """Sessions and requests together, with one memory or two, whatever the order."""
    total, most = data.draw(st.integers(0, 60)), data.draw(st.integers(1, 4))
    host = data.draw(st.none() | st.integers(0, 40))
    now = [0.0]
    budget = Budget(total, most, host, clock=lambda: now[0])
    device: dict[Any, int] = {}
    undone: dict[Any, int] = {}
    sessions: set[Any] = set()
    waits: tuple[str, int] | None = None
    for number in range(data.draw(st.integers(0, 40))):
        act = data.draw(st.sampled_from(["open", "begin", "release", "later"]))
        if act == "later":
            now[0] += data.draw(st.sampled_from([1.0, WISH_SECONDS]))
        if act == "release" and device:
            owner = data.draw(st.sampled_from(sorted(device)))
            budget.release(owner)
            budget.release(owner)
            del device[owner]
            undone.pop(owner, None)
            sessions.discard(owner)
        needed, chunks = data.draw(st.integers(0, 70)), data.draw(st.integers(0, 6))
        name = f"{number:02d}"
        if act == "open":
            everything = needed + (5 * chunks if host is None else 0)
            never = everything > total or (host is not None and 5 * chunks > host)
            code = refused_with(budget, name, needed, Undo(chunks, size=lambda n: 5 * n))
            assert (code not in ("", "busy")) == never
            if not code:
                device[name], undone[name] = needed, 5 * chunks
                sessions.add(name)
        if act == "begin":
            waits = waits or (name, min(needed, total))
            if budget.begin(*waits):
                device[waits[0]] = waits[1]
                waits = None
        on_host = sum(undone.values())
        on_device = sum(device.values()) + (on_host if host is None else 0)
        assert on_device <= total
        assert host is None or on_host <= host
        assert budget.reserved == sum(device.values()) + on_host
        assert budget.live == len(sessions) <= most


# -- requests -------------------------------------------------------------------------------------


def test_requests_wait_for_memory_in_order_of_arrival() -> None:
    pipeline = Watched()
    rig = rig_of(pipeline, memory=2 * STATE)
    for n in range(3):
        submit(rig, f"r{n}", seeds=(1, 2))
    most = 0
    while rig.engine.turn():
        most = max(most, pipeline.held())
        assert rig.sessions.budget.reserved <= 2 * STATE
    assert most <= 2 * STATE
    assert len(pipeline.states) == 6
    begun = [row.request_id for row in rig.told if getattr(row, "kind", "") == "started"]
    assert begun == ["r0", "r1", "r2"]
    assert [last(rig, f"r{n}") for n in range(3)] == ["done"] * 3
    assert rig.sessions.budget.reserved == 0
    rig.close()


def test_a_smaller_one_does_not_overtake() -> None:
    small = ToyWorldPipeline({}).state_bytes(ToyWorldParams(prompt="x", width=16, height=16))
    rig = rig_of(memory=STATE + small)
    submit(rig, "first")
    submit(rig, "large")
    submit(rig, "small", width=16, height=16)
    rig.engine.turn()
    assert not any(event.kind == "started" for event in rig.events("small"))
    rig.engine.cancel("large")
    rig.engine.turn()
    assert any(event.kind == "started" for event in rig.events("small"))
    rig.drive()
    assert (last(rig, "first"), last(rig, "small")) == ("done", "done")
    rig.close()


class Mixed(ToyWorldPipeline):
    """Has jobs without memory as well: those of one frame."""

    def stages(self, params: ToyWorldParams) -> Sequence[Stage]:
        return (Still(),) if params.num_frames == 1 else super().stages(params)


class Still(Stage):
    id = "still"
    writes = ("frames", "latents")

    def run(self, job: Job) -> StageRun:
        job.slots.frames, job.slots.latents = torch.zeros(1, 8, 8, 3, dtype=torch.uint8), None
        return
        yield  # pragma: no cover


def test_jobs_without_memory_do_not_wait_for_those_with() -> None:
    rig = rig_of(Mixed({}), memory=STATE)
    rig.open("a", HILL)
    submit(rig, "waits")
    submit(rig, "still", num_frames=1)
    rig.drive(lambda: last(rig, "still") == "done")
    assert last(rig, "still") == "done"
    assert last(rig, "waits") == "queued"
    rig.ask("a", "close")
    rig.drive()
    assert last(rig, "waits") == "done"
    rig.close()


def test_what_can_never_fit_is_refused_at_once() -> None:
    rig = rig_of(memory=STATE)
    submit(rig, "r", width=64, height=480)
    kinds = [event.kind for event in rig.events("r")]
    failed = rig.events("r")[-1]
    assert (kinds, failed.code) == (["queued", "failed"], "out_of_memory")
    for word in ("realtime_causal_kv_cache_num_frames=6", "height=480", "--session-memory"):
        assert word in failed.message
    assert rig.engine.idle()
    rig.close()


ENDS: dict[str, Callable[[SessionRig], Any]] = {
    "done": lambda rig: rig.drive(),
    "cancelled": lambda rig: (rig.engine.turn(), rig.engine.turn(), rig.engine.cancel("r")),
    "cancelled at once": lambda rig: rig.engine.cancel("r"),
}


@pytest.mark.parametrize("how", ENDS)
def test_memory_comes_back_however_a_request_ends(how: str) -> None:
    rig = rig_of(memory=2 * STATE)
    submit(rig, "r", seeds=(1, 2, 3))
    ENDS[how](rig)
    assert last(rig, "r") == how.partition(" ")[0]
    assert rig.sessions.budget.reserved == 0
    submit(rig, "next")
    rig.drive()
    assert last(rig, "next") == "done"
    rig.close()


@pytest.mark.parametrize("where", ["open", "chunk", "frames", "commit"])
def test_memory_comes_back_when_a_request_fails(where: str) -> None:
    rig = rig_of(memory=STATE)
    submit(rig, "r", fail_at_chunk=1, fail_in=where)
    submit(rig, "next")
    rig.drive()
    assert (last(rig, "r"), last(rig, "next")) == ("failed", "done")
    assert rig.sessions.budget.reserved == 0
    rig.close()


def test_memory_comes_back_when_a_job_cannot_be_made() -> None:
    class Broken(ToyWorldPipeline):
        calls = 0

        def stages(self, params: ToyWorldParams) -> Sequence[Stage]:
            self.calls += 1
            if self.calls > 1:
                raise ValueError("no stages")
            return super().stages(params)

    rig = rig_of(Broken({}), memory=STATE)
    submit(rig, "r")
    rig.drive()
    assert last(rig, "r") == "failed"
    assert rig.sessions.budget.reserved == 0
    rig.close()


def test_memory_is_not_given_away_before_it_is_free() -> None:
    """A request that is cancelled from within its own stage holds its state until that yields."""
    pipeline = Watched()
    seen: list[tuple[int, int]] = []

    def heard(told: Any) -> None:
        if getattr(told, "kind", "") == "step" and not seen:
            rig.engine.cancel("r")
            seen.append((rig.sessions.budget.reserved, pipeline.held()))

    rig = rig_of(pipeline, memory=STATE, heard=heard)
    submit(rig, "r")
    rig.drive()
    ((reserved, held),) = seen
    assert reserved == STATE
    assert held > 0
    assert rig.sessions.budget.reserved == 0 == pipeline.held()
    rig.close()


# -- neither starves the other --------------------------------------------------------------------


def test_sessions_that_come_and_go_do_not_starve_a_request() -> None:
    rig = rig_of(memory=2 * STATE)
    rig.open("s0", HILL)
    rig.open("s1", HILL)
    submit(rig, "r", width=128, height=48)  # needs what both have
    rig.engine.turn()
    for n in range(2):
        rig.ask(f"s{n}", "close")
        late = rig.answer(f"late{n}", "open", request=rig.request(f"late{n}", HILL))
        assert late.code == "busy"
        assert late.values["free"] < STATE  # the rest is for the request, which came first
    rig.drive()
    assert last(rig, "r") == "done"
    rig.open("late", HILL)
    rig.close()


@pytest.mark.parametrize("rewind", [0, 2])
def test_requests_that_stream_in_do_not_starve_a_session(rewind: int) -> None:
    now = [0.0]
    memory = STATE + undo_of(rewind)
    rig = rig_of(memory=memory, clock=lambda: now[0])
    for n in range(20):
        submit(rig, f"r{n}")
    tries = 0
    request = rig.request("s", HILL, rewind_chunks=rewind)
    rig.engine.turn()
    while not rig.reports("s") or rig.reports("s")[-1].code:
        tries += 1
        assert tries < 20
        rig.send("s", "open", request=request)
        for _ in range(20):
            rig.engine.turn()
        now[0] += RETRY_AFTER
    done = [n for n in range(20) if last(rig, f"r{n}") == "done"]
    # Those that ran, and perhaps the one that waited before the session came.
    assert done == list(range(len(done)))
    assert len(done) <= memory // STATE + 1
    rig.ask("s", "close")
    rig.drive()
    assert [last(rig, f"r{n}") for n in range(20)] == ["done"] * 20
    rig.close()


def test_a_session_that_does_not_come_back_is_not_waited_for() -> None:
    """Nothing else happens meanwhile: the engine is woken when its place has lapsed."""
    now, rung = [0.0], list[float]()
    budget = Budget(10, 4, clock=lambda: now[0], alarm=rung.append)
    assert budget.begin("one", 8)
    with pytest.raises(Refusal):
        budget.reserve("session", 6)
    budget.release("one")
    now[0] += 2.0
    assert not budget.begin("two", 8)
    assert not budget.begin("two", 8)
    assert rung == [WISH_SECONDS - 2.0]
    now[0] += WISH_SECONDS
    assert budget.begin("two", 8)


def test_the_engine_wakes_for_who_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sgld.engine.sessions.budget.WISH_SECONDS", 0.01)
    now = [0.0]
    rig = rig_of(memory=STATE, clock=lambda: now[0])
    submit(rig, "one")
    rig.engine.turn()
    assert rig.answer("s", "open", request=rig.request("s", HILL)).code == "busy"
    submit(rig, "two")
    rig.drive(lambda: last(rig, "one") == "done")
    assert not rig.engine.turn()
    assert not rig.engine.idle()
    assert last(rig, "two") == "queued"
    assert rig.woken(PATIENCE)
    now[0] += 0.01
    rig.drive()
    assert last(rig, "two") == "done"
    rig.close()


def test_a_session_that_was_served_holds_nobody_off() -> None:
    budget = Budget(10, 4, clock=lambda: 0.0)
    assert budget.begin("one", 6)
    with pytest.raises(Refusal):
        budget.reserve("session", 5)
    budget.release("one")
    budget.reserve("session", 5)
    assert budget.begin("two", 5)


def test_a_request_that_was_cancelled_waits_for_nothing() -> None:
    rig = rig_of(memory=2 * STATE)
    rig.open("a", HILL)
    submit(rig, "large", width=128, height=48)
    rig.engine.turn()
    assert rig.answer("b", "open", request=rig.request("b", HILL)).code == "busy"
    rig.engine.cancel("large")
    rig.send("c", "open", request=rig.request("c", HILL))  # before the engine's next turn
    assert not rig.reports("c") or not rig.reports("c")[-1].code
    rig.close()


def test_a_session_that_sessions_keep_out_does_not_hold_requests_off() -> None:
    """There is nothing that requests could leave to it."""
    budget = Budget(10, 4)
    budget.reserve("endless", 6)
    assert budget.begin("one", 2)
    for _ in range(3):
        with pytest.raises(Refusal):
            budget.reserve("large", 6)
        assert budget.begin("next", 1)
        budget.release("next")


# -- what there is --------------------------------------------------------------------------------


class Gpu(CpuPlatform):
    """A device with memory of its own."""

    torch_device = CUDA  # type: ignore[assignment]

    def memory(self) -> Memory:
        return Memory(1000, 800, 0, 0)


@pytest.mark.parametrize("asked", [None, 2.0])
def test_budgets_are_made_of_what_is_free_after_loading(
    asked: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan: Any = SimpleNamespace(
        options=SimpleNamespace(session_memory=asked, max_sessions=3),
        adapters={},
        files=SimpleNamespace(name="m"),
        spec=SimpleNamespace(id="p"),
    )
    monkeypatch.setattr(CpuPlatform, "memory", lambda self: Memory(9000, 4000, 0, 0))
    on_gpu, on_cpu = session_settings(plan, Gpu(), {}), session_settings(plan, CpuPlatform(), {})
    assert on_gpu.memory == (600 if asked is None else 2 * 2**30)
    assert on_gpu.undo_memory == 2000
    # One memory, so one budget: the two cannot promise it twice.
    assert on_cpu.memory == (3000 if asked is None else 2 * 2**30)
    assert on_cpu.undo_memory is None


def test_the_worker_looks_again_after_a_cancellation() -> None:
    """The request that is cancelled may be the one that those behind it wait for."""
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    rig = rig_of(memory=STATE)
    rig.open("endless", HILL)
    submit(rig, "waits")
    while rig.engine.turn():
        pass
    asked: list[str] = []

    class Idle:
        def cancel(self, id: str) -> None:
            rig.engine.cancel(id)

        def turn(self) -> bool:
            asked.append("turn")
            inbox.put({"kind": "close"})
            return rig.engine.turn()

        def report_memory(self, *, at_most_every: float) -> None:
            assert asked  # it would wait for ever otherwise

    inbox.put({"kind": "cancel", "id": "waits"})
    drive: Any = worker._drive
    drive(Idle(), inbox)
    assert asked == ["turn"]
    rig.close()
