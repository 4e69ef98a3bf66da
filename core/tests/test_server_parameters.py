"""From a body to a validated request: one table for JSON and forms, on every route."""

from __future__ import annotations

import time
import tracemalloc
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from server_bodies import (
    EDITS,
    KIND,
    KINDS,
    LIMITS,
    Clips,
    Edits,
    Pictures,
    failure,
    prepare,
    refused,
)

from sgld.server.bodies import Kind, Limits, make_body
from sgld.server.errors import envelope
from sgld.server.parameters import limited
from sgld.server.settings import ImageOutput, VideoOutput
from sgld.server.sorting import Sorting
from sgld.server.spelling import ELSEWHERE, REFUSED, WITHOUT_EFFECT

# A03: steps ------------------------------------------------------------------------------------


@KIND
@pytest.mark.parametrize("steps", [0, -1, 1.5, "ten", True, 100001, "4", [], {}, 10**30])
def test_wrong_steps_in_json(kind: Kind, steps: Any) -> None:
    error = refused(kind, {"num_inference_steps": steps})
    assert error["param"] == "num_inference_steps"
    assert "must be a whole number from 1 to 1000 (steps)" in error["message"]


@KIND
@pytest.mark.parametrize("steps", ["0", "-1", "1.5", "ten", "true", "100001", "9" * 100])
def test_wrong_steps_in_a_form(kind: Kind, steps: str) -> None:
    error = refused(kind, {"num_inference_steps": steps}, form=True)
    assert error["param"] == "num_inference_steps"
    assert "from 1 to 1000" in error["message"]


@pytest.mark.parametrize(("value", "form"), [({}, False), ({"num_inference_steps": None}, False),
                                             ({"num_inference_steps": ""}, True)])  # fmt: skip
def test_the_models_own_steps_are_the_default(value: dict[str, Any], form: bool) -> None:
    request = prepare("image", value, form=form)
    assert request.prepared.params.num_inference_steps == 6
    assert "preset" in request.prepared.built.origins["num_inference_steps"]


def test_text_of_a_form_is_typed() -> None:
    value = {
        "n": "2", "seed": ["3", "9"], "guidance_scale": "2.5", "size": "64x32", "fps": "10",
        "negative_prompt": "", "model": "", "profile": "true", "output_compression": "80",
    }  # fmt: skip
    request = prepare("video", value, form=True, limits=Limits(allow_profile=True))
    params = request.prepared.params
    assert isinstance(params, Clips)
    assert request.prepared.seeds == (3, 9)
    assert (params.num_outputs_per_prompt, params.guidance_scale, params.fps) == (2, 2.5, 10)
    assert (params.width, params.height, params.negative_prompt) == (64, 32, "")
    assert (request.output["quality"], request.output["profile"]) == (80, True)


# A06: n ----------------------------------------------------------------------------------------


@KIND
@pytest.mark.parametrize("name", ["n", "num_outputs_per_prompt"])
@pytest.mark.parametrize("n", [0, -1, 11, 10**9, "2", True, 1.0])
def test_wrong_n(kind: Kind, name: str, n: Any) -> None:
    error = refused(kind, {name: n})
    assert error["param"] == name
    assert "from 1 to 10" in error["message"]


def test_n_makes_as_many_seeds() -> None:
    assert prepare("image", {"n": 4, "seed": 11}).prepared.seeds == (11, 12, 13, 14)
    assert prepare("image", {"n": "4", "seed": "11"}, form=True).prepared.seeds == (11, 12, 13, 14)
    assert prepare("image", {"n": 1, "num_outputs_per_prompt": 1}).prepared.seeds
    assert "contradicts n" in refused("image", {"n": 1, "num_outputs_per_prompt": 2})["message"]


def test_a_seed_is_drawn_and_reported() -> None:
    request = prepare("image", {"n": 2})
    first, second = request.prepared.seeds
    assert second == first + 1
    assert request.prepared.params.seed == first


