"""Sessions beside each other and beside ordinary requests: the same bits, and nobody starves."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sgld.engine.sessions.budget import Budget, Refusal
from sgld.engine.sessions.lane import Lane
from sgld.engine.sessions.outlet import Outlet
from sgld.engine.sessions.turns import ORDINARY_EVERY, Reader, Turns
from sgld.messages import Request
from sgld.realtime.messages import SessionReport
from sgld.testing.sessions import SessionRig
from sgld.testing.toy_world import ToyWorldPipeline, ToyWorldVae, world_modules
from sgld.testing.toy_world_params import ToyWorldAdapter, ToyWorldParams

ADAPTERS = {"toy-world": ToyWorldAdapter}
CPU = torch.device("cpu")
PROMPTS = ("a hill", "a lake", "a long road by night", "x")


def rig_of(**keywords: Any) -> SessionRig:
    modules = keywords.pop("modules", None) or world_modules()
    return SessionRig(ToyWorldPipeline({}), modules, ToyWorldParams, ADAPTERS, **keywords)


def frames(rows: list[SessionReport]) -> bytes:
    return b"".join(row.frames.tobytes() for row in rows if row.frames is not None)


def start(rig: SessionRig, number: int) -> str:
    """A session that differs from those with other numbers in everything."""
    id = f"s{number}"
    actions = {"actions": [["w"], ["a"], ["d"]][: 1 + number % 3]}
    params = {
        "prompt": PROMPTS[number % 4],
        "num_inference_steps": 1 + number % 3,
        "width": 32 + 16 * (number % 2),
        "height": 32,
        "fps": 8 + number,
        "realtime_causal_kv_cache_num_frames": 5 + number % 4,
    }
    request = rig.request(
        id,
        params,
        seed=number,
        events=(("camera_actions", actions, number),),
        free_running=True,
        queue_chunks=10,
        max_chunks=5,
    )
    rig.send(id, "open", request=request)
    return id


def alone(number: int) -> bytes:
    rig = rig_of()
    id = start(rig, number)
    rig.drive()
    rig.close()
    return frames(rig.reports(id, "chunk"))


def test_eight_sessions_and_requests_make_what_each_makes_alone() -> None:
    torch.set_num_threads(1)
    wanted = [alone(number) for number in range(8)]
    rig = rig_of()
    requests = [
        Request(f"r{n}", ToyWorldParams(prompt=PROMPTS[n]).model_dump(mode="json"), (n,))
        for n in range(4)
    ]
    apart = rig_of()
    apart.engine.submit(requests[1])
    apart.drive()
    apart.close()
    # Text calls of ordinary requests are shared and remembered; those of sessions are not theirs.
    for request in requests[:2]:
        rig.engine.submit(request)
    ids = [start(rig, number) for number in range(8)]
    for request in requests[2:]:
        rig.engine.submit(request)
    rig.drive()
    for id, expected in zip(ids, wanted, strict=True):
        assert frames(rig.reports(id, "chunk")) == expected
        assert rig.reports(id)[-1].values["reason"] == "complete"
    assert [rig.events(f"r{n}")[-1].kind for n in range(4)] == ["done"] * 4
    rig.close()


def test_chunks_of_sessions_interleave() -> None:
    """The one whose reader runs dry first goes first, call by call."""
    rig = rig_of(clock=lambda: 0.0)
    for id, fps in (("slow", 4), ("fast", 12)):
        params = {"prompt": "x", "fps": fps}
        rig.open(id, params, free_running=True, queue_chunks=100, max_chunks=12)
    begun = {id: rig.sessions._live[id] for id in ("slow", "fast")}
    while begun["fast"].next_index < 9:
        rig.engine.turn()
    assert begun["slow"].next_index == 3
    rig.drive()
    rig.close()


@pytest.mark.parametrize("hungry", [True, False])
def test_neither_sessions_nor_jobs_starve(hungry: bool) -> None:
    """With a clock that stands still a session gets ahead of its reader; with one that runs away it
    is always late."""
    now = [0.0]

    def clock() -> float:
        now[0] += 1000.0 if hungry else 0.0
        return now[0]

    rig = rig_of(clock=clock)
    rig.open("a", {"prompt": "x"}, free_running=True, queue_chunks=1000, max_chunks=100)
    before = rig.engine.forwards.get("transformer", 0)
    values = ToyWorldParams(prompt="y", num_inference_steps=40, num_frames=3)
    rig.engine.submit(Request("r", values.model_dump(mode="json"), (1,)))
    while not any(event.kind == "output" for event in rig.events("r")):
        assert rig.engine.turn()
    of_session = rig.engine.forwards["transformer"] - before - 40
    # Beside its 40 steps the job has two more turns, its text and its frames; and every session is
    # hungry before its first chunk.
    if hungry:
        assert 3 * 40 <= of_session <= 3 * 43
    else:
        assert 40 <= of_session <= 48
    rig.close()


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), max_size=200))
def test_turns_are_shared(rows: list[tuple[bool, bool, bool]]) -> None:
    turns, since_job, since_session = Turns(), 0, 0
    for ordinary, session, hungry in rows:
        if not session:
            since_job = 0
            continue
        taken = turns.session_next(ordinary=ordinary, hungry=hungry)
        if not ordinary:
            assert taken
            since_job = 0
            continue
        since_job = since_job + 1 if taken else 0
        since_session = 0 if taken else since_session + 1
        assert since_job < ORDINARY_EVERY
        assert since_session <= 1


@given(
    st.lists(st.floats(1, 60), min_size=1, max_size=8),
    st.floats(0.001, 1.0),
    st.integers(1, 16),
)
def test_the_most_urgent_reader_is_never_left_behind(
    rates: list[float], cost: float, size: int
) -> None:
    """A late session waits for at most one chunk of each of the others."""
    now = 0.0
    readers = [Reader(0.0, fps) for fps in rates]
    late_since: dict[int, int] = {}
    for turn in range(100):
        for place, reader in enumerate(readers):
            if reader.dry <= now:
                late_since.setdefault(place, turn)
        first = min(range(len(readers)), key=lambda i: (readers[i].dry, i))
        now += cost
        readers[first].given(now, size)
        assert turn - late_since.pop(first, turn) < len(readers)
        assert all(turn - since < len(readers) for since in late_since.values())


@given(st.data())
@settings(max_examples=50)
def test_a_budget_is_never_overdrawn(data: st.DataObject) -> None:
    total, most = data.draw(st.integers(0, 100)), data.draw(st.integers(1, 5))
    budget, held = Budget(total, most), {}
    for number in range(data.draw(st.integers(0, 30))):
        if held and data.draw(st.booleans()):
            owner = data.draw(st.sampled_from(sorted(held)))
            budget.release(owner)
            budget.release(owner)
            del held[owner]
            continue
        needed = data.draw(st.integers(0, 120))
        fits = needed <= total - sum(held.values()) and len(held) < most
        if fits:
            budget.reserve(number, needed)
            held[number] = needed
        else:
            with pytest.raises(Refusal) as refusal:
                budget.reserve(number, needed)
            assert refusal.value.code == ("out_of_memory" if needed > total else "busy")
        assert budget.reserved == sum(held.values()) <= total
        assert budget.live == len(held) <= most


@given(
    st.booleans(),
    st.integers(1, 4),
    st.lists(st.one_of(st.just("offer"), st.integers(0, 12)), max_size=40),
)
def test_an_outlet_is_bounded_and_in_order(drop: bool, limit: int, acts: list[Any]) -> None:
    out: list[SessionReport] = []
    outlet, made, taken = Outlet(out.append, limit, drop), 0, -1
    for act in acts:
        if act == "offer":
            if drop or outlet.waiting < limit:
                outlet.offer(SessionReport("s", "chunk", chunk=made))
                made += 1
        else:
            outlet.taken(act)
            taken = max(taken, act)
        assert outlet.waiting <= limit
        sent = [row.chunk for row in out]
        assert sent == sorted(set(sent))
        if not drop:
            assert sent == list(range(made))
    outlet.flush()
    skipped = sum(row.values["dropped"] for row in out)
    assert skipped + len(out) == made
    if made:
        assert out[-1].chunk == made - 1
    outlet.close()
    outlet.offer(SessionReport("s", "chunk", chunk=made))
    outlet.flush()
    assert len(out) + skipped == made


class GatedVae(ToyWorldVae):
    """Waits inside a decode until it is let on."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.go = threading.Semaphore(0), threading.Semaphore(0)

    def decode_chunk(self, latents: torch.Tensor, last: torch.Tensor | None) -> Any:
        self.entered.release()
        assert self.go.acquire(timeout=60)
        return super().decode_chunk(latents, last)


