"""Every family of the registry: what we make is what diffusers makes, and each record is true.

`pytest -m parity -rA` prints one row per comparison: relative L2 of the latents after the last step
and of the frames, in float32 on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import family_cases
import numpy as np
import pytest

import sgld
from sgld.api.errors import ParameterError
from sgld.messages import Event
from sgld.testing.parity import ParityTable
from sgld_diffusers.tiny import FAMILIES, Family

pytestmark = [
    pytest.mark.parity,
    # diffusers' own, with NumPy 2 and on a CPU.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:In CPU autocast:UserWarning"),
]

LIMIT = 1e-5
TABLE = ParityTable("diffusers")
Loaded = Callable[[str], sgld.Model]
SLOW = {"qwen-image-edit", "qwen-image-edit-plus"}
"""Every run shows them a million pixels; one changed request has all the changes at once."""


@pytest.fixture(scope="module")
def model(checkpoint: Callable[[str], Path]) -> Iterator[Loaded]:
    """The model of one family at a time."""
    held: dict[str, sgld.Model] = {}

    def get(name: str) -> sgld.Model:
        if name not in held:
            for other in list(held):
                held.pop(other).close()
            held[name] = family_cases.load(checkpoint(name))
        return held[name]

    yield get
    for loaded in held.values():
        loaded.close()


def changes(family: Family) -> Iterator[tuple[str, dict[str, Any]]]:
    """Requests that differ from the family's own in one thing each."""
    single: dict[str, dict[str, Any]] = {
        "another seed": {"seed": 8},
        "another prompt": {"prompt": family_cases.OTHER},
        "3 steps": {"num_inference_steps": 3},
        "wider": {"width": family_cases.SIDE + family.multiple},
    }
    for name in family.guidance:
        single[f"{name} 5"] = {name: 5.0}
    if family.negative_prompt:
        single["another negative prompt"] = {"negative_prompt": "a dark drawing"}
    if family.stride:
        single["more frames"] = {"num_frames": 2 * family.stride + 1}
    if family.pictures > 1:
        single["two pictures"] = {"pictures": 2}
    if family.id not in SLOW:
        yield from single.items()
        return
    every: dict[str, Any] = {}
    for change in single.values():
        every |= change
    yield "all changed", every


@pytest.mark.parametrize("name", FAMILIES)
def test_is_what_diffusers_makes(name: str, model: Loaded, reference: Callable[..., Any]) -> None:
    family, loaded = FAMILIES[name], model(name)
    base = compare(f"{name}", loaded, reference(name), family_cases.ours(family))
    for what, change in changes(family):
        wanted = reference(name, **change)
        got = compare(f"{name}, {what}", loaded, wanted, family_cases.ours(family, **change))
        alike = got.shape == base.shape and np.array_equal(got, base)
        assert not alike, f"{what}: the frames are the same as without it"


def compare(what: str, loaded: sgld.Model, wanted: Any, params: dict[str, Any]) -> Any:
    """Run and check latents and frames; returns the frames."""
    result = loaded.generate(want_latents=True, **params)
    assert isinstance(result, sgld.Result)
    TABLE.check(f"{what}, latents", result.outputs[0].latents, wanted.latents, LIMIT)
    TABLE.check(f"{what}, frames", result.frames, wanted.pixels, LIMIT)
    return result.frames


@pytest.mark.parametrize("name", FAMILIES)
def test_the_record_is_true(name: str, model: Loaded) -> None:
    """Grid, stride, pictures, guidance and task, as the checkpoint's own parameters have them."""
    family, plan = FAMILIES[name], model(name).plan
    cls: Any = plan.params_class
    assert cls.tasks == (family.task,)
    assert cls.spatial_multiple == family.multiple
    assert getattr(cls, "temporal_stride", 0) == family.stride
    assert cls.max_images == family.pictures
    assert cls.needs_image == bool(family.pictures)
    assert not cls.takes_mask
    assert ("negative_prompt" in cls.model_fields) == family.negative_prompt
    for parameter in family.guidance:
        assert parameter in cls.model_fields


@pytest.mark.parametrize("name", FAMILIES)
def test_refusals_name_the_parameter(name: str, model: Loaded) -> None:
    family, loaded = FAMILIES[name], model(name)
    wrong: dict[str, Any] = {key: [1.0] for key in family.refused}
    wrong |= {"latents": [1.0], "banana": 3}
    if not family.stride:
        wrong["num_frames"] = 9
    if not family.pictures:
        wrong["image_path"] = "kite.png"
    with pytest.raises(ParameterError) as refusal:
        loaded.generate(**{**family_cases.ours(family), **wrong})
    named = {problem.field for problem in refusal.value.problems}
    assert named == set(wrong)
    for problem in refusal.value.problems:
        assert problem.message


@pytest.mark.parametrize("name", FAMILIES)
def test_sizes_off_the_grid_are_refused(name: str, model: Loaded) -> None:
    family = FAMILIES[name]
    params = family_cases.ours(family, width=family_cases.SIDE + 1)
    with pytest.raises(ParameterError) as refusal:
        model(name).generate(**params)
    [problem] = refusal.value.problems
    assert problem.field == "width"
    assert str(family.multiple) in problem.message


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in SLOW])
def test_every_step_is_told(name: str, model: Loaded, reference: Callable[..., Any]) -> None:
    family = FAMILIES[name]
    params = family_cases.ours(family, num_inference_steps=3)
    events = list(model(name).stream(**params))
    steps = [event for event in events if event.kind == "step"]
    calls = reference(name, num_inference_steps=3).calls
    assert [event.step for event in steps] == list(range(1, calls + 1))
    assert {event.total for event in steps} == {calls}
    assert events[-1].kind == "done"


@pytest.mark.parametrize("name", FAMILIES)
def test_cancelling_stops_after_the_step(
    name: str, model: Loaded, reference: Callable[..., Any]
) -> None:
    """At most one more step begins, and the next request finds everything as it was."""
    family, loaded = FAMILIES[name], model(name)
    [(request, _)] = loaded.requests(**family_cases.ours(family, num_inference_steps=8))
    seen: list[Event] = []
    for event in loaded.run([request]):
        seen.append(event)
        if event.kind == "step" and event.step == 2:
            loaded.cancel(request.id)
    assert seen[-1].kind == "cancelled"
    assert max(event.step for event in seen) <= 3
    assert not [event for event in seen if event.output is not None]
    if name not in SLOW:
        compare(
            f"{name}, after a cancelled one", loaded, reference(name), family_cases.ours(family)
        )
