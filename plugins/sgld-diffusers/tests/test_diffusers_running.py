"""A pipeline in the engine: one at a time, cancelled between calls, errors as anywhere."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sgld.api.errors import FeatureError, ParameterError
from sgld.params.serving import ServingOptions
from sgld.plan import make_plan
from sgld.testing.engine_rig import EngineRig


@pytest.fixture(scope="module")
def sd3(checkpoint: Callable[[str], Path]) -> Path:
    return checkpoint("sd3")


def options(folder: Path, **more: Any) -> ServingOptions:
    return ServingOptions(model_path=str(folder), device="cpu", **more)


@pytest.fixture(scope="module")
def loaded(sd3: Path) -> Iterator[EngineRig]:
    with EngineRig(make_plan(options(sd3)), {"width": 64, "height": 64}) as rig:
        yield rig


@pytest.fixture
def rig(loaded: EngineRig) -> EngineRig:
    loaded.told.clear()
    return loaded


def served(rig: EngineRig) -> Any:
    return rig.pipeline.parts["served"]


def pipeline_threads() -> list[str]:
    return [row.name for row in threading.enumerate() if row.name.startswith("sgld-pipeline")]


def failing(rig: EngineRig, monkeypatch: pytest.MonkeyPatch, name: str, error: Exception) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setitem(served(rig).lent[name]._real, "forward", fail)


def test_steps_and_calls_are_the_engines(rig: EngineRig) -> None:
    before = dict(rig.engine.forwards)
    request = rig.request(num_inference_steps=3)
    output = rig.run(request)
    steps = [(event.step, event.total) for event in rig.events(request, "step")]
    assert steps == [(1, 3), (2, 3), (3, 3)]
    counts = {name: n - before.get(name, 0) for name, n in rig.engine.forwards.items()}
    # Both prompts of every text encoder; guidance is one forward of two rows in this pipeline.
    assert counts["transformer"] == 3
    assert counts["vae"] == 1
    assert counts["text_encoder"] == 2
    assert output.latents is not None
    assert output.latents.shape == (1, 16, 8, 8)


def test_the_second_request_waits_for_the_first(rig: EngineRig) -> None:
    first, second = rig.request(seed=1), rig.request(seed=2)
    rig.submit(first, second)
    rig.turn()
    kinds = [(event.request_id, event.kind) for event in rig.told]
    assert kinds.index((first.id, "done")) < kinds.index((second.id, "started"))


def test_a_cancelled_run_leaves_nothing_behind(rig: EngineRig) -> None:
    request = rig.request(num_inference_steps=5)
    rig.submit(request)
    rig.turn(until=lambda: len(rig.events(request, "step")) == 2)
    assert len(pipeline_threads()) == 1
    latents = [event.latents for event in rig.events(request, "preview")]
    assert latents == []
    rig.engine.cancel(request.id)
    assert pipeline_threads() == []
    assert [event.kind for event in rig.events(request)][-1] == "cancelled"
    # The next one is what it would be without the other.
    again = rig.run(rig.request(seed=3))
    assert np.array_equal(again.frames, rig.run(rig.request(seed=3)).frames)


def test_cancelled_from_within_a_step(rig: EngineRig) -> None:
    request = rig.request(num_inference_steps=5)
    rig.submit(request)
    emit = rig.engine._emit

    def cancel_at_two(event: Any) -> None:
        emit(event)
        if getattr(event, "kind", "") == "step" and event.step == 2:
            rig.engine.cancel(request.id)

    rig.engine._emit = cancel_at_two
    entry = rig.engine._open[request.id]
    entry._emit = cancel_at_two
    try:
        rig.turn()
    finally:
        rig.engine._emit = emit
    assert len(rig.events(request, "step")) == 2
    assert pipeline_threads() == []


@pytest.mark.parametrize("component", ["text_encoder_2", "transformer", "vae"])
def test_an_error_of_a_component_is_the_requests(
    rig: EngineRig, monkeypatch: pytest.MonkeyPatch, component: str
) -> None:
    request = rig.request()
    with monkeypatch.context() as patch:
        if component == "vae":
            error = RuntimeError("the decoder broke")
            patch.setitem(served(rig).lent["vae"]._real, "decode", _raiser(error))
        else:
            failing(rig, patch, component, RuntimeError("the decoder broke"))
        rig.submit(request)
        rig.turn()
    [failed] = rig.events(request, "failed")
    assert failed.code == "stage_failed"
    assert "RuntimeError: the decoder broke" in failed.message
    assert pipeline_threads() == []
    assert rig.run(rig.request()).frames.shape == (1, 64, 64, 3)


def _raiser(error: BaseException) -> Any:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    return fail


@pytest.mark.parametrize("where", ["component", "pipeline"])
def test_no_memory_left_is_told_as_anywhere(
    rig: EngineRig, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    request = rig.request()
    shortage = torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 9.00 GiB. GPU 0 has 1 GiB of which 1 MiB is free."
    )
    with monkeypatch.context() as patch:
        if where == "component":
            failing(rig, patch, "transformer", shortage)
        else:
            scheduler = type(served(rig)._pipeline.scheduler)
            patch.setattr(scheduler, "step", _raiser(shortage))
        rig.submit(request)
        rig.turn()
    [failed] = rig.events(request, "failed")
    assert failed.code == "out_of_memory"
    assert "component-offload" in failed.message
    assert rig.run(rig.request()).frames.any()


def test_what_a_failed_run_held_is_freed(rig: EngineRig, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[weakref.ref[torch.Tensor]] = []
    scheduler = type(served(rig)._pipeline.scheduler)

    def step(self: Any, noise: torch.Tensor, *_: Any, **__: Any) -> None:
        held.append(weakref.ref(noise))
        raise RuntimeError("no step")

    request = rig.request()
    with monkeypatch.context() as patch:
        patch.setattr(scheduler, "step", step)
        rig.submit(request)
        rig.turn()
    assert rig.events(request, "failed")
    gc.collect()
    assert [row() for row in held] == [None]


def test_what_the_pipeline_refuses_is_the_requests_fault(rig: EngineRig) -> None:
    request = rig.request(max_sequence_length=600)
    before = dict(rig.engine.forwards)
    rig.submit(request)
    rig.turn()
    [failed] = rig.events(request, "failed")
    assert failed.code == "invalid_parameter"
    assert "StableDiffusion3Pipeline refuses" in failed.message
    assert "512" in failed.message
    assert rig.engine.forwards == before


def test_layers_below_none_are_refused_by_name(rig: EngineRig) -> None:
    with pytest.raises(ParameterError, match="clip_skip=-1"):
        rig.request(clip_skip=-1)


@pytest.mark.parametrize("error", [IndexError("no layer 99"), KeyError(""), RuntimeError("odd.")])
def test_whatever_ends_it_before_its_first_call_is_the_requests_fault(
    rig: EngineRig, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(type(served(rig)._pipeline), "check_inputs", _raiser(error))
        request = rig.request()
        rig.submit(request)
        rig.turn()
    [failed] = rig.events(request, "failed")
    assert failed.code == "invalid_parameter"
    assert "StableDiffusion3Pipeline refuses the request: " in failed.message
    assert ".." not in failed.message
    assert rig.run(rig.request()).frames.any()


def test_too_many_skipped_layers(rig: EngineRig) -> None:
    request = rig.request(clip_skip=99)
    rig.submit(request)
    rig.turn()
    [failed] = rig.events(request, "failed")
    assert failed.code == "invalid_parameter"
    assert "IndexError: tuple index out of range." in failed.message
    assert rig.run(rig.request()).frames.any()


def test_an_odd_end_after_the_first_call_is_no_fault_of_the_request(
    rig: EngineRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(type(served(rig)._pipeline), "prepare_latents", _raiser(RuntimeError("odd")))
        request = rig.request()
        rig.submit(request)
        rig.turn()
    [failed] = rig.events(request, "failed")
    assert failed.code == "stage_failed"


def test_latents_that_are_not_finite_name_the_step(
    rig: EngineRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = served(rig).lent["transformer"]._real["forward"]
    calls: list[int] = []

    def broken(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        (out,) = real(*args, **{**kwargs, "return_dict": False})
        return (out * float("nan") if len(calls) == 2 else out,)

    request = rig.request(num_inference_steps=3)
    with monkeypatch.context() as patch:
        patch.setitem(served(rig).lent["transformer"]._real, "forward", broken)
        rig.submit(request)
        rig.turn()
    [failed] = rig.events(request, "failed")
    assert (failed.code, "step 2" in failed.message) == ("non_finite_output", True)


def test_what_cannot_be_fulfilled_is_refused_at_once(sd3: Path) -> None:
    wrong = options(
        sd3,
        max_running=3,
        batching=4,
        attention={"all": "sdpa"},
        component_weights_paths={"vae": str(sd3 / "vae")},
    )
    with pytest.raises(FeatureError) as caught:
        make_plan(wrong)
    text = str(caught.value)
    for word in ("--max-running 3", "--batching 4", "--attention", "--component-weights-path.vae"):
        assert word in text
    make_plan(options(sd3, max_running=1)).close()


def test_the_engine_is_told_how_many(sd3: Path) -> None:
    plan = make_plan(options(sd3))
    assert (plan.max_running, plan.spec.max_running) == (1, 1)
    plan.close()


def test_requests_are_refused_by_name_before_work(rig: EngineRig) -> None:
    wrong = {"latents": 1, "num_frames": 5, "strengh": 0.5, "width": 65, "height": 64,
             "guidance_scale": "x", "image_path": "a.png"}  # fmt: skip
    with pytest.raises(ParameterError) as caught:
        rig.request(**wrong)
    text = str(caught.value)
    assert "latents=1: is not taken here. The pipeline has it, but" in text
    assert "num_frames=5: is not taken here. This model makes pictures" in text
    assert "strengh=0.5: is unknown." in text
    assert "multiples of 16" in text
    assert "guidance_scale='x': must be a finite number" in text
    assert "image_path" in text


def test_further_arguments_of_the_pipeline_take_effect(rig: EngineRig) -> None:
    plain = rig.run(rig.request())
    for name, value in {"prompt_2": "a fish", "skip_guidance_layers": None, "mu": None,
                        "clip_skip": 1, "guidance_scale": 1.0}.items():  # fmt: skip
        if name in rig.plan.params_class.model_fields and value is not None:
            other = rig.run(rig.request(**{name: value}))
            assert not np.array_equal(plain.frames, other.frames), name
            assert other.parameters[name] == value


def test_each_output_has_a_seed_of_its_own(rig: EngineRig) -> None:
    request = rig.request(seed=8, num_outputs_per_prompt=2)
    rig.submit(request)
    rig.turn()
    outputs = [event.output for event in rig.events(request, "output")]
    assert [row.seed for row in outputs if row is not None] == [8, 9]
    second = rig.run(rig.request(seed=9))
    assert outputs[1] is not None
    assert np.array_equal(outputs[1].frames, second.frames)


def test_a_checkpoint_that_lacks_tensors_is_refused(sd3: Path, tmp_path: Path) -> None:
    import shutil

    from safetensors.torch import load_file, save_file

    from sgld.api.errors import ModelError

    folder = tmp_path / "lacking"
    shutil.copytree(sd3, folder)
    path = next((folder / "transformer").glob("*.safetensors"))
    tensors = load_file(path)
    name = sorted(tensors)[0]
    del tensors[name]
    save_file(tensors, path)
    plan = make_plan(options(folder))
    with pytest.raises(ModelError, match=name.replace(".", r"\.")):
        EngineRig(plan)
    plan.close()
