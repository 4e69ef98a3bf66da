"""Wan's own parameters: grids, two scales, distilled steps, pictures, presets."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sgld.api.errors import ParameterError
from sgld.params.merge import Layer, build
from sgld.params.requests import fit_to_images, prepare
from sgld.plugins.catalog import load_target
from sgld_wan import params as wan
from sgld_wan.presets import PRESETS

CLASSES = [
    wan.WanT2VParams,
    wan.WanI2VParams,
    wan.Wan22T2VA14BParams,
    wan.Wan22I2VA14BParams,
    wan.Wan22TI2V5BParams,
    wan.WanDMDParams,
    wan.WanDMD5BParams,
    wan.WanDMDI2VA14BParams,
]
GUIDED = CLASSES[:5]
DISTILLED = CLASSES[5:]


def made(cls: Any, *layers: Layer, **values: Any) -> Any:
    return build(cls, [Layer("call", {"prompt": "x", **values}), *layers])


@pytest.mark.parametrize("cls", CLASSES)
def test_defaults_are_valid_and_survive_json(cls: Any):
    params = made(cls).params
    assert cls.model_validate(json.loads(json.dumps(params.model_dump(mode="json")))) == params
    assert params.width % cls.spatial_multiple == params.height % cls.spatial_multiple == 0
    assert params.num_frames % 4 == 1
    assert params.uses_cfg is (cls in GUIDED)


@pytest.mark.parametrize(
    ("cls", "expected"),
    [(wan.WanT2VParams, (832, 480, 81, 16, 50, 5.0)),
     (wan.Wan22T2VA14BParams, (832, 480, 81, 16, 40, 4.0)),
     (wan.Wan22TI2V5BParams, (1280, 704, 121, 24, 50, 5.0))],
)  # fmt: skip
def test_published_defaults(cls: Any, expected: tuple[Any, ...]):
    p = made(cls).params
    values = (p.width, p.height, p.num_frames, p.fps, p.num_inference_steps, p.guidance_scale)
    assert values == expected


@pytest.mark.parametrize("family", PRESETS)
def test_every_preset_is_valid_for_its_pipeline(family: str):
    from sgld_wan import plugin

    spec = next(spec for spec in plugin.sgld_pipelines() if spec.id == family)
    cls = load_target(spec.params)
    for preset in PRESETS[family]:
        built = made(cls, Layer("preset", preset.defaults, source=preset.id))
        assert built.notes == ()
        for name, value in preset.defaults.items():
            assert getattr(built.params, name) == value


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize(
    ("width", "height"), [(848, 480), (1280, 720), (1280, 704), (832, 472), (64, 96)]
)
def test_the_grid_is_16_or_32(cls: Any, width: int, height: int):
    unit = 32 if cls in (wan.Wan22TI2V5BParams, wan.WanDMD5BParams) else 16
    fits = width % unit == 0 and height % unit == 0
    if fits:
        assert made(cls, width=width, height=height).params.width == width
        return
    with pytest.raises(ParameterError, match=f"multiples of {unit} pixels"):
        made(cls, width=width, height=height)


def test_720p_is_704_lines_on_the_5b_grid():
    built = made(wan.Wan22TI2V5BParams, size="720p")
    assert (built.params.width, built.params.height) == (1280, 704)
    assert "704 instead of 720" in built.notes[0]


def test_negative_prompts():
    assert made(wan.WanT2VParams).params.negative_prompt.startswith("色调艳丽，过曝")
    assert made(wan.WanI2VParams).params.negative_prompt.startswith("镜头晃动，色调艳丽")
    assert made(wan.WanT2VParams, negative_prompt="").params.negative_prompt == ""
    assert made(wan.WanT2VParams, negative_prompt=None).params.negative_prompt


@pytest.mark.parametrize(
    ("first", "second", "low", "active"),
    [(4.0, None, 4.0, True), (1.0, None, 1.0, False), (1.0, 3.0, 3.0, True), (3.0, 1.0, 1.0, True),
     (0.5, 1.0, 1.0, False)],
)  # fmt: skip
def test_two_scales(first: float, second: float | None, low: float, active: bool):
    params = made(wan.Wan22T2VA14BParams, guidance_scale=first, guidance_scale_2=second).params
    assert params.low_noise_guidance == low
    assert params.uses_cfg is active


def test_an_explicit_scale_is_not_undone_by_a_preset():
    preset = Layer("preset", {"guidance_scale": 4.0, "guidance_scale_2": 3.0})
    assert made(wan.Wan22T2VA14BParams, preset).params.low_noise_guidance == 3.0
    built = made(wan.Wan22T2VA14BParams, preset, guidance_scale=1)
    assert not built.params.uses_cfg
    assert "both experts" in built.notes[0]
    kept = made(wan.Wan22T2VA14BParams, preset, guidance_scale=1, guidance_scale_2=2).params
    assert (kept.guidance_scale, kept.low_noise_guidance) == (1.0, 2.0)


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [("boundary_ratio", 1.01, "from 0.0 to 1.0"), ("boundary_ratio", "0.9", "from 0.0 to 1.0"),
     ("boundary_ratio", True, "from 0.0 to 1.0"), ("guidance_scale_2", -1, "from 0.0 to 100.0"),
     ("flow_shift", 0, "from 0.1 to 100.0"), ("flow_shift", float("nan"), "from 0.1 to 100.0"),
     ("max_sequence_length", 513, "from 1 to 512 .tokens."), ("max_sequence_length", 0, "from 1")],
)  # fmt: skip
def test_own_parameters_are_checked(name: str, value: Any, rule: str):
    with pytest.raises(ParameterError, match=rule):
        made(wan.Wan22T2VA14BParams, **{name: value})


@pytest.mark.parametrize("cls", DISTILLED)
@pytest.mark.parametrize("name", ["guidance_scale", "guidance_scale_2", "negative_prompt"])
def test_distilled_models_refuse_guidance(cls: Any, name: str):
    value = "x" if name == "negative_prompt" else 1.0
    with pytest.raises(ParameterError, match="distilled and runs without guidance"):
        made(cls, **{name: value})


@pytest.mark.parametrize(
    ("way", "value", "steps"),
    [("flag", "1000,757,522", (1000, 757, 522)), ("flag", "999", (999,)),
     ("call", [988, 932, 852, 608], (988, 932, 852, 608)), ("file", (500, 1), (500, 1))],
)  # fmt: skip
def test_distilled_steps(way: Any, value: Any, steps: tuple[int, ...]):
    built = build(wan.WanDMDParams, [Layer(way, {"prompt": "x", "dmd_denoising_steps": value})])
    assert built.params.dmd_denoising_steps == steps
    assert built.params.num_inference_steps == len(steps)


@pytest.mark.parametrize(
    "value", [[], [0], [1001], [500, 500], [1, 2], [1.5], [True], "x", list(range(17, 0, -1)), 5.0]
)
def test_bad_distilled_steps(value: Any):
    with pytest.raises(ParameterError, match="1 to 16 falling whole numbers"):
        made(wan.WanDMDParams, dmd_denoising_steps=value)


def test_the_step_count_of_a_distilled_model_is_fixed():
    assert made(wan.WanDMDParams, num_inference_steps=3).params.num_inference_steps == 3
    with pytest.raises(ParameterError, match="was distilled for 3 steps") as caught:
        made(wan.WanDMDParams, num_inference_steps=4)
    assert caught.value.problems[0].field == "num_inference_steps"


@pytest.mark.parametrize("cls", CLASSES)
def test_pictures_are_needed_optional_or_refused(cls: Any):
    takes = "image" in " ".join(cls.tasks)
    needs = takes and "text-to-video" not in cls.tasks
    assert (cls.takes_image, cls.needs_image) == (takes, needs)
    if not takes:
        with pytest.raises(ParameterError, match="takes no input picture"):
            prepare(cls, [Layer("call", {"prompt": "x", "image_path": "a.png"})])
        return
    (one,) = prepare(cls, [Layer("call", {"prompt": "x", "image_path": "a.png"})])
    fitted = fit_to_images(one, [(100, 300)]).params
    assert fitted.width < fitted.height
    assert fitted.width % cls.spatial_multiple == 0
    if needs:
        with pytest.raises(ParameterError, match="starts from a picture"):
            prepare(cls, [Layer("call", {"prompt": "x"})])


@pytest.mark.parametrize("frames", [4093, 4096])
def test_the_position_table_limits_a_clip(frames: int):
    if frames > 4093:
        with pytest.raises(ParameterError, match="limit of this model is 4093"):
            made(wan.WanT2VParams, num_frames=frames)
    else:
        assert made(wan.WanT2VParams, num_frames=frames).params.num_frames == frames
