"""Mixed FLUX.1 requests sharing forwards equal their solo runs; every parameter has an effect."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import oracle1 as oracle
import pytest

import sgld
from sgld.testing.parity import relative_l2
from sgld_flux.models.flux1 import FluxTransformer

Folder = Callable[[str], Path]
SIZE: dict[str, Any] = {"width": 64, "height": 48, "max_sequence_length": 64}
MIXED: list[dict[str, Any]] = [
    {"prompt": "a cat", "seed": 1, "num_inference_steps": 7},
    {"prompt": "a ship in a storm", "seed": 2, "num_inference_steps": 3, "guidance_scale": 1.5},
    {"prompt": "rain", "seed": 3, "num_inference_steps": 5, "true_cfg_scale": 3.0,
     "negative_prompt": "sun"},
    {"prompt": "rain", "seed": 4, "num_inference_steps": 6, "strength": 0.5, "pictured": True},
    {"prompt": "a cat", "seed": 5, "num_inference_steps": 4, "num_outputs_per_prompt": 2},
    {"prompt": "wide", "seed": 6, "num_inference_steps": 3, "width": 80},
]  # fmt: skip


def load(folder: Path, **more: Any) -> Any:
    return sgld.load(str(folder), device="cpu", dtype="float32", **more)


def requests(model: Any, jobs: list[dict[str, Any]]) -> list[Any]:
    made: list[Any] = []
    for job in jobs:
        params = {key: value for key, value in job.items() if key != "pictured"}
        images = [np.asarray(oracle.picture())] if job.get("pictured") else []
        made += model.requests(images=images, want_latents=True, **{**SIZE, **params})
    return [request for request, _ in made]


def outputs(events: Any) -> list[Any]:
    found = [event.output for event in events if event.output is not None]
    return sorted(found, key=lambda output: output.seed)


@pytest.fixture(scope="module")
def solo(tiny: Folder) -> list[Any]:
    with load(tiny("dev"), batching="off") as model:
        runs = [outputs(model.run(requests(model, [job]))) for job in MIXED]
    return sorted((one for run in runs for one in run), key=lambda output: output.seed)


# Rows of the transformer in all: 7 + 3 + 2·5 + 3 + 2·4 + 3; the last has another size.
ROWS = 34
MOST_FORWARDS = {"auto": 17, 2: 20, 16: 17}


@pytest.mark.parametrize("batching", MOST_FORWARDS)
def test_mixed_requests_equal_their_solo_runs(
    batching: Any, tiny: Folder, solo: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[int] = []
    forward = FluxTransformer.forward

    def counted(self: Any, hidden_states: Any, *args: Any, **more: Any) -> Any:
        rows.append(hidden_states.shape[0])
        return forward(self, hidden_states, *args, **more)

    monkeypatch.setattr(FluxTransformer, "forward", counted)
    with load(tiny("dev"), batching=batching) as model:
        together = outputs(model.run(requests(model, MIXED)))
    assert len(together) == len(solo) == 7
    for alone, joined in zip(solo, together, strict=True):
        assert relative_l2(joined.latents, alone.latents) < 1e-5
        assert np.abs(joined.frames.astype(int) - alone.frames).max() <= 1
    assert sum(rows) == ROWS
    assert len(rows) <= MOST_FORWARDS[batching]


def test_a_request_that_joins_on_the_way_changes_nothing(tiny: Folder, solo: list[Any]) -> None:
    """The second is submitted after the first has done two of its seven steps."""
    with load(tiny("dev"), batching=8) as model:
        first, second = requests(model, MIXED[:2])
        found, events, late = [], model.run([first]), None
        for event in events:
            if event.kind == "step" and event.step == 2 and late is None:
                late = model.run([second])
                found += outputs([next(late)])
            if event.output is not None:
                found.append(event.output)
        assert late is not None
        found += outputs(late)
    for alone, joined in zip(solo[:2], sorted(found, key=lambda o: o.seed), strict=True):
        assert relative_l2(joined.latents, alone.latents) < 1e-5


CHANGES: list[dict[str, Any]] = [
    {"prompt": "a dog"}, {"prompt_2": "a dog"}, {"seed": 2}, {"guidance_scale": 7.0},
    {"num_inference_steps": 4}, {"max_sequence_length": 32},
    {"true_cfg_scale": 3.0, "negative_prompt": ""},
    {"true_cfg_scale": 3.0, "negative_prompt": "sun"},
    {"pictured": True}, {"pictured": True, "strength": 0.9},
]  # fmt: skip


def test_every_parameter_has_an_effect(tiny: Folder) -> None:
    base = {"prompt": "a cat", "seed": 1, "num_inference_steps": 3}
    with load(tiny("dev")) as model:
        found = [
            outputs(model.run(requests(model, [{**base, **change}])))[0].latents
            for change in ({}, *CHANGES)
        ]
    for index, one in enumerate(found):
        for other in found[:index]:
            assert relative_l2(one, other) > 1e-3


def test_previews_have_the_packed_shape(tiny: Folder) -> None:
    with load(tiny("dev")) as model:
        events = model.stream(prompt="x", seed=1, num_inference_steps=4, preview_every=2, **SIZE)
        shapes = [event.latents.shape for event in events if event.kind == "preview"]
    assert set(shapes) == {(1, 12, 64)}