@pytest.mark.parametrize("seed", [-1, 2**32, 1.5, "x", True, [], [1], [1, 2, 3], [1, "2"], {}])
def test_wrong_seeds(seed: Any) -> None:
    assert refused("image", {"seed": seed, "n": 2})["param"] == "seed"


# A14: sizes ------------------------------------------------------------------------------------


@KIND
@pytest.mark.parametrize(
    ("size", "words"),
    [("90000x90000", "the limit of this server is 65536 pixels"),
     ("512x512", "the limit of this server is 65536 pixels"),
     ("64x0", "WIDTHxHEIGHT"), ("x", "WIDTHxHEIGHT"), ("64*64", "WIDTHxHEIGHT"),
     ("64x64x64", "WIDTHxHEIGHT"), ("-64x64", "WIDTHxHEIGHT"), (64, "WIDTHxHEIGHT"),
     ([64, 64], "WIDTHxHEIGHT"), ("9" * 50 + "x1", "WIDTHxHEIGHT"), ("65x64", "multiples of 16"),
     ("8x8", "smallest")],
)  # fmt: skip
def test_wrong_sizes(kind: Kind, size: Any, words: str) -> None:
    tracemalloc.start()
    begin = time.perf_counter()
    error = refused(kind, {"size": size})
    seconds, peak = time.perf_counter() - begin, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert error["param"] == "size"
    assert words in error["message"]
    assert seconds < 1.0
    assert peak < 2**22


@KIND
@pytest.mark.parametrize("size", ["64x32", " 64 x 32 ", "64X32", "64×32"])
def test_spellings_of_a_size(kind: Kind, size: str) -> None:
    params = prepare(kind, {"size": size}).prepared.params
    assert (params.width, params.height) == (64, 32)


@KIND
def test_width_and_height(kind: Kind) -> None:
    assert refused(kind, {"width": 64})["param"] == "width"
    assert refused(kind, {"width": 64, "height": 32, "size": "64x64"})["param"] == "size"
    params = prepare(kind, {"width": 64, "height": 32, "size": "64x32"}).prepared.params
    assert (params.width, params.height) == (64, 32)
    params = prepare(kind, {"size": "auto"}).prepared.params
    assert (params.width, params.height) == (64, 64)


def test_the_narrower_limit_holds_and_is_named() -> None:
    wide = Limits(max_pixels=10**9)
    error = refused("image", {"size": "90000x90000"}, limits=wide)
    assert "the limit of this model is 8294400 pixels" in error["message"]
    assert limited(Pictures, 10**9, None) is Pictures
    assert limited(Pictures, 1024, None) is limited(Pictures, 1024, None)
    short = Limits(max_frames=5)
    error = refused("video", {"num_frames": 9}, limits=short)
    assert error["message"].endswith("9 frames are too many: the limit of this server is 5.")
    assert Pictures.max_pixels == 3840 * 2160


def test_a_size_from_a_picture_keeps_to_the_limit() -> None:
    picture = np.zeros((3000, 4000, 3), np.uint8)
    request = prepare("edit", {}, images=[picture], limits=Limits(max_pixels=4096), served=EDITS)
    params = request.prepared.params
    assert params.width * params.height <= 4096
    assert any("shape of the input picture" in note for note in request.warnings)
    odd = prepare("edit", {}, images=[np.zeros((128, 120, 3), np.uint8)]).prepared.params
    assert odd.width % 16 == odd.height % 16 == 0


# Clips -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "frames", "fps", "noted"),
    [({}, 9, 8, False), ({"seconds": "1"}, 5, 8, True), ({"seconds": 1}, 5, 8, True),
     ({"seconds": 1, "fps": 10}, 9, 10, True), ({"num_frames": 9}, 9, 8, False),
     ({"num_frames": 12}, 9, 8, True), ({"seconds": 0.5, "fps": 10}, 5, 10, False),
     ({"seconds": "0.5", "fps": 10}, 5, 10, False)],
)  # fmt: skip
def test_lengths_of_clips(value: dict[str, Any], frames: int, fps: int, noted: bool) -> None:
    request = prepare("video", value)
    params = request.prepared.params
    assert isinstance(params, Clips)
    assert (params.num_frames, params.fps) == (frames, fps)
    assert any(note.startswith("num_frames is") for note in request.warnings) is noted