def gated(**keywords: Any) -> tuple[SessionRig, GatedVae]:
    modules = world_modules()
    vae = GatedVae()
    vae.load_state_dict(modules["vae"].state_dict())
    rig = rig_of(modules={**modules, "vae": vae.requires_grad_(False)}, **keywords)
    return rig, vae


def test_a_chunk_is_decoded_while_the_next_one_is_denoised() -> None:
    rig, vae = gated()
    rig.open("a", {"prompt": "x"}, free_running=True, queue_chunks=2)
    while not vae.entered.acquire(blocking=False):
        rig.engine.turn()
    while rig.engine.turn():
        pass
    # Two steps and the commit of each chunk, and chunk 0 is still being decoded.
    assert rig.engine.forwards["transformer"] == 6
    assert not rig.reports("a", "chunk")
    assert not rig.engine.idle()
    for _ in range(2):
        vae.go.release()
    rig.drive()
    assert [row.chunk for row in rig.reports("a", "chunk")] == [0, 1]
    assert frames(rig.reports("a", "chunk")) == frames(reference(2))
    rig.close()


def test_frames_are_handed_over_before_the_commit_is_done() -> None:
    """The engine's thread stands still after the denoising: the frames come all the same."""
    came = threading.Event()
    rig = rig_of(heard=lambda told: came.set() if getattr(told, "kind", "") == "chunk" else None)
    rig.open("a", {"prompt": "x"}, free_running=True, queue_chunks=1)
    while rig.engine.forwards.get("transformer", 0) < 2:
        rig.engine.turn()
    assert came.wait(60)
    assert rig.engine.forwards["transformer"] == 2
    rig.drive()
    rig.close()


