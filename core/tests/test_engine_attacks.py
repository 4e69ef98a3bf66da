"""What stages, families, modules and callbacks may do wrong: each ends its own request only."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from free_engine import LAST, ONE, Free, FreePipeline, Rig, alive, call
from torch import nn

from sgld.api.errors import RequestError
from sgld.engine.call import Call, StageRun
from sgld.engine.entries import Entry
from sgld.engine.job import Job
from sgld.engine.pipeline import Media
from sgld.engine.running import Running
from sgld.engine.stage import Stage
from sgld.messages import Event, Request
from sgld.testing.toy import ToyPipeline

# --- events that act on the engine ---------------------------------------------------------------


@pytest.mark.parametrize("kind", ["queued", "started", "stage", "step", "preview", "output"])
@pytest.mark.parametrize("batching", ["off", 8])
def test_a_request_may_be_cancelled_from_any_of_its_events(kind: str, batching: Any) -> None:
    rig = Rig(ToyPipeline({}), batching=batching)
    rig.react = lambda e: rig.engine.cancel("r") if (e.kind, e.request_id) == (kind, "r") else None
    rig.engine.submit(Request("r", {}, (1, 2), preview_every=1))
    rig.submit("other")
    rig.drain()
    assert rig.last("r").kind == "cancelled"
    assert rig.last("other").kind == "done"
    assert rig.engine.idle()


@pytest.mark.parametrize("kind", ["stage", "step", "output", "done"])
def test_an_event_may_cancel_another_request(kind: str) -> None:
    rig = Rig(ToyPipeline({}), batching=8)
    rig.react = lambda e: rig.engine.cancel("b") if (e.kind, e.request_id) == (kind, "a") else None
    rig.submit("a", "c")
    rig.submit("b", num_inference_steps=9)
    rig.drain()
    assert rig.last("a").kind == rig.last("c").kind == "done"
    assert rig.last("b").kind == "cancelled"


def test_a_cancelled_id_may_be_used_again_at_once() -> None:
    rig = Rig(ToyPipeline({}), max_running=1)
    again: list[int] = []

    def react(event: Event) -> None:
        if event.kind == "step" and event.step == 2 and not again:
            again.append(1)
            rig.engine.cancel("r")
            rig.submit("r", num_inference_steps=3)

    rig.react = react
    rig.submit("r", seeds=(1, 2), num_inference_steps=5)
    rig.drain()
    assert rig.kinds("r").count("output") == 1
    assert [e.kind for e in rig.events if e.kind in LAST] == ["cancelled", "done"]
    steps = [(e.step, e.total) for e in rig.events if e.kind == "step"]
    assert steps == [(1, 5), (2, 5), (1, 3), (2, 3), (3, 3)]


def test_a_request_cancelled_while_queued_leaves_nothing_in_line() -> None:
    rig = Rig(ToyPipeline({}), max_running=1)
    rig.submit("long", num_inference_steps=8)
    rig.engine.turn()
    for _ in range(5):
        rig.submit("r", seeds=(1, 2, 3))
        rig.engine.cancel("r")
    rig.submit("r")
    assert len(rig.engine._queued) == 1
    rig.drain()
    assert rig.kinds("r").count("output") == 1


def test_a_submit_from_an_event_is_taken() -> None:
    rig = Rig(ToyPipeline({}))
    rig.react = lambda e: rig.submit("b") if (e.kind, e.request_id) == ("done", "a") else None
    rig.submit("a")
    rig.drain()
    assert rig.last("b").kind == "done"


# --- requests and families that are wrong --------------------------------------------------------


def test_parameters_that_do_not_validate_fail_the_request_only() -> None:
    rig = Rig(FreePipeline(lambda job: iter(())))  # type: ignore[arg-type]
    rig.engine._validate = lambda params: params["needed"]
    rig.submit("bad")
    assert "needed" in rig.last("bad").message
    rig.engine.submit(Request("none", {"needed": 1}, ()))
    assert rig.last("none").code == "invalid_parameter"
    assert rig.engine.idle()


def fails(*_: Any) -> Any:
    raise OSError("disk on fire")


@pytest.mark.parametrize("where", ["stages", "media", "used", "seed"])
def test_a_family_that_raises_fails_the_request_only(where: str) -> None:
    before = alive(Running), alive(Job)

    def body(job: Job) -> StageRun:
        yield call(1)

    pipeline = FreePipeline(
        body,
        media=(lambda job: fails() if job.request.id == "bad" else Media("image", ONE, 0))
        if where == "media"
        else None,
        used=(lambda job: fails() if job.request.id == "bad" else {}) if where == "used" else None,
    )
    if where == "stages":
        real = pipeline.stages
        pipeline.stages = lambda params: fails() if params else real(params)  # type: ignore[method-assign]
    rig = Rig(pipeline)
    seeds = (2**70,) if where == "seed" else (1, 2)
    rig.engine.submit(Request("bad", {"x": 1}, seeds))
    rig.submit("good")
    rig.drain()
    assert rig.last("bad").kind == "failed"
    if where != "seed":
        assert "disk on fire" in rig.last("bad").message
    assert rig.last("good").kind == "done"
    assert alive(Running) <= before[0]


# --- stages that are wrong -----------------------------------------------------------------------


def not_a_generator(job: Job) -> Any:
    return None


def yields_none(job: Job) -> Any:
    yield None


def yields_text(job: Job) -> Any:
    yield ["m"]


def unhashable_memo(job: Job) -> StageRun:
    yield call(1, memo=["list"])  # type: ignore[arg-type]


def no_component(job: Job) -> StageRun:
    yield Call("decoder", {})


def no_method(job: Job) -> StageRun:
    yield Call("m", {}, method="encode")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (not_a_generator, "not a generator"),
        (yields_none, "NoneType, not a Call"),
        (yields_text, "list, not a Call"),
        (unhashable_memo, "unhashable"),
        (no_component, "decoder"),
        (no_method, "encode"),
    ],
)
def test_a_stage_against_the_rules_fails_its_request_only(body: Any, message: str) -> None:
    def good(job: Job) -> StageRun:
        job.slots.frames = (yield call(0.25))[None, None, :, :1].expand(1, 1, 2, 3)

    chosen = lambda job: body(job) if job.request.id == "bad" else good(job)  # noqa: E731
    rig = Rig(FreePipeline(chosen), batching=8)
    rig.submit("bad", "good")
    rig.drain()
    assert message in rig.last("bad").message
    assert rig.last("bad").stage == "free"
    assert rig.last("good").kind == "done"


@pytest.mark.parametrize("how", ["cancel", "fail"])
def test_a_stage_that_will_not_be_closed_takes_nothing_along(how: str) -> None:
    before = alive(Running), alive(Job)

    def stubborn(job: Job) -> Any:
        for _ in range(3):
            try:
                yield call(1, rows=2)
            except (GeneratorExit, RuntimeError):
                continue

    def careless(job: Job) -> StageRun:
        try:
            yield call(1)
        finally:
            raise OSError("cleaning up failed")

    kinds = {"stubborn": stubborn, "careless": careless}

    def sibling(job: Job) -> StageRun:
        if job.index == 1:
            yield Call("m", {}, method="nothing")
        yield from kinds.get(job.request.id, good_body)(job)

    rig = Rig(
        FreePipeline(sibling if how == "fail" else lambda j: kinds.get(j.request.id, good_body)(j))
    )
    rig.submit("stubborn", "careless", seeds=(1, 2))
    rig.submit("good")
    if how == "cancel":
        rig.engine.turn()
        assert rig.engine.cancel("stubborn")
        assert rig.engine.cancel("careless")
    rig.drain()
    wanted = "cancelled" if how == "cancel" else "failed"
    assert rig.last("stubborn").kind == rig.last("careless").kind == wanted
    assert rig.last("good").kind == "done"
    assert alive(Running) <= before[0]


def good_body(job: Job) -> StageRun:
    yield call(1)


def test_a_failing_output_runs_the_cleaning_up_of_its_siblings() -> None:
    cleaned: list[tuple[int, str]] = []

    def body(job: Job) -> StageRun:
        try:
            yield call(1)
            if job.index == 1:
                raise OSError("broken")
            yield call(2)
        except BaseException as error:
            cleaned.append((job.index, type(error).__name__))
            raise
        finally:
            job.progress(1, 1)  # nothing may be reported after the end

    rig = Rig(FreePipeline(body), batching="off")
    rig.submit("r", seeds=(1, 2, 3))
    rig.drain()
    assert rig.last("r").kind == "failed"
    assert sorted(cleaned) == [(0, "OSError"), (1, "OSError"), (2, "OSError")]


def test_many_empty_yields_take_turns_and_can_be_cancelled() -> None:
    def idle(job: Job) -> StageRun:
        for _ in range(3000):
            assert (yield []) == []
        job.slots.frames = ONE

    rig = Rig(FreePipeline(idle))
    rig.submit("a", "b")
    for _ in range(10):
        rig.engine.turn()
    rig.engine.cancel("b")
    rig.drain(4000)
    assert rig.last("a").kind == "done"
    assert rig.last("b").kind == "cancelled"


def test_what_is_yielded_decides_what_comes_back() -> None:
    seen: list[Any] = []

    def body(job: Job) -> StageRun:
        seen.append((yield call(1)))
        seen.append((yield [call(2)]))
        seen.append((yield (call(3), call(4, rows=3))))

    rig = Rig(FreePipeline(body), batching=8)
    rig.submit("r")
    rig.drain()
    assert seen[0].tolist() == [[2, 2]]
    assert [value.tolist() for value in seen[1]] == [[[4, 4]]]
    assert [value.shape[0] for value in seen[2]] == [1, 3]
    assert rig.module.rows == [1, 1, 4]


def test_the_same_call_yielded_many_times_gets_as_many_results() -> None:
    seen: list[Any] = []

    def body(job: Job) -> StageRun:
        one = call(5)
        seen.extend((yield [one, one, one, one]))

    rig = Rig(FreePipeline(body), batching=3)
    rig.submit("r")
    rig.drain()
    assert [value.tolist() for value in seen] == [[[10, 10]]] * 4
    assert rig.module.rows == [3, 1]


# --- nothing stays -------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["done", "cancelled", "failed", "closed"])
def test_state_is_freed_on_every_way_out(end: str) -> None:
    before = alive(Running), alive(Job)
    refs: list[Any] = []

    def body(job: Job) -> StageRun:
        job.slots.state = torch.ones(3)
        refs.append(weakref.ref(job.slots.state))
        refs.append(weakref.ref((yield call(1, memo="key"))))
        local = torch.ones(4)
        refs.append(weakref.ref(local))
        yield [call(2), call(3)]
        if end == "failed":
            raise OSError("broken")
        del local

    rig = Rig(FreePipeline(body), batching="off")
    rig.submit("r", seeds=(1, 2))
    if end in ("cancelled", "closed"):
        for _ in range(4):
            rig.engine.turn()
        _ = rig.engine.cancel("r") if end == "cancelled" else rig.engine.close()
    else:
        rig.drain()
    assert len(refs) == 6
    gc.collect()
    assert [ref() for ref in refs] == [None] * 6
    assert alive(Running) <= before[0]
    assert alive(Job) <= before[1]
    held = [weakref.ref(value) for value, _ in rig.engine._forwards._memo._held.values()]
    rig.engine.close()
    assert [ref() for ref in held] == [None] * len(held)


def test_a_thousand_cancelled_requests_leave_nothing() -> None:
    kinds = (Running, Job, Entry, Request)
    # Other tests of this process may still hold some, in a traceback for example.
    before = [alive(kind) for kind in kinds]
    rig = Rig(ToyPipeline({}), batching=8, max_running=3)
    rig.submit("long", num_inference_steps=1000)
    for number in range(1000):
        rig.submit(f"r{number}", seeds=(1, 2, 3, 4))
        if number % 3 == 0:
            rig.engine.turn()
        assert rig.engine.cancel(f"r{number}")
    rig.events.clear()
    assert len(rig.engine._queued) == 0
    assert len(rig.engine._ready) == 1
    assert len(rig.engine._open) == 1
    assert all(alive(kind) <= count + 1 for kind, count in zip(kinds, before, strict=True))
    rig.engine.close()
    assert all(alive(kind) <= count for kind, count in zip(kinds[:2], before[:2], strict=True))


def test_a_retry_finds_the_memory_of_the_failed_forward_free() -> None:
    """The shared forward fails for want of memory: what it had taken must be gone before its calls
    are run alone."""
    held: list[Any] = []
    free_at_retry: list[bool] = []

    class Hungry(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.shape[0] > 1:
                activation = torch.ones(1000)
                held.append(weakref.ref(activation))
                raise torch.OutOfMemoryError("too many rows")
            free_at_retry.append(held[0]() is None if held else False)
            return x

    def body(job: Job) -> StageRun:
        yield call(1)

    rig = Rig(FreePipeline(body), batching=8)
    rig.engine._forwards._store._modules["m"] = Hungry()
    rig.submit("a", "b")
    rig.drain()
    assert rig.last("a").kind == rig.last("b").kind == "done"
    assert free_at_retry == [True, True]


def test_previews_and_latents_are_not_written_to_later() -> None:
    class InPlace(ToyPipeline):
        def stages(self, params: Any) -> Sequence[Stage]:
            def body(job: Job) -> StageRun:
                job.slots.latents = torch.zeros(1, 4)
                for step in range(1, 4):
                    yield []
                    job.slots.latents += 1
                    job.progress(step, 3, job.slots.latents)
                job.slots.frames = ONE

            return [Free(body)]

    rig = Rig(InPlace({}))
    rig.engine.submit(Request("r", {}, (1,), want_latents=True, preview_every=1))
    rig.drain()
    shown = [e.latents.tolist() for e in rig.events if e.latents is not None]
    assert shown == [[[1.0] * 4], [[2.0] * 4], [[3.0] * 4]]


def test_seconds_begin_when_a_request_is_admitted() -> None:
    rig = Rig(ToyPipeline({}), max_running=1)
    rig.submit("a", num_inference_steps=200)
    rig.submit("b", num_inference_steps=1)
    rig.drain()
    assert rig.last("b").seconds < rig.last("a").seconds


def test_errors_of_ours_keep_their_words() -> None:
    def body(job: Job) -> StageRun:
        yield call(1)
        raise RequestError("the well is dry", code="dry", remedy="Dig.")

    rig = Rig(FreePipeline(body))
    rig.submit("r")
    rig.drain()
    assert (rig.last("r").code, rig.last("r").message) == ("dry", "the well is dry Dig.")