@pytest.mark.parametrize(
    ("value", "param"),
    [({"num_frames": 0}, "num_frames"), ({"num_frames": -3}, "num_frames"),
     ({"num_frames": 10**9}, "num_frames"), ({"num_frames": "9"}, "num_frames"),
     ({"seconds": 0}, "seconds"), ({"seconds": "four"}, "seconds"), ({"seconds": ""}, "seconds"),
     ({"seconds": True}, "seconds"), ({"seconds": 1e9}, "seconds"), ({"fps": 0}, "fps"),
     ({"fps": 12.5}, "fps"), ({"seconds": 1, "num_frames": 9}, "num_frames")],
)  # fmt: skip
def test_wrong_lengths_of_clips(value: dict[str, Any], param: str) -> None:
    assert refused("video", value)["param"] == param


# A15, A18: what belongs here, and what does not --------------------------------------------------


@KIND
@pytest.mark.parametrize("name", sorted(REFUSED))
def test_paths_of_the_server_are_not_taken(kind: Kind, name: str) -> None:
    error = refused(kind, {name: "../../escape"})
    assert (error["param"], error["code"]) == (name, "unsupported_parameter")


@pytest.mark.parametrize(("kind", "name"), [(k, n) for k, names in ELSEWHERE.items()
                                            for n in names])  # fmt: skip
def test_fields_of_other_routes_say_where_they_belong(kind: Kind, name: str) -> None:
    error = refused(kind, {name: "x"})
    assert (error["param"], error["code"]) == (name, "unsupported_parameter")
    assert ELSEWHERE[kind][name] in error["message"]


@KIND
@pytest.mark.parametrize(
    ("name", "meant"),
    [("guidance_scal", "guidance_scale"), ("steps", "num_inference_steps"), ("sead", "seed"),
     ("num_images_per_prompt", "num_outputs_per_prompt"), ("negative-prompt", "negative_prompt"),
     ("resolution", "size"), ("cfg_scale", "guidance_scale"), ("modle", "model")],
)  # fmt: skip
def test_an_unknown_field_is_refused_with_the_nearest_one(
    kind: Kind, name: str, meant: str
) -> None:
    error = refused(kind, {name: 3})
    assert (error["param"], error["code"]) == (name, "unknown_parameter")
    assert f"Did you mean {meant}?" in error["message"]


def test_the_hint_never_names_a_refused_field() -> None:
    assert "image_path" not in refused("edit", {"image_pth": "x"})["message"].replace(
        "image_pth", ""
    )
    for kind in KINDS:
        body = make_body(kind, {}, {}, LIMITS, form=False)
        assert not REFUSED.keys() & set(Sorting(kind, EDITS.params_class, body).names())


@KIND
def test_every_problem_is_told_at_once(kind: Kind) -> None:
    error = refused(
        kind,
        {"prompt": "", "n": 0, "foo": 1, "output_path": "/x", "output_quality": "best",
         "guidance_scale": 1000},
    )  # fmt: skip
    lines = error["message"].split("\n")
    assert len(lines) == 6
    for name in ("prompt", "n=", "foo", "output_path", "output_quality", "guidance_scale"):
        assert any(line.startswith(name) for line in lines)


@KIND
@pytest.mark.parametrize("name", sorted(WITHOUT_EFFECT))
def test_fields_without_effect_are_reported(kind: Kind, name: str) -> None:
    warnings = prepare(kind, {name: "x"}).warnings
    assert any(warning.startswith(f"{name} has no effect") for warning in warnings)


@KIND
@pytest.mark.parametrize("quality", ["auto", "standard", "exact", "lossless"])
def test_qualities_that_are_always_met(kind: Kind, quality: str) -> None:
    assert prepare(kind, {"quality": quality}).warnings == []


