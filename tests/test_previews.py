"""Previews of the real families: what they show is where the path leads, and nobody's result
depends on them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import sgld
from sgld.messages import Event, Output

PICTURE = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
SMALL = {"width": 64, "height": 64}
ONE = {"num_frames": 1, **SMALL}

# In every one of these schedules the first step starts from pure noise, so the estimate of the
# first of two steps is the result of the only one of a shorter run.
FAMILIES: list[tuple[str, dict[str, Any]]] = [
    ("flux.1-schnell", SMALL),
    ("flux.1-dev", {**SMALL, "negative_prompt": "blur", "true_cfg_scale": 3.0}),
    ("flux.2-dev", SMALL),
    ("flux.2-klein", {**SMALL, "images": [PICTURE]}),
    ("flux.2-klein-base", SMALL),
    ("flux.2-klein-kv", {**SMALL, "images": [PICTURE]}),
    ("sana", {"width": 96, "height": 64}),
    ("sana-sprint", {"width": 96, "height": 64}),
    ("sana-video", ONE),
    ("wan-t2v", ONE),
    ("wan2.2-ti2v-5b", ONE),
]
FAMILY = pytest.mark.parametrize(("name", "fields"), FAMILIES, ids=[name for name, _ in FAMILIES])


@contextmanager
def loaded(name: str) -> Iterator[sgld.Model]:
    with sgld.load(f"tiny:{name}", device="cpu", dtype="float32") as model:
        yield model


def run(model: sgld.Model, **fields: Any) -> tuple[list[Event], Output]:
    events = list(model.stream(prompt="a lamp", seed=5, **fields))
    made = [event.output for event in events if event.output is not None]
    assert len(made) == 1, events[-1]
    return [event for event in events if event.kind == "preview"], made[0]


def frames_of(event: Event) -> npt.NDArray[np.int64]:
    assert event.frames is not None
    assert event.latents is None
    return event.frames.astype(int)


@FAMILY
def test_a_preview_is_where_the_path_leads(name: str, fields: dict[str, Any]) -> None:
    with loaded(name) as model:
        previews, final = run(model, num_inference_steps=2, previews=3, **fields)
        _, plain = run(model, num_inference_steps=2, **fields)
        _, single = run(model, num_inference_steps=1, **fields)
    assert np.array_equal(final.frames, plain.frames)
    assert [(event.step, event.total) for event in previews] == [(1, 2)]
    assert np.abs(frames_of(previews[0]) - single.frames).max() <= 1
    assert (frames_of(previews[0]) != final.frames).any()


def test_a_picture_repainted_shows_previews_of_the_steps_that_run() -> None:
    fields: dict[str, Any] = {**SMALL, "images": [PICTURE], "num_inference_steps": 8}
    with loaded("flux.1-dev") as model:
        previews, final = run(model, previews=3, strength=0.5, **fields)
        _, plain = run(model, strength=0.5, **fields)
    assert np.array_equal(final.frames, plain.frames)
    assert [(event.step, event.total) for event in previews] == [(1, 4), (2, 4), (3, 4)]
    distances = [np.abs(frames_of(event) - final.frames).mean() for event in previews]
    assert min(distances) == distances[-1] > 0


@pytest.mark.parametrize(
    ("name", "more"),
    [("wan-t2v", {}), ("wan-dmd-t2v", {}), ("sana-video-i2v", {"images": [PICTURE]})],
)
def test_a_clip_shows_one_frame(name: str, more: dict[str, Any]) -> None:
    fields = {**SMALL, "num_frames": 9, **more}
    if name != "wan-dmd-t2v":
        fields["num_inference_steps"] = 3
    with loaded(name) as model:
        previews, final = run(model, previews=2, **fields)
        _, plain = run(model, **fields)
    assert np.array_equal(final.frames, plain.frames)
    assert [event.step for event in previews] == [1, 2]
    assert {frames_of(event).shape for event in previews} == {(1, 64, 64, 3)}
