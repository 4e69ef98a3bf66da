"""Parameters of the causal Wan families: lengths in chunks, shots, windows, given pictures."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgld.api.errors import ParameterError
from sgld.params.merge import Layer, build
from sgld.params.requests import prepare
from sgld_wan.causal_params import LongLive2Params, WanCausalParams
from sgld_wan.chunk_params import LONGEST_PROMPT

FAMILIES = (WanCausalParams, LongLive2Params)


def made(cls: Any, kind: Any = "call", **values: Any) -> Any:
    return build(cls, [Layer(kind, {"prompt": "a", **values})]).params


def refused(cls: Any, **values: Any) -> list[Any]:
    with pytest.raises(ParameterError) as error:
        build(cls, [Layer("call", values)])
    return list(error.value.problems)


@pytest.mark.parametrize("cls", FAMILIES)
def test_defaults_are_valid_and_survive_json(cls: Any) -> None:
    params = made(cls, shot_prompts=["a", "b"], num_frames=125)
    assert cls.model_validate(json.loads(json.dumps(params.model_dump(mode="json")))) == params
    assert not params.uses_cfg


def test_published_defaults() -> None:
    wan, long = made(WanCausalParams), made(LongLive2Params)
    assert (wan.width, wan.height, wan.num_frames, wan.fps) == (832, 480, 81, 16)
    assert (wan.dmd_denoising_steps, wan.flow_shift) == ((1000, 750, 500, 250), 5.0)
    assert (long.width, long.height, long.num_frames, long.fps) == (1280, 704, 61, 24)
    assert (long.num_inference_steps, long.flow_shift, long.guidance_scale) == (4, 5.0, 1.0)
    assert long.scene_cut_prefix == "The scene transitions. "
    assert (long.multi_shot_sink, long.multi_shot_rope_offset) == (True, 8.0)


@pytest.mark.parametrize(
    ("cls", "more", "lengths"),
    [
        (WanCausalParams, {}, {1: 9, 9: 9, 20: 9, 21: 21, 81: 81, 92: 81}),
        (WanCausalParams, {"chunk_latents": 1}, {1: 1, 4: 1, 5: 5, 80: 77}),
        (WanCausalParams, {"independent_first_frame": True}, {1: 13, 13: 13, 24: 13, 25: 25}),
        (WanCausalParams, {"given_pictures": 1}, {1: 13, 25: 25, 30: 25}),
        (WanCausalParams, {"given_pictures": 9}, {9: 21, 33: 33, 40: 33}),
        (LongLive2Params, {}, {1: 29, 61: 61, 92: 61, 509: 509}),
        (LongLive2Params, {"given_pictures": 1}, {61: 61}),
        (LongLive2Params, {"given_pictures": 5}, {1: 37, 61: 37, 69: 69}),
    ],
)
def test_lengths_are_whole_chunks(cls: Any, more: dict[str, Any], lengths: dict[int, int]) -> None:
    for asked, wanted in lengths.items():
        built = build(cls, [Layer("call", {"prompt": "a", "num_frames": asked, **more})])
        assert built.params.num_frames == wanted
        assert len(built.notes) == (asked != wanted)
        if asked != wanted:
            assert ("rounded down" in built.notes[0]) == (wanted < asked)


@given(
    frames=st.integers(1, 2000),
    chunk=st.integers(1, 20),
    given_latents=st.integers(0, 5),
    alone=st.booleans(),
)
def test_rounding_keeps_what_it_made(frames: int, chunk: int, given_latents: int, alone: bool):
    pictures = 4 * given_latents - 3 if given_latents else 0
    more = {"chunk_latents": chunk, "given_pictures": pictures, "independent_first_frame": alone}
    first = made(WanCausalParams, num_frames=frames, **more)
    assert made(WanCausalParams, num_frames=first.num_frames, **more) == first
    lead = given_latents or (1 if alone else 0)
    latents = (first.num_frames - 1) // 4 + 1
    assert (latents - lead) % chunk == 0
    assert latents > lead
    assert first.num_frames <= frames or latents == lead + chunk


SHOTS = ["a", "b", "c"]


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ({}, "aabbccc"),
        ({"chunks_per_shot": 1}, "abccccc"),
        ({"chunks_per_shot": 3}, "aaabbbc"),
        ({"shot_durations": [1, 4, 2]}, "abbbbcc"),
        ({"shot_durations": [1, 1, 1]}, "abccccc"),
    ],
)
def test_prompts_are_spread_over_chunks(more: dict[str, Any], wanted: str) -> None:
    params = made(WanCausalParams, shot_prompts=SHOTS, num_frames=81, **more)
    assert "".join(params.shot(index).prompt for index in range(7)) == wanted
    opens = [params.shot(index).opens for index in range(7)]
    assert opens == [index == 0 or wanted[index] != wanted[index - 1] for index in range(7)]


def test_a_shot_of_longlive_opens_with_its_prefix() -> None:
    params = made(LongLive2Params, shot_prompts=SHOTS, num_frames=157)
    assert [params.shot(i).prompt for i in range(5)] == [
        "a",
        "The scene transitions. b",
        "The scene transitions. c",
        "c",
        "c",
    ]
    assert [params.shot(i).number for i in range(5)] == [0, 1, 2, 2, 2]
    plain = made(LongLive2Params, shot_prompts=SHOTS, num_frames=157, scene_cut_prefix="")
    assert [plain.shot(i) for i in range(3)] == [("a", 0, True), ("b", 0, False), ("c", 0, False)]


def test_prompt_and_shots_are_one_thing() -> None:
    assert (
        build(WanCausalParams, [Layer("call", {"shot_prompts": ["x", "y"]})]).params.prompt == "x"
    )
    assert made(WanCausalParams, shot_prompts=["a", "b"]).prompt == "a"
    (problem,) = refused(WanCausalParams, prompt="b", shot_prompts=["a", "b"])
    assert (problem.field, problem.value) == ("prompt", "b")
    (problem,) = refused(WanCausalParams)
    assert problem.field == "prompt"


@pytest.mark.parametrize("cls", FAMILIES)
@pytest.mark.parametrize("kind", ["call", "flag"])
@pytest.mark.parametrize("written", [[3, 2, 2], "3,2,2", "[3, 2, 2]", " [3,2 ,2] "])
def test_counts_are_read_in_both_spellings(cls: Any, kind: Any, written: Any) -> None:
    shots = json.dumps(SHOTS) if kind == "flag" else SHOTS
    params = made(
        cls, kind, num_frames="509" if kind == "flag" else 509, shot_prompts=shots,
        shot_durations=written,
    )  # fmt: skip
    assert params.shot_durations == (3, 2, 2)


def test_steps_are_read_in_both_spellings() -> None:
    for kind in ("call", "flag"):
        for written in ("1000,500", "[1000, 500]"):
            params = made(WanCausalParams, kind, dmd_denoising_steps=written)
            assert params.dmd_denoising_steps == (1000, 500)


@pytest.mark.parametrize("cls", FAMILIES)
def test_a_long_shot_is_refused_by_its_index(cls: Any) -> None:
    longest = "a" * LONGEST_PROMPT
    assert made(cls, shot_prompts=["a", longest]).shot_prompts[1] == longest
    (problem,) = refused(cls, shot_prompts=["a", longest + "b"])
    assert problem.field == "shot_prompts"
    assert problem.message == "shot_prompts[1] has 32001 characters; the limit is 32000."


@pytest.mark.parametrize("cls", FAMILIES)
@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"shot_prompts": ["a", " "]}, "shot_prompts"),
        ({"shot_prompts": ["a"] * 65}, "shot_prompts"),
        ({"shot_prompts": "a", "chunks_per_shot": 2, "shot_durations": [1]}, "shot_prompts"),
        ({"shot_prompts": ["a"] * 20, "shot_durations": [0]}, "shot_durations"),
        ({"shot_prompts": ["a"] * 2, "shot_durations": "1,x"}, "shot_durations"),
        ({"prompt": "a", "shot_durations": ""}, "shot_durations"),
        ({"shot_prompts": ["a"] * 2, "shot_durations": "1,1", "fps": 0}, "fps"),
    ],
)
def test_only_the_real_fault_is_named(cls: Any, values: dict[str, Any], field: str) -> None:
    (problem,) = refused(cls, **values)
    assert (problem.field, problem.value) == (field, values[field])


def test_a_list_of_one_is_shown_as_a_list() -> None:
    (problem,) = refused(WanCausalParams, shot_prompts=["a", "b"], shot_durations=[1])
    assert str(problem).startswith("shot_durations=[1]: has 1 number for 2 shots.")


@pytest.mark.parametrize(
    ("values", "field", "words"),
    [
        ({"shot_prompts": []}, "shot_prompts", "a list of 1 to 64 texts"),
        ({"shot_prompts": "a, b"}, "shot_prompts", "a list of 1 to 64 texts"),
        ({"shot_prompts": ["a", " "]}, "shot_prompts", "a list of 1 to 64 texts"),
        ({"shot_prompts": ["a", "b"], "shot_durations": [1]}, "shot_durations", "1 number for 2"),
        ({"shot_prompts": ["a", "b"], "shot_durations": [1, 0]}, "shot_durations", "at least 1"),
        (
            {"shot_prompts": ["a", "b"], "shot_durations": [9, 9]},
            "shot_durations",
            "needs 18 chunks",
        ),
        (
            {"shot_prompts": ["a"] * 8},
            "shot_prompts",
            "needs 8 chunks, and a clip of 81 frames has 7",
        ),
        ({"shot_prompts": ["a", "b"], "chunks_per_shot": 9}, "shot_prompts", "needs 10 chunks"),
        (
            {"shot_prompts": ["a", "b"], "shot_durations": [1, 1], "chunks_per_shot": 2},
            "chunks_per_shot",
            "says the same",
        ),
        ({"shot_durations": [3]}, "shot_durations", "is for shot_prompts"),
        ({"chunks_per_shot": 3}, "chunks_per_shot", "is for shot_prompts"),
        ({"window_latents": 0}, "window_latents", "at least itself"),
        ({"window_latents": 4, "sink_latents": 2}, "window_latents", "at least 5"),
        ({"window_latents": -2}, "window_latents", "from -1 to"),
        ({"sink_latents": -1}, "sink_latents", "from 0 to"),
        ({"chunk_latents": 0}, "chunk_latents", "from 1 to"),
        ({"num_inference_steps": 3}, "num_inference_steps", "distilled for 4 steps"),
        ({"dmd_denoising_steps": [250, 500]}, "dmd_denoising_steps", "do not fall"),
        ({"guidance_scale": 3.0}, "guidance_scale", "without guidance"),
        ({"given_pictures": 3}, "image_path", "no beginning of a clip"),
        ({"num_frames": 5000}, "num_frames", "too many"),
    ],
)
def test_bad_values_are_named(values: dict[str, Any], field: str, words: str) -> None:
    problems = refused(WanCausalParams, **{"prompt": "a", **values})
    assert [problem.field for problem in problems] == [field]
    assert words in str(problems[0])


@pytest.mark.parametrize(
    ("values", "field", "words"),
    [
        (
            {"relative_rope": True, "multi_shot_rope_offset": 2.0},
            "multi_shot_rope_offset",
            "effect",
        ),
        ({"shot_clean_recache": True, "multi_shot_sink": False}, "shot_clean_recache", "needs"),
        (
            {"window_latents": 20, "shot_prompts": ["a", "b"], "sink_latents": 8},
            "window_latents",
            "24",
        ),
        ({"width": 848, "height": 480}, "width", "multiples of 32"),
    ],
)
def test_bad_values_of_longlive_are_named(values: dict[str, Any], field: str, words: str) -> None:
    problems = refused(LongLive2Params, **{"prompt": "a", **values})
    assert [problem.field for problem in problems] == [field]
    assert words in str(problems[0])
    assert made(LongLive2Params, relative_rope=True).multi_shot_rope_offset == 0.0


def test_lists_come_as_text_from_flags() -> None:
    flags = {
        "shot_prompts": '["a", "the sea, at night"]',
        "shot_durations": "1,2",
        "dmd_denoising_steps": "1000,500",
    }
    params = build(WanCausalParams, [Layer("flag", flags)]).params
    assert params.shot_prompts == ("a", "the sea, at night")
    assert params.shot_durations == (1, 2)
    assert params.num_inference_steps == 2
    with pytest.raises(ParameterError, match="--shot-prompts"):
        build(WanCausalParams, [Layer("flag", {"shot_prompts": "a, b"})])


def test_pictures_are_counted() -> None:
    (one,) = prepare(WanCausalParams, [Layer("call", {"prompt": "a", "image_path": ["x.png"] * 5})])
    assert one.params.given_pictures == 5
    assert one.params.num_frames == 77
    (two,) = prepare(WanCausalParams, [Layer("call", {"prompt": "a", "seed": 1})], images_given=9)
    assert two.params.given_pictures == 9
    again = {"prompt": "a", "given_pictures": 9, "seed": 1}
    assert prepare(WanCausalParams, [Layer("call", again)], images_given=9)[0].params == two.params
    with pytest.raises(ParameterError, match="given_pictures"):
        prepare(WanCausalParams, [Layer("call", again)], images_given=1)
