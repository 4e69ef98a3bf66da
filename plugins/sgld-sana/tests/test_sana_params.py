"""What a request may ask for, and what is refused in which words."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgld.api.errors import ParameterError
from sgld.params.merge import Layer, build
from sgld_sana.params import (
    SanaImageToVideoParams,
    SanaParams,
    SanaSprintParams,
    SanaVideoParams,
)


def made(cls: type, **values: Any) -> Any:
    return build(cls, [Layer("call", {"prompt": "x", **values})]).params


def refusal(cls: type, **values: Any) -> str:
    with pytest.raises(ParameterError) as caught:
        made(cls, **values)
    return str(caught.value)


def test_defaults() -> None:
    sana = made(SanaParams)
    assert (sana.width, sana.height) == (1024, 1024)
    assert (sana.num_inference_steps, sana.guidance_scale, sana.negative_prompt) == (20, 4.5, "")
    assert sana.uses_cfg
    sprint = made(SanaSprintParams)
    assert (sprint.num_inference_steps, sprint.guidance_scale) == (2, 4.5)
    assert (sprint.max_timesteps, sprint.middle, sprint.uses_cfg) == (1.5708, 1.3, False)
    video = made(SanaVideoParams)
    assert (video.width, video.height, video.num_frames, video.fps) == (832, 480, 81, 16)
    assert (video.num_inference_steps, video.guidance_scale, video.motion_score) == (50, 6.0, 30)
    assert video.negative_prompt.startswith("A chaotic sequence")


@pytest.mark.parametrize(
    ("cls", "values", "told"),
    [
        (SanaParams, {"width": 1000, "height": 1024}, "992x1024 and 1024x1024"),
        (SanaParams, {"size": "8192x4096"}, "the limit of this model is 16777216 pixels"),
        (SanaParams, {"num_frames": 5}, "This model makes pictures, not clips"),
        (SanaParams, {"image_path": "a.png"}, "takes no input picture"),
        (SanaParams, {"max_sequence_length": 301}, "max_sequence_length"),
        (SanaSprintParams, {"negative_prompt": "fog"}, "reads no negative prompt"),
        (SanaSprintParams, {"flow_shift": 3.0}, "has no timestep shift"),
        (SanaSprintParams, {"max_timesteps": 3.2}, "max_timesteps"),
        (
            SanaSprintParams,
            {"num_inference_steps": 4, "intermediate_timesteps": 1.2},
            "is only for 2 steps, and num_inference_steps is 4. Leave it out.",
        ),
        (
            SanaSprintParams,
            {"max_timesteps": 1.0, "intermediate_timesteps": 1.2},
            "must be below max_timesteps, which is 1.0",
        ),
        (SanaVideoParams, {"motion_score": -1}, "motion_score"),
        (SanaVideoParams, {"width": 848, "height": 480}, "832x480 and 864x480"),
        (SanaVideoParams, {"num_frames": 5000}, "too many"),
    ],
)
def test_refusals_say_what_the_family_takes(cls: type, values: Any, told: str) -> None:
    assert told in refusal(cls, **values)


def test_large_sizes_of_the_4k_model_are_taken() -> None:
    assert made(SanaParams, size="4096x4096").width == 4096
    assert made(SanaParams, size="2048x8192").height == 8192


@pytest.mark.parametrize(
    ("steps", "first", "given_middle", "middle"),
    [
        (2, 1.5708, None, 1.3),
        (2, 1.5708, 0.9, 0.9),
        (1, 1.5708, None, None),
        (4, 1.5, None, None),
        (2, 0.7854, None, 0.65),
    ],
)
def test_middle_angle(steps: int, first: float, given_middle: Any, middle: Any) -> None:
    values = {"num_inference_steps": steps, "max_timesteps": first}
    if given_middle is not None:
        values["intermediate_timesteps"] = given_middle
    assert made(SanaSprintParams, **values).middle == (
        None if middle is None else pytest.approx(middle)
    )


@given(first=st.floats(0.01, 1.5708))
def test_the_middle_is_always_below_the_first(first: float) -> None:
    assert 0 < made(SanaSprintParams, max_timesteps=first).middle < first


def test_frames_are_rounded_down_with_a_note() -> None:
    built = build(SanaVideoParams, [Layer("call", {"prompt": "x", "num_frames": 80})])
    assert built.params.num_frames == 77
    assert "4k+1" in built.notes[0]


def test_only_the_picture_variant_needs_a_picture() -> None:
    assert SanaImageToVideoParams.needs_image
    assert not SanaVideoParams.needs_image
    assert SanaVideoParams.tasks == ("text-to-video", "image-to-video")