def test_what_waits_for_the_lane_waits_for_that_session_alone() -> None:
    rig, vae = gated()
    rig.open("a", {"prompt": "x"}, free_running=True, queue_chunks=1, rewind_chunks=1)
    while not vae.entered.acquire(blocking=False):
        rig.engine.turn()
    numbers = [rig.send("a", "fork", id="b"), rig.send("a", "rewind", to=0)]
    while rig.engine.turn():
        pass
    assert not rig.reports("a", "answer")
    rig.open("c", {"prompt": "x"})
    for _ in range(9):
        vae.go.release()
    rig.drive()
    assert [row.number for row in rig.reports("a", "answer")] == numbers
    assert frames(rig.reports("a", "chunk")[:1]) == frames(reference(1))
    assert frames(rig.reports("a", "chunk")[1:2]) == frames(reference(1))
    rig.close()


def test_a_session_ends_once_though_the_lane_is_far_ahead() -> None:
    """Several chunks may have left the lane when the engine looks again."""
    rig, vae = gated()
    rig.open("a", {"prompt": "x"}, free_running=True, queue_chunks=9, max_chunks=4)
    while rig.engine.turn():
        pass
    for _ in range(4):
        vae.go.release()
    lane = rig.sessions._lane
    while len(lane._ended) < 4:
        rig._woken.wait(60)
    rig.drive()
    assert [row.kind for row in rig.reports("a")] == ["opened", *["chunk"] * 4, "closed"]
    rig.close()


def test_closing_does_not_wait_for_the_lane_but_freeing_does() -> None:
    rig, vae = gated()
    rig.open("a", {"prompt": "x"}, free_running=True)
    while not vae.entered.acquire(blocking=False):
        rig.engine.turn()
    rig.send("a", "close")
    assert [row.kind for row in rig.reports("a")][-1] == "answer"
    assert rig.sessions.budget.live == 1
    refused = rig.answer("a", "open", request=rig.request("a", {"prompt": "x"}))
    assert refused.code == "session_exists"
    vae.go.release()
    rig.drive()
    assert rig.reports("a")[-1].kind == "closed"
    assert not rig.reports("a", "chunk")
    assert rig.sessions.budget.live == 0
    rig.close()


@pytest.mark.parametrize("mode", ["component-offload", "layerwise-offload"])
def test_a_decoder_that_moves_is_not_used_beside_the_engine(mode: Any) -> None:
    if mode == "layerwise-offload":
        modes = {"transformer": "component-offload", "vae": "component-offload"}
    else:
        modes = {"vae": mode}
    rig = rig_of(modes=modes)
    rig.open("a", {"prompt": "x"}, free_running=True, queue_chunks=9, max_chunks=3, rewind_chunks=1)
    rig.drive()
    assert frames(rig.reports("a", "chunk")) == frames(reference(3))
    rig.close()


def reference(chunks: int) -> list[SessionReport]:
    rig = rig_of()
    rig.open("a", {"prompt": "x"})
    rows = [rig.step("a") for _ in range(chunks)]
    rig.close()
    return rows


def test_a_lane_does_its_tasks_in_order_and_keeps_what_they_raise() -> None:
    woken = threading.Semaphore(0)
    lane, done, go = Lane(CPU, woken.release), [], threading.Event()

    def task(number: int, fails: bool = False) -> Any:
        def work(task: Any) -> None:
            assert go.wait(60)
            assert torch.is_inference_mode_enabled()
            done.append((number, task.cancelled))
            if fails:
                raise ValueError(number)

        return work

    for number, owner in enumerate("abca"):
        lane.submit(owner, task(number, fails=number == 1))
    assert lane.pending("a") == 2
    lane.drop("c")
    assert lane.pending("c") == 0
    go.set()
    for _ in range(3):
        assert woken.acquire(timeout=60)
    ended = list(lane.collect())
    assert done == [(0, False), (1, False), (3, False)]
    assert [str(row.error or "") for row in ended] == ["", "1", ""]
    assert not lane.busy()
    assert not list(lane.collect())
    lane.close()
    lane.close()


@pytest.mark.gpu
def test_on_a_gpu_the_lane_has_a_stream_and_changes_nothing() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    device = torch.device("cuda", 0)

    def run(**keywords: Any) -> bytes:
        modules = {name: module.to(device) for name, module in world_modules().items()}
        rig = rig_of(modules=modules, device=device, **keywords)
        ids = [start(rig, number) for number in range(4)]
        rig.drive()
        rig.close()
        return b"".join(frames(rig.reports(id, "chunk")) for id in ids)

    inline = run(modes={"vae": "component-offload"})
    assert inline == run() == run()
