"""Layers: who wins, what is reported, several prompts, seeds and pictures."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgld.api.errors import ParameterError
from sgld.params.merge import Layer, build, env_layer, split
from sgld.params.output import OutputOptions
from sgld.params.requests import fit_to_images, prepare
from sgld.params.sampling import Guided, TakesImage, VideoParams
from sgld.params.seeds import MAX_SEED, seeds_for
from sgld.params.serving import ServingOptions


class Clip(Guided, VideoParams):
    """A guided text-to-video family."""


class Animated(TakesImage, Guided, VideoParams):
    """A family that starts from a picture."""

    needs_image: ClassVar[bool] = True
    size_from_image: ClassVar[bool] = True


FLAG = Layer("flag", {"seed": "42"})
ENV = Layer("env", {"seed": "7"})
FILE = Layer("file", {"seed": 5}, source="f.yaml", lines={"seed": 3})
PRESET = Layer("preset", {"seed": 3}, source="known")


@pytest.mark.parametrize(
    ("layers", "value", "origin"),
    [([FLAG, ENV, FILE, PRESET], 42, "flag --seed"),
     ([ENV, FILE, PRESET], 7, "environment SGLD_SEED"),
     ([FILE, PRESET], 5, "file f.yaml:3"),
     ([PRESET], 3, "model preset known"),
     ([], None, "built-in"),
     ([Layer("flag", {"seed": None}), ENV, FILE], 7, "environment SGLD_SEED"),
     ([Layer("env", {"seed": ""}), FILE], 5, "file f.yaml:3")],
)  # fmt: skip
def test_the_strongest_layer_wins_and_is_named(layers: list[Layer], value: Any, origin: str):
    built = build(Clip, [Layer("call", {"prompt": "x"}), *layers])
    assert built.params.seed == value
    assert built.origins["seed"] == origin


def test_a_flag_equal_to_the_default_still_beats_the_file():
    default = Clip.model_fields["num_inference_steps"].default
    layers = [
        Layer("flag", {"prompt": "x", "num_inference_steps": str(default)}),
        Layer("file", {"num_inference_steps": 5}),
    ]
    built = build(Clip, layers)
    assert built.params.num_inference_steps == default
    assert built.origins["num_inference_steps"] == "flag --num-inference-steps"


def test_dashes_and_underscores_are_the_same():
    layer = Layer("file", {"prompt": "x", "num-frames": 5})
    assert build(Clip, [layer]).params.num_frames == 5
    with pytest.raises(ParameterError) as caught:
        build(Clip, [Layer("file", {"prompt": "x", "num-frames": 0})])
    assert caught.value.problems[0].field == "num-frames"


def test_a_wrong_value_in_a_file_names_file_and_line():
    layer = Layer("file", {"fps": 0}, source="f.yaml", lines={"fps": 9})
    with pytest.raises(ParameterError, match=r"fps=0: .*\(file f.yaml:9\)"):
        build(Clip, [Layer("call", {"prompt": "x"}), layer])


def test_the_environment_gives_only_known_names():
    environ = {
        "SGLD_SEED": "5",
        "SGLD_PLUGINS": "wan",
        "SGLD_PORT": "1",
        "HOME": "/",
        "SGLD_FPS": "",
    }
    assert env_layer([Clip], environ).values == {"seed": "5"}


def test_component_tables_merge_by_key_and_residency_as_a_whole():
    layers = [
        Layer(
            "flag", {"model_path": "m", "component_paths": {"vae": "a"}, "residency": ["resident"]}
        ),
        Layer("file", {"component_paths": {"vae": "b", "dit": "c"}}),
        Layer("file", {"residency": {"dit": "component-offload"}}),
    ]
    options = build(ServingOptions, layers).params
    assert options.component_paths == {"vae": "a", "dit": "c"}
    assert options.residency == {"all": "resident"}


def test_split_shares_names_and_guesses_unknown_ones():
    layer = Layer("flag", {"model_path": "m", "seed": "1", "overwrite": "true", "modle_path": "x"})
    (serving, output, clip), problems = split([layer], [ServingOptions, OutputOptions, Clip])
    assert [share[0].values for share in (serving, output, clip)] == [
        {"model_path": "m"}, {"overwrite": "true"}, {"seed": "1"}]  # fmt: skip
    assert str(problems[0]) == "--modle-path='x': is unknown. Did you mean --model-path?"
    _, problems = split([Layer("flag", {"quite": "true"})], [Clip], ["quiet"])
    assert "--quiet" in str(problems[0])


def test_option_classes_share_no_name():
    assert not ServingOptions.accepted() & OutputOptions.accepted()
    assert not (ServingOptions.accepted() | OutputOptions.accepted()) & Animated.accepted()


def run(values: dict[str, Any], cls: Any = Clip, **more: Any) -> Any:
    return prepare(cls, [Layer("flag", values)], draw=lambda limit: 1000, **more)


def test_each_prompt_gets_its_own_seeds_in_order():
    prepared = run({"prompt": ["a", "b"], "seed": "11", "num_outputs_per_prompt": "3"})
    assert [one.params.prompt for one in prepared] == ["a", "b"]
    assert [one.seeds for one in prepared] == [(11, 12, 13), (14, 15, 16)]
    assert [one.params.seed for one in prepared] == [11, 14]


def test_a_missing_seed_is_drawn_and_reported():
    (one,) = run({"prompt": "a", "num_outputs_per_prompt": "2"})
    assert one.seeds == (1000, 1001)
    assert one.params.seed == 1000
    assert one.built.origins["seed"] == "drawn"


@pytest.mark.parametrize(
    ("seed", "prompts", "outputs", "expected"),
    [(5, 1, 1, [(5,)]), ([9, 3], 1, 2, [(9, 3)]), ([9, 3], 2, 2, [(9, 3), (9, 3)]),
     ([1, 2, 3, 4], 2, 2, [(1, 2), (3, 4)]), ([4], 3, 1, [(4,)] * 3),
     (MAX_SEED, 1, 1, [(MAX_SEED,)])],
)  # fmt: skip
def test_seeds(seed: Any, prompts: int, outputs: int, expected: Any):
    assert seeds_for(seed, prompts, outputs) == expected


@pytest.mark.parametrize(
    ("seed", "prompts", "outputs", "message"),
    [([1, 2, 3], 1, 2, "must have 2"), ([1, 2, 3], 2, 2, "must have 2 or 4"),
     (MAX_SEED, 1, 2, str(MAX_SEED - 1))],
)  # fmt: skip
def test_wrong_seed_lists(seed: Any, prompts: int, outputs: int, message: str):
    with pytest.raises(ValueError, match=message):
        seeds_for(seed, prompts, outputs)
    with pytest.raises(ParameterError, match=r"--seed"):
        run({"prompt": ["p"] * prompts, "num_outputs_per_prompt": str(outputs),
             "seed": [str(s) for s in seed] if isinstance(seed, list) else str(seed)})  # fmt: skip


@given(st.integers(0, MAX_SEED - 100), st.integers(1, 10), st.integers(1, 10))
def test_counted_seeds_never_repeat(seed: int, prompts: int, outputs: int):
    every = [s for one in seeds_for(seed, prompts, outputs) for s in one]
    assert every == list(range(seed, seed + prompts * outputs))


@pytest.mark.parametrize(
    "seed", ["-1", "1.5", "true", "x", str(2**32), "", "1,,2", "1,-2", ["1", "x"], "nan"]
)
def test_bad_seeds_are_refused(seed: Any):
    with pytest.raises(ParameterError, match="whole number from 0 to 4294967295"):
        run({"prompt": "a", "seed": seed})


@pytest.mark.parametrize("seed", [True, -1, 1.0, "5", [], [1, True], [[1]], {"a": 1}])
def test_bad_seeds_of_a_file_are_refused(seed: Any):
    with pytest.raises(ParameterError, match="whole number from 0 to"):
        prepare(Clip, [Layer("file", {"prompt": "a", "seed": seed})])


def test_an_empty_prompt_among_several_is_named():
    with pytest.raises(ParameterError) as caught:
        run({"prompt": ["a", " ", "b"]})
    assert [problem.value for problem in caught.value.problems] == [" "]


def test_problems_of_several_prompts_are_told_once():
    with pytest.raises(ParameterError) as caught:
        run({"prompt": ["a", "b", "c"], "fps": "0"})
    assert len(caught.value.problems) == 1


def test_pictures_are_shared_or_one_for_each_prompt():
    shared = run({"prompt": ["a", "b"], "image_path": ["one.png"]}, Animated)
    assert [one.image_paths for one in shared] == [("one.png",), ("one.png",)]
    each = run({"prompt": ["a", "b"], "image_path": ["one.png", "two.png"]}, Animated)
    assert [one.image_paths for one in each] == [("one.png",), ("two.png",)]
    with pytest.raises(ParameterError, match="3 pictures for one prompt"):
        run({"prompt": ["a", "b"], "image_path": ["1", "2", "3"]}, Animated)


def test_a_needed_picture_may_be_held_by_the_caller():
    with pytest.raises(ParameterError, match="starts from a picture") as caught:
        run({"prompt": "a"}, Animated)
    assert caught.value.problems[0].field == "--image-path"
    assert run({"prompt": "a"}, Animated, images_given=1)[0].image_paths == ()


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((120, 128), (608, 640)),
        ((128, 120), (640, 608)),
        ((17, 31), (464, 848)),
        ((16, 16), (624, 624)),
    ],
)
def test_the_picture_decides_the_shape(size: tuple[int, int], expected: tuple[int, int]):
    (one,) = run({"prompt": "a", "image_path": "p.png"}, Animated)
    fitted = fit_to_images(one, [size])
    assert (fitted.params.width, fitted.params.height) == expected
    assert f"{expected[0]}x{expected[1]}" in fitted.built.notes[-1]
    (fixed,) = run({"prompt": "a", "image_path": "p.png", "size": "64x64"}, Animated)
    assert fit_to_images(fixed, [size]) == fixed
