"""klein KV's remembered references are state of one job: computed once, and gone with it."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import oracle2
import pytest
import torch

import sgld
from sgld.messages import Request
from sgld_flux.models.flux2 import Flux2Transformer
from sgld_flux.stages.predict2 import Predict
from sgld_flux.stages.references2 import RememberReferences

Tiny = Callable[..., Path]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[torch.Tensor]]:
    """Weak references to every memory that the transformer makes."""
    found: list[weakref.ref[torch.Tensor]] = []
    plain = Flux2Transformer.remember

    def noted(self: Any, references: Any, grids: Any) -> Any:
        memory = plain(self, references, grids)
        found.append(weakref.ref(memory))
        return memory

    monkeypatch.setattr(Flux2Transformer, "remember", noted)
    return found


def gone(references: list[Any]) -> bool:
    """Whether nothing holds them, within a moment: the engine has a thread of its own."""
    for _ in range(100):
        gc.collect()
        if all(reference() is None for reference in references):
            return True
        time.sleep(0.02)
    return False


def load(tiny: Tiny, **options: Any) -> sgld.Model:
    folder = str(tiny("klein_kv", "testing2"))
    return sgld.load(folder, **{"device": "cpu", "dtype": "float32", **options})


def picture(seed: int = 0) -> Any:
    return np.asarray(oracle2.picture(seed=seed))


def test_references_are_remembered_once_and_freed_with_the_request(tiny: Tiny, made: Any) -> None:
    with load(tiny) as model:
        model.generate(prompt="x", images=[picture()], seed=1, num_inference_steps=6)
        assert len(made) == 1
        assert gone(made)
        model.generate(prompt="x", seed=1, num_inference_steps=2)
        assert len(made) == 1


def test_a_cancelled_request_frees_its_memory(tiny: Tiny, made: Any) -> None:
    with load(tiny) as model:
        asked = model.requests(
            prompt="x", images=[picture()], seed=1, num_inference_steps=500
        )  # fmt: skip
        (request, _), kinds = asked[0], []
        for event in model.run([request]):
            kinds.append(event.kind)
            # Later steps may have been reported already: only the first precedes the cancel.
            if event.kind == "step" and kinds.count("step") == 1:
                assert made[0]() is not None
                model.cancel(request.id)
        assert kinds[-1] == "cancelled"
        assert len(made) == 1
        assert gone(made)


def test_jobs_that_share_the_forward_do_not_share_the_tensor(tiny: Tiny) -> None:
    """A row's job holds only its own row: a longer job must not keep its companions' alive."""
    job = stage_job()
    run = RememberReferences().run(job)
    call = next(run)
    assert call.method == "remember"
    assert call.rows == 1
    together = torch.arange(2 * 24, dtype=torch.float32).view(2, 1, 2, 3, 2, 2)
    with pytest.raises(StopIteration):
        run.send(together[1:])
    kept = job.slots.memory
    assert torch.equal(kept, together[1:])
    assert kept.untyped_storage().nbytes() == kept.nbytes
    assert job.slots.references is None
    assert job.slots.grids == ()
    Predict().finish(job)
    assert job.slots.memory is None


def stage_job() -> Any:
    from sgld.engine.job import Job

    request = Request(id="r", params={}, seeds=(1,))
    job = Job(
        id="r#0", request=request, index=0, params=None, device=torch.device("cpu"),
        parts={"compute_dtype": torch.float32},
    )  # fmt: skip
    job.slots.references, job.slots.grids = torch.zeros(1, 3, 16), ((10, 1, 3),)
    job.slots.latents = torch.zeros(1, 16, 4, 4)
    return job


def test_other_references_are_never_mixed_up(tiny: Tiny) -> None:
    """Two edits of other pictures in one batch each see their own."""
    with load(tiny, batching=4) as model:
        sizes: dict[str, Any] = {"seed": 1, "width": 64, "height": 64, "want_latents": True}
        asked: list[Any] = []
        for seed in (1, 2):
            asked += [r for r, _ in model.requests(prompt="x", images=[picture(seed)], **sizes)]
        found = {
            event.request_id: event.output.latents
            for event in model.run(asked)
            if event.output is not None
        }
        for seed, request in zip((1, 2), asked, strict=True):
            alone = model.generate(prompt="x", images=[picture(seed)], **sizes)
            assert isinstance(alone, sgld.Result)
            expected = alone.outputs[0].latents
            assert expected is not None
            assert np.allclose(found[request.id], expected, atol=1e-5)
        first, second = found.values()
        assert np.abs(first - second).max() > 1e-3