@KIND
@pytest.mark.parametrize("quality", ["low", "medium", "high", "xhigh", "max", "hd"])
def test_other_documented_qualities_are_reported(kind: Kind, quality: str) -> None:
    request = prepare(kind, {"quality": quality})
    assert len(request.warnings) == 1
    assert request.warnings[0].startswith(f"quality={quality} has no effect")


@pytest.mark.parametrize("quality", ["best", 5, True, [], {}])
def test_unknown_qualities_are_refused(quality: Any) -> None:
    assert refused("image", {"quality": quality})["param"] == "quality"


@pytest.mark.parametrize("form", [False, True])
def test_switches_of_other_servers_may_be_off(form: bool) -> None:
    off = {"enhance_prompt": "false" if form else False}
    assert prepare("image", off, form=form).warnings == []
    on = {"enhance_prompt": "true" if form else True}
    assert refused("image", on, form=form)["code"] == "unsupported_parameter"


def test_every_documented_field_of_openai_is_known() -> None:
    """The real client never meets "is unknown" for what its own types document."""
    pytest.importorskip("openai")
    from openai.types.image_edit_params import ImageEditParamsStreaming
    from openai.types.image_generate_params import ImageGenerateParamsStreaming
    from openai.types.video_create_params import VideoCreateParams

    documented: dict[Kind, Any] = {
        "image": ImageGenerateParamsStreaming,
        "edit": ImageEditParamsStreaming,
        "video": VideoCreateParams,
    }
    for kind, typed in documented.items():
        for name in typed.__annotations__ | _inherited(typed):
            if name in ("prompt", "model", "image", "mask", "markup", "input_reference"):
                continue
            assert "is unknown" not in str(failure(kind, {name: []})), (kind, name)


def _inherited(typed: Any) -> dict[str, Any]:
    return {name: None for base in typed.__orig_bases__ for name in getattr(
        base, "__annotations__", {})}  # fmt: skip


def test_documented_values_of_openai_are_taken() -> None:
    pytest.importorskip("openai")
    from openai.types import video_seconds, video_size

    wide = Limits()
    for seconds in get_args(video_seconds.VideoSeconds):
        prepare("video", {"seconds": seconds}, limits=wide)
    for size in get_args(video_size.VideoSize):
        prepare("video", {"size": size}, limits=wide)
    for background in ("opaque", "auto"):
        prepare("image", {"background": background})
    assert refused("image", {"background": "transparent"})["code"] == "unsupported_parameter"


# Output ----------------------------------------------------------------------------------------


def test_how_results_are_handed_over() -> None:
    assert prepare("image", {}).output == {
        "format": "png", "quality": None, "profile": False, "response_format": "url",
        "background": "auto", "stream": False, "partial_images": 0,
    }  # fmt: skip
    assert prepare("edit", {}).output == prepare("image", {}).output
    assert prepare("video", {}).output == {
        "format": "mp4", "quality": None, "profile": False, "x264_preset": "fast",
        "partial_images": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "value", "name", "expected"),
    [("image", {"output_format": "jpg"}, "format", "jpeg"),
     ("image", {"output_format": "webp"}, "format", "webp"),
     ("video", {"output_format": "webm"}, "format", "webm"),
     ("image", {"response_format": "b64_json"}, "response_format", "b64_json"),
     ("image", {"output_compression": 0}, "quality", 0),
     ("image", {"output_compression": 100}, "quality", 100),
     ("video", {"output_quality": "high"}, "quality", 90),
     ("video", {"output_quality": 33}, "quality", 33),
     ("image", {"output_quality": 80, "output_compression": 80}, "quality", 80),
     ("image", {"stream": False}, "stream", False)],
)  # fmt: skip
def test_output_settings(kind: Kind, value: dict[str, Any], name: str, expected: Any) -> None:
    request = prepare(kind, value)
    assert request.output[name] == expected
    assert request.warnings == []
    text = {key: str(held).lower() for key, held in value.items()}
    assert prepare(kind, text, form=True).output[name] == expected


