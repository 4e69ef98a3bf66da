"""Sampling parameters: sizes, frames, steps, guidance, the same words on every way in."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from sgld.api.errors import ParameterError
from sgld.params.merge import Layer, build
from sgld.params.options import Unreadable
from sgld.params.sampling import Guided, ImageParams, TakesImage, VideoParams
from sgld.params.size import fit_area, neighbours, parse_size, round_frames


class Clip(Guided, VideoParams):
    """A guided text-to-video family."""


class Distilled(VideoParams):
    """A family without guidance."""


class Picture(ImageParams):
    """A picture family with a smaller limit."""

    max_pixels: ClassVar[int] = 65536
    width: int = 256
    height: int = 256


class Animated(TakesImage, Guided, VideoParams):
    """A family that starts from a picture."""


def as_text(value: Any) -> str:
    """What a user types on the command line for a JSON value."""
    return json.dumps(value) if isinstance(value, bool | type(None)) else str(value)


def outcome(cls: Any, way: str, name: str, value: Any) -> Any:
    """The accepted value, or the field and message of the only problem."""
    shown = as_text(value) if way == "flag" else value
    try:
        built = build(cls, [Layer(way, {"prompt": "x", name: shown})])  # pyright: ignore[reportArgumentType]
    except ParameterError as error:
        (problem,) = error.problems
        return problem.field, problem.message
    return getattr(built.params, name)


STEPS = "must be a whole number from 1 to 1000 (steps)."
OUTPUTS = "must be a whole number from 1 to 10 (outputs)."


@pytest.mark.parametrize("way", ["flag", "file", "call"])
@pytest.mark.parametrize(
    ("value", "expected"),
    [(0, STEPS), (-1, STEPS), (1.5, STEPS), ("ten", STEPS), (True, STEPS), (False, STEPS),
     (None, 50), (100001, STEPS), (float("nan"), STEPS), (1, 1), (1000, 1000), ("", STEPS),
     (10**80, STEPS), ([5], STEPS)],
)  # fmt: skip
def test_steps_are_refused_in_the_same_words_everywhere(way: str, value: Any, expected: Any):
    if isinstance(expected, str):
        expected = ("--num-inference-steps" if way == "flag" else "num_inference_steps", expected)
    assert outcome(Clip, way, "num_inference_steps", value) == expected


@pytest.mark.parametrize("way", ["flag", "file", "call"])
@pytest.mark.parametrize(
    ("value", "expected"),
    [(4, 4), (1, 1), (10, 10), (0, OUTPUTS), (-1, OUTPUTS), (11, OUTPUTS), (10**9, OUTPUTS)],
)
def test_output_counts_are_never_clamped(way: str, value: Any, expected: Any):
    name = "num_outputs_per_prompt"
    if isinstance(expected, str):
        expected = ("--num-outputs-per-prompt" if way == "flag" else name, expected)
    assert outcome(Clip, way, name, value) == expected


def test_a_number_in_text_is_only_a_number_on_the_command_line():
    assert outcome(Clip, "file", "num_outputs_per_prompt", "2")[1] == OUTPUTS
    assert outcome(Clip, "flag", "num_outputs_per_prompt", "2") == 2


@pytest.mark.parametrize("way", ["flag", "file", "call"])
@pytest.mark.parametrize(
    ("value", "real"), [(1, 1), (4, 1), (5, 5), (6, 5), (8, 5), (9, 9), (81, 81), (84, 81)]
)
def test_frames_are_rounded_down_with_a_note(way: str, value: int, real: int):
    shown = str(value) if way == "flag" else value
    built = build(Clip, [Layer(way, {"prompt": "x", "num_frames": shown})])  # pyright: ignore[reportArgumentType]
    assert built.params.num_frames == real
    assert bool(built.notes) == (value != real)
    assert all(str(real) in note and str(value) in note for note in built.notes)


@pytest.mark.parametrize("value", [0, -3, 4094, 100001])
def test_frame_counts_outside_the_limits_are_refused(value: int):
    _, message = outcome(Clip, "flag", "num_frames", value)
    assert "4093" in message or "from 1 to 100000" in message


@pytest.mark.parametrize(
    ("seconds", "fps", "frames"),
    [(1, 10, 9), (5, 16, 77), (0.01, 10, 1), (0.3, 10, 1), (0.5, 10, 5)],
)
def test_seconds_become_frames(seconds: float, fps: int, frames: int):
    built = build(Clip, [Layer("call", {"prompt": "x", "seconds": seconds, "fps": fps})])
    assert built.params.num_frames == frames


@pytest.mark.parametrize("value", [0, -1, "long", True, float("inf"), 3601])
def test_bad_seconds_are_refused(value: Any):
    with pytest.raises(ParameterError, match=r"above 0 and up to 3600 \(seconds\)"):
        build(Clip, [Layer("call", {"prompt": "x", "seconds": value})])


def test_seconds_and_frames_in_one_place_contradict():
    with pytest.raises(ParameterError, match="contradicts num_frames"):
        build(Clip, [Layer("call", {"prompt": "x", "num_frames": 5, "seconds": 1})])


def test_seconds_of_a_flag_beat_frames_of_a_file():
    layers = [
        Layer("flag", {"prompt": "x", "seconds": "1"}),
        Layer("file", {"num_frames": 5, "fps": 8}),
    ]
    assert build(Clip, layers).params.num_frames == 5
    assert build(Clip, [layers[0]._replace(values={"prompt": "x", "seconds": "2"}), layers[1]]
                 ).params.num_frames == 13  # fmt: skip


SIZE = "must be WIDTHxHEIGHT"


@pytest.mark.parametrize("way", ["flag", "file", "call"])
@pytest.mark.parametrize(
    ("size", "expected"),
    [("90000x90000", "limit of this model is 65536 pixels"), ("512x512", "65536 pixels"),
     ("64x0", SIZE), ("x", SIZE), ("64*64", SIZE), ("64x64x64", SIZE), ("", SIZE), ("-64x64", SIZE),
     ("64x64\n64", SIZE), ("٦٤x٦٤", SIZE), ("auto", (1024, 1024)), (" 64 x 64 ", (64, 64)),
     ("64X32", (64, 32)), ("120x128", "multiples of 16"), ("128x120", "multiples of 16"),
     ("17x31", "multiples of 16"), ("16x16", (16, 16)), ("256x256", (256, 256))],
)  # fmt: skip
def test_sizes(way: str, size: str, expected: Any):
    layer = Layer(way, {"prompt": "x", "size": size})  # pyright: ignore[reportArgumentType]
    if size == "auto":
        built = build(ImageParams, [layer])
        assert (built.params.width, built.params.height) == expected
        assert not built.given & {"width", "height"}
    elif isinstance(expected, tuple):
        params = build(Picture, [layer]).params
        assert (params.width, params.height) == expected
    else:
        with pytest.raises(ParameterError, match=expected) as caught:
            build(Picture, [layer])
        (problem,) = caught.value.problems
        assert problem.field in ("size", "--size")
        assert problem.value == size


@pytest.mark.parametrize(
    ("size", "nearest"),
    [("120x128", "112x128 and 128x128"), ("128x120", "128x112 and 128x128"),
     ("17x31", "16x16 and 32x32"), ("8x8", "smallest size is 16x16")],
)  # fmt: skip
def test_a_size_off_the_grid_names_the_nearest_two(size: str, nearest: str):
    with pytest.raises(ParameterError, match=nearest):
        build(Picture, [Layer("flag", {"prompt": "x", "size": size})])


@pytest.mark.parametrize("side", ["width", "height"])
def test_one_side_alone_is_refused(side: str):
    with pytest.raises(ParameterError, match=r"needs .* beside it") as caught:
        build(Clip, [Layer("flag", {"prompt": "x", side: "64"})])
    assert caught.value.problems[0].field == f"--{side}"


def test_one_side_may_override_a_file_that_gives_both():
    layers = [Layer("flag", {"prompt": "x", "width": "64"}), Layer("file", {"size": "128x32"})]
    params = build(Clip, layers).params
    assert (params.width, params.height) == (64, 32)


def test_size_and_width_in_one_place_contradict():
    with pytest.raises(ParameterError, match="contradicts"):
        build(Clip, [Layer("call", {"prompt": "x", "size": "64x64", "width": 32})])
    build(Clip, [Layer("call", {"prompt": "x", "size": "64x64", "width": 64})])


def test_auto_size_beats_a_file_and_takes_the_preset():
    layers = [
        Layer("flag", {"prompt": "x", "size": "auto"}),
        Layer("file", {"size": "64x64"}),
        Layer("preset", {"width": 320, "height": 192}),
    ]
    built = build(Clip, layers)
    assert (built.params.width, built.params.height) == (320, 192)
    assert built.origins["width"].startswith("model preset")


@pytest.mark.parametrize(("name", "size"), [("480p", (832, 480)), ("1080p", (1920, 1072))])
def test_size_names_are_put_on_the_grid(name: str, size: tuple[int, int]):
    built = build(Clip, [Layer("flag", {"prompt": "x", "size": name})])
    assert (built.params.width, built.params.height) == size
    assert any("1080p" in note for note in built.notes) == (name == "1080p")


@pytest.mark.parametrize(("scale", "active"), [(0, False), (1.0, False), (1.01, True), (5, True)])
def test_guidance_is_active_above_one(scale: float, active: bool):
    params = build(Clip, [Layer("call", {"prompt": "x", "guidance_scale": scale})]).params
    assert params.uses_cfg is active


@pytest.mark.parametrize("scale", [-0.1, 100.5, float("nan"), float("inf"), "5", True])
def test_bad_guidance_is_refused(scale: Any):
    with pytest.raises(ParameterError, match=r"finite number from 0.0 to 100.0"):
        build(Clip, [Layer("call", {"prompt": "x", "guidance_scale": scale})])


def test_empty_negative_prompt_is_not_absent():
    preset = Layer("preset", {"negative_prompt": "blur"})
    for given_text, expected in (("", ""), (None, "blur"), ("rain", "rain")):
        layer = Layer("flag", {"prompt": "x", "negative_prompt": given_text})
        assert build(Clip, [layer, preset]).params.negative_prompt == expected


@pytest.mark.parametrize(
    ("cls", "name", "value", "reason"),
    [(Distilled, "guidance_scale", 3, "runs without guidance"),
     (Distilled, "negative_prompt", "x", "runs without guidance"),
     (Clip, "image_path", "a.png", "takes no input picture"),
     (Picture, "num_frames", 5, "pictures, not clips"),
     (Clip, "steps", 5, "Did you mean num_inference_steps"),
     (Clip, "num_frame", 5, "Did you mean num_frames"),
     (Clip, "cfg_scale", 5, "Did you mean guidance_scale")],
)  # fmt: skip
def test_what_a_family_does_not_take_is_refused_with_the_reason(
    cls: Any, name: str, value: Any, reason: str
):
    with pytest.raises(ParameterError, match=reason) as caught:
        build(cls, [Layer("call", {"prompt": "x", name: value})])
    assert caught.value.problems[0].field == name


@pytest.mark.parametrize("prompt", ["", "  \n", None, 5, True])
def test_prompts_must_be_text(prompt: Any):
    with pytest.raises(ParameterError):
        build(Clip, [Layer("call", {"prompt": prompt})])


def test_every_problem_is_listed_at_once():
    values = {"prompt": " ", "num_inference_steps": "0", "size": "17x31", "fps": "999", "typo": "1"}
    with pytest.raises(ParameterError) as caught:
        build(Clip, [Layer("flag", values)])
    fields = {problem.field for problem in caught.value.problems}
    assert fields == {"--prompt", "--num-inference-steps", "--size", "--fps", "--typo"}


def test_the_class_itself_keeps_the_rules():
    assert Clip.model_validate({"prompt": "x", "num_frames": 6}).num_frames == 5
    for wrong in ({"size": "17x31"}, {"num_inference_steps": True}, {"other": 1}, {"prompt": ""}):
        with pytest.raises(ValidationError):
            Clip.model_validate({"prompt": "x", **wrong})


def test_complete_parameters_make_the_same_object_again():
    params = build(Clip, [Layer("flag", {"prompt": "x", "size": "720p", "seed": "1,2"})]).params
    again = Clip.model_validate(json.loads(json.dumps(params.model_dump(mode="json"))))
    assert again == params


@given(st.integers(1, 10**6), st.integers(1, 16))
def test_rounded_frames_are_the_largest_that_fit(frames: int, stride: int):
    real = round_frames(frames, stride)
    assert real <= frames < real + stride
    assert real % stride == 1 % stride
    assert round_frames(real, stride) == real


@given(st.integers(max_value=0))
def test_no_frames_are_an_error(frames: int):
    with pytest.raises(ValueError, match="at least 1"):
        round_frames(frames, 4)


@given(
    st.integers(1, 9_999_999), st.integers(1, 9_999_999), st.sampled_from(["x", "X", " x ", "×"])
)
def test_sizes_are_read_back(width: int, height: int, cross: str):
    assert parse_size(f"{width}{cross}{height}") == (width, height)


@given(st.text(max_size=20))
def test_any_text_is_a_size_or_refused(text: str):
    try:
        size = parse_size(text)
    except Unreadable:
        return
    assert isinstance(size, str) or min(size) > 0


@given(st.integers(1, 9999), st.integers(1, 9999), st.sampled_from([8, 16, 32]))
def test_neighbours_are_on_the_grid_and_around(width: int, height: int, unit: int):
    below, above = (
        tuple(map(int, text.split("x"))) for text in neighbours(width, height, unit, unit)
    )
    for side, low, high in zip((width, height), below, above, strict=True):
        assert low % unit == high % unit == 0
        assert unit <= low <= max(side, unit)
        assert max(side, unit) <= high < side + unit or high == unit


@given(st.integers(1, 20000), st.integers(1, 20000), st.sampled_from([16, 32]))
def test_a_fitted_size_keeps_grid_and_area(width: int, height: int, unit: int):
    area = 832 * 480
    new_width, new_height = fit_area(width, height, area, unit, unit)
    assert new_width % unit == new_height % unit == 0
    assert min(new_width, new_height) >= unit
    assert new_width * new_height <= area
    ratio = (new_width / new_height) / (width / height)
    if 1 / 3 <= width / height <= 3:
        assert 0.85 < ratio < 1.18


def test_fitting_keeps_a_shape_that_is_already_right():
    assert fit_area(1664, 960, 832 * 480, 16, 16) == (832, 480)
