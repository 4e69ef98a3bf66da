"""The engine: fairness, cancellation, failures, batching, memo, events."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from sgld.api.errors import RequestError
from sgld.engine.call import Call
from sgld.engine.engine import Engine, EngineSettings
from sgld.engine.executors.in_process import InProcessExecutor
from sgld.engine.residency.movers import TorchMover
from sgld.engine.residency.store import ComponentStore
from sgld.messages import Event, Output, Request
from sgld.testing.toy import ToyParams, ToyPipeline, toy_modules

CPU = torch.device("cpu")


def build(
    events: list[Event],
    modules: dict[str, Any] | None = None,
    pipeline: ToyPipeline | None = None,
    **settings: Any,
) -> Engine:
    store = ComponentStore(modules or toy_modules(), {}, TorchMover(CPU))
    return Engine(
        pipeline=pipeline or ToyPipeline({}),
        validate=ToyParams.model_validate,
        store=store,
        device=CPU,
        emit=events.append,
        settings=EngineSettings(**settings),
    )


def request(id: str, *, seeds: tuple[int, ...] = (1,), preview_every: int = 0, **params: Any):
    return Request(id, params, seeds, want_latents=True, preview_every=preview_every)


def drain(engine: Engine) -> None:
    while engine.turn():
        pass


def outputs(events: list[Event]) -> dict[tuple[str, int], Output]:
    return {(e.request_id, e.index): e.output for e in events if e.output is not None}


def alone(id: str, **keywords: Any) -> Output:
    events: list[Event] = []
    engine = build(events, batching="off", max_running=1)
    engine.submit(request(id, **keywords))
    drain(engine)
    return outputs(events)[id, 0]


def close_to(a: Output, b: Output) -> bool:
    assert a.latents is not None
    assert b.latents is not None
    error = np.linalg.norm(a.latents - b.latents) / np.linalg.norm(b.latents)
    return bool(error < 1e-5)


def test_events_tell_the_story_in_order() -> None:
    events: list[Event] = []
    engine = build(events)
    engine.submit(request("r", num_inference_steps=3))
    drain(engine)
    kinds = [e.kind for e in events]
    assert kinds[:2] == ["queued", "started"]
    assert kinds[-2:] == ["output", "done"]
    assert [(e.step, e.total) for e in events if e.kind == "step"] == [(1, 3), (2, 3), (3, 3)]
    stages = [e.stage for e in events if e.kind == "stage"]
    assert stages == ["text", "timesteps", "latents", "denoise", "decode"]
    output = outputs(events)["r", 0]
    assert set(stages) <= set(output.timings)
    assert output.frames.shape == (1, 4, 4, 3)
    assert output.frames.dtype == np.uint8
    assert engine.idle()


MIXED = [
    ("a", {"seeds": (1,), "num_inference_steps": 2, "guidance_scale": 1.0}),
    ("b", {"seeds": (2,), "num_inference_steps": 7, "guidance_scale": 4.0, "prompt": "a dog"}),
    ("c", {"seeds": (3,), "num_inference_steps": 5, "negative_prompt": "blur"}),
    ("d", {"seeds": (4,), "num_inference_steps": 3, "size": 3}),
]


@pytest.mark.parametrize("batching", ["off", "auto", 2, 3, 64])
@pytest.mark.parametrize("max_running", [1, 2, 8])
def test_mixed_jobs_equal_their_solo_runs(batching: Any, max_running: int) -> None:
    events: list[Event] = []
    engine = build(events, batching=batching, max_running=max_running)
    for position, (id, keywords) in enumerate(MIXED):
        engine.submit(request(id, **keywords))
        if position % 2:  # the others join while these are under way
            engine.turn()
            engine.turn()
    drain(engine)
    results = outputs(events)
    for id, keywords in MIXED:
        assert close_to(results[id, 0], alone(id, **keywords))


def test_rows_at_different_steps_share_forwards() -> None:
    events: list[Event] = []
    engine = build(events, batching=8, max_running=8)
    engine.submit(request("early", num_inference_steps=8))
    for _ in range(4):
        engine.turn()
    engine.submit(request("late", num_inference_steps=8))
    drain(engine)
    separate = 2 * 2 * 8
    assert engine.forwards["transformer"] < separate / 2
    assert close_to(outputs(events)["early", 0], alone("early", num_inference_steps=8))


def test_guidance_off_means_one_forward_per_step() -> None:
    events: list[Event] = []
    engine = build(events, batching="off")
    engine.submit(request("r", guidance_scale=1.0, negative_prompt="blur", num_inference_steps=5))
    drain(engine)
    assert engine.forwards["transformer"] == 5
    with_negative = outputs(events)["r", 0]
    without = alone("s", guidance_scale=1.0, num_inference_steps=5)
    assert with_negative.latents is not None
    assert without.latents is not None
    assert np.array_equal(with_negative.latents, without.latents)


def test_jobs_share_nothing_where_the_pipeline_does_not_batch() -> None:
    def forwards(**settings: Any) -> int:
        engine = build([], batching=8, max_running=4, **settings)
        for number in range(4):
            engine.submit(request(f"r{number}", seeds=(number,), num_inference_steps=3))
        drain(engine)
        return engine.forwards["transformer"]

    # Three steps with two passes of guidance, which are one job's own and may share in any case.
    assert forwards(together=False) == 4 * 3
    assert forwards() == 3


def test_auto_batching_stops_at_the_declared_threshold() -> None:
    events: list[Event] = []
    modules = toy_modules()
    engine = build(events, modules, batching="auto", max_running=8)
    # 16 tokens a row and a threshold of 64: four rows at most.
    rows: list[int] = []
    modules["transformer"].register_forward_hook(lambda m, args, out: rows.append(out.shape[0]))
    for number in range(6):
        engine.submit(request(str(number), guidance_scale=1.0))
    drain(engine)
    assert max(rows) == 4


def test_a_short_job_does_not_wait_for_a_long_one() -> None:
    events: list[Event] = []
    engine = build(events, batching="off", max_running=2)
    engine.submit(request("long", num_inference_steps=50, guidance_scale=1.0))
    engine.submit(request("short", num_inference_steps=2, guidance_scale=1.0))
    drain(engine)
    order = [e.request_id for e in events if e.kind == "done"]
    assert order == ["short", "long"]
    done = next(i for i, e in enumerate(events) if e.kind == "done")
    steps = Counter(e.request_id for e in events[:done] if e.kind == "step")
    assert steps["long"] <= steps["short"] + 2


def test_cancel_stops_before_the_next_step_and_frees_state() -> None:
    events: list[Event] = []
    engine = build(events, batching="off")
    engine.submit(request("r", num_inference_steps=20))
    engine.submit(request("other", num_inference_steps=3))
    while not any(e.kind == "step" and e.step == 2 and e.request_id == "r" for e in events):
        engine.turn()
    running = next(r for e, r in engine._ready if e.request.id == "r")
    latents = weakref.ref(running.job.slots.latents)
    steps_before = sum(e.kind == "step" and e.request_id == "r" for e in events)
    assert engine.cancel("r")
    del running
    gc.collect()
    assert latents() is None
    drain(engine)
    assert sum(e.kind == "step" and e.request_id == "r" for e in events) == steps_before
    assert [e.kind for e in events if e.request_id == "r"][-1] == "cancelled"
    assert [e.kind for e in events if e.request_id == "other"][-1] == "done"
    assert not engine.cancel("r")


class Explodes(torch.nn.Module):
    def __init__(self, inner: torch.nn.Module, when: Any, how: Any) -> None:
        super().__init__()
        self.inner, self.when, self.how = inner, when, how

    def forward(self, **inputs: Any) -> torch.Tensor:
        if self.when(inputs):
            return self.how(self.inner(**inputs))
        return self.inner(**inputs)


def raise_error(_: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("kernel failed")


def make_infinite(result: torch.Tensor) -> torch.Tensor:
    return torch.full_like(result, float("inf"))


@pytest.mark.parametrize("batching", ["off", 8])
def test_a_failure_ends_its_own_job_only(batching: Any) -> None:
    modules = toy_modules()
    modules["transformer"] = Explodes(
        modules["transformer"], lambda inputs: inputs["hidden_states"].shape[1] == 9, raise_error
    )
    events: list[Event] = []
    engine = build(events, modules, batching=batching)
    engine.submit(request("bad", size=3))
    engine.submit(request("good", size=4))
    drain(engine)
    last = {e.request_id: e for e in events}
    assert last["bad"].kind == "failed"
    assert last["bad"].code == "stage_failed"
    assert last["bad"].stage == "denoise"
    assert "kernel failed" in last["bad"].message
    assert last["good"].kind == "done"
    assert close_to(outputs(events)["good", 0], alone("good"))


def test_a_failing_shared_forward_fails_only_the_one_at_fault() -> None:
    modules = toy_modules()
    # Fails for any forward that holds a row whose time is 1 and whose text is the bad prompt's.
    marker = modules["text_encoder"](torch.tensor([list(b"bad")]))[0]

    def holds_bad(inputs: dict[str, torch.Tensor]) -> bool:
        return any(torch.allclose(row, marker) for row in inputs["text"])

    modules["transformer"] = Explodes(modules["transformer"], holds_bad, raise_error)
    events: list[Event] = []
    engine = build(events, modules, batching=8)
    engine.submit(request("bad", prompt="bad"))
    engine.submit(request("good", prompt="fine"))
    drain(engine)
    last = {e.request_id: e for e in events}
    assert last["bad"].kind == "failed"
    assert last["good"].kind == "done"
    assert close_to(outputs(events)["good", 0], alone("good", prompt="fine"))


def test_non_finite_values_are_an_error_with_stage_and_step() -> None:
    modules = toy_modules()
    calls = {"n": 0}

    def third(_: Any) -> bool:
        calls["n"] += 1
        return calls["n"] == 3

    modules["transformer"] = Explodes(modules["transformer"], third, make_infinite)
    events: list[Event] = []
    engine = build(events, modules, batching="off")
    engine.submit(request("r", guidance_scale=1.0, num_inference_steps=6))
    drain(engine)
    last = events[-1]
    assert (last.kind, last.code) == ("failed", "non_finite_output")
    assert "stage denoise, step 3" in last.message
    engine.submit(request("next", guidance_scale=1.0))
    drain(engine)
    assert events[-1].kind == "done"


def test_non_finite_pixels_are_an_error() -> None:
    modules = toy_modules()
    modules["vae"].out.bias.data[0] = float("nan")  # type: ignore[union-attr,index,operator]
    events: list[Event] = []
    engine = build(events, modules)
    engine.submit(request("r"))
    drain(engine)
    assert events[-1].code == "non_finite_output"
    assert "decode" in events[-1].message


def test_out_of_memory_ends_one_request_with_a_remedy() -> None:
    def exhaust(_: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError("wanted 9 GiB")

    modules = toy_modules()
    modules["transformer"] = Explodes(modules["transformer"], lambda _: True, exhaust)
    events: list[Event] = []
    engine = build(events, modules)
    engine.submit(request("r"))
    drain(engine)
    assert events[-1].code == "out_of_memory"
    assert "--residency" in events[-1].message


def test_equal_prompts_are_encoded_once() -> None:
    events: list[Event] = []
    engine = build(events, batching="off", max_running=4)
    engine.submit(request("r", seeds=(5, 6, 7)))
    drain(engine)
    assert engine.forwards["text_encoder"] == 2
    results = outputs(events)
    for index, seed in enumerate((5, 6, 7)):
        assert results["r", index].seed == seed
        assert close_to(results["r", index], alone("x", seeds=(seed,)))


def test_outputs_of_one_request_differ_and_come_with_their_seeds() -> None:
    events: list[Event] = []
    engine = build(events)
    engine.submit(request("r", seeds=(11, 12)))
    drain(engine)
    first, second = outputs(events)["r", 0], outputs(events)["r", 1]
    assert first.parameters["seed"] == 11
    assert second.parameters["seed"] == 12
    assert not np.array_equal(first.frames, second.frames)


def test_previews_come_at_the_asked_interval() -> None:
    events: list[Event] = []
    engine = build(events)
    engine.submit(request("r", num_inference_steps=6, preview_every=2))
    drain(engine)
    previews = [e for e in events if e.kind == "preview"]
    assert [e.step for e in previews] == [2, 4, 6]
    final = outputs(events)["r", 0].latents
    assert previews[-1].latents is not None
    assert final is not None
    assert np.array_equal(previews[-1].latents, final)


def test_a_repeated_request_id_is_refused_while_open() -> None:
    engine = build([])
    engine.submit(request("r"))
    with pytest.raises(ValueError, match="already open"):
        engine.submit(request("r"))
    drain(engine)
    engine.submit(request("r"))


def test_reading_an_unwritten_slot_names_it() -> None:
    from sgld.engine.job import Slots

    with pytest.raises(RequestError, match="'latents'"):
        _ = Slots().latents


def test_a_chain_that_reads_too_early_is_refused() -> None:
    from sgld.engine.stage import check_chain
    from sgld.testing.toy import Decode

    with pytest.raises(ValueError, match="latents"):
        check_chain([Decode()])


def test_unmergeable_results_are_refused_by_name() -> None:
    from sgld.engine.batching import part

    calls = [Call("vae", {"x": torch.zeros(1)}, batch_key=1)] * 2
    with pytest.raises(TypeError, match="vae"):
        part(object(), calls)


def test_executor_runs_cancels_and_closes() -> None:
    executor = InProcessExecutor(lambda emit: _engine_for(emit))
    executor.submit([request("a", num_inference_steps=2), request("b", num_inference_steps=10**4)])
    ended: dict[str, str] = {}
    while len(ended) < 2:
        event = executor.next_event(timeout=20)
        assert event is not None
        if event.kind == "done":
            executor.cancel("b")
        if event.kind in ("done", "cancelled", "failed"):
            ended[event.request_id] = event.kind
    assert ended == {"a": "done", "b": "cancelled"}
    executor.close()
    executor.close()


def test_executor_passes_on_a_failure_to_build() -> None:
    def build_fails(emit: Any) -> Engine:
        raise RequestError("no such device")

    with pytest.raises(RequestError, match="no such device"):
        InProcessExecutor(build_fails)


def _engine_for(emit: Any) -> Engine:
    return Engine(
        pipeline=ToyPipeline({}),
        validate=ToyParams.model_validate,
        store=ComponentStore(toy_modules(), {}, TorchMover(CPU)),
        device=CPU,
        emit=emit,
        settings=EngineSettings(batching="off"),
    )


class Odd(ToyPipeline):
    """Two methods that answer what a test wants."""

    answers: ClassVar[dict[str, Any]] = {}

    def stages(self, params: Any) -> Any:
        return self.answers.get("stages", super().stages(params))

    def media(self, job: Any) -> Any:
        media = super().media(job)
        return self.answers["media"](media) if "media" in self.answers else media


@pytest.mark.parametrize(
    ("method", "answer", "what", "wanted"),
    [
        ("stages", None, "stages() returned None", "a sequence of sgld.engine.stage.Stage"),
        ("stages", [7], "stages() returned 7 among its stages", "a sequence of"),
        ("media", lambda _: "fox", "media() returned 'fox'", "a sgld.engine.pipeline.Media"),
        ("media", lambda _: None, "media() returned None", "a sgld.engine.pipeline.Media"),
        ("media", lambda m: replace(m, frames=None), "frames None", "a tensor [F, H, W, 3]"),
        ("media", lambda m: replace(m, frames=m.frames[0]), "frames of shape [", "[F, H, W, 3]"),
    ],
)
def test_what_a_family_answers_is_named(
    monkeypatch: pytest.MonkeyPatch, method: str, answer: Any, what: str, wanted: str
) -> None:
    events: list[Event] = []
    engine = build(events, pipeline=Odd({}))
    monkeypatch.setitem(Odd.answers, method, answer)
    engine.submit(request("bad"))
    drain(engine)
    assert (events[-1].kind, events[-1].code) == ("failed", "stage_failed")
    assert f"pipeline Odd: {method}() returned" in events[-1].message
    assert what in events[-1].message
    assert "It must return" in events[-1].message
    assert wanted in events[-1].message
    monkeypatch.delitem(Odd.answers, method)
    engine.submit(request("good"))
    drain(engine)
    assert events[-1].kind == "done"