@pytest.mark.parametrize(
    ("kind", "value", "param"),
    [("image", {"output_format": "gif"}, "output_format"),
     ("image", {"output_format": "mp4"}, "output_format"),
     ("video", {"output_format": "png"}, "output_format"),
     ("image", {"response_format": "xml"}, "response_format"),
     ("image", {"output_compression": 101}, "output_compression"),
     ("image", {"output_compression": -1}, "output_compression"),
     ("image", {"output_compression": "80"}, "output_compression"),
     ("image", {"output_compression": True}, "output_compression"),
     ("image", {"output_compression": 1.5}, "output_compression"),
     ("image", {"output_compression": 80, "output_quality": 90}, "output_quality"),
     ("image", {"stream": "true"}, "stream"), ("image", {"stream": 1}, "stream"),
     ("video", {"stream": True}, "stream"), ("video", {"partial_images": 11}, "partial_images"),
     ("image", {"partial_images": 4}, "partial_images"),
     ("image", {"partial_images": -1}, "partial_images"),
     ("image", {"x264_preset": "fast"}, "x264_preset"),
     ("video", {"x264_preset": "warp"}, "x264_preset"),
     ("image", {"profile": True}, "profile"),
     ("image", {"prompt": ["a", "b"]}, "prompt"), ("image", {"prompt": 3}, "prompt"),
     ("image", {"prompt": None}, "prompt"), ("image", {"prompt": "x" * 101}, "prompt"),
     ("image", {"negative_prompt": "x" * 101}, "negative_prompt"),
     ("image", {"num_frames": 9}, "num_frames"), ("image", {"model": 3}, "model")],
)  # fmt: skip
def test_wrong_settings(kind: Kind, value: dict[str, Any], param: str) -> None:
    assert refused(kind, value)["param"] == param


def test_previews_need_a_stream() -> None:
    assert prepare("image", {"partial_images": 2}).warnings == [
        "partial_images has no effect without stream."
    ]


def test_a_stream_shows_one_picture() -> None:
    output = prepare("image", {"stream": True, "partial_images": 2}).output
    assert (output["stream"], output["partial_images"]) == (True, 2)
    assert output["response_format"] == "b64_json"
    error = refused("image", {"stream": True, "n": 2})
    assert (error["param"], error["code"]) == ("n", "invalid_parameter")
    error = refused("image", {"stream": True, "num_outputs_per_prompt": 3})
    assert error["param"] == "num_outputs_per_prompt"
    assert refused("edit", {"stream": True, "seed": [1, 2], "n": 2})["param"] == "n"
    error = refused("image", {"stream": True, "response_format": "url"})
    assert error["param"] == "response_format"
    assert prepare("image", {"n": 2, "stream": False}).output["response_format"] == "url"


def test_clips_show_previews_among_their_events() -> None:
    assert prepare("video", {"partial_images": 10}).output["partial_images"] == 10


def test_settings_explain_themselves() -> None:
    for cls in (ImageOutput, VideoOutput):
        for name, field in cls.model_fields.items():
            assert field.description, name


# Anything at all -------------------------------------------------------------------------------

JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=12)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)  # fmt: skip
FIELDS = sorted(
    {"prompt", "n", "seconds", "size", "quality", "mask", "image", "input_reference", "model"}
    | Edits.accepted() | Clips.accepted() | ImageOutput.accepted() | VideoOutput.accepted()
    | WITHOUT_EFFECT.keys() | REFUSED.keys()
)  # fmt: skip


@given(
    st.sampled_from(KINDS),
    st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=8), JSONS, max_size=5),
    st.booleans(),
)
def test_any_body_is_a_request_or_the_callers_fault(
    kind: Kind, value: dict[str, Any], form: bool
) -> None:
    if form:
        value = {name: str(held) for name, held in value.items()}
    error = failure(kind, value, form=form)
    if error is not None:
        assert envelope(error)[0] in (400, 404, 413)
        assert len(str(error)) < 5000
        return
    request = prepare(kind, value, form=form)
    params = request.prepared.params
    assert len(request.prepared.seeds) == params.num_outputs_per_prompt
    assert params.width * params.height <= 65536
