"""FLUX.1's parameters: embedded and true guidance, strength, sizes, presets."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sgld.api.errors import ParameterError
from sgld.params.merge import Layer, build
from sgld.params.requests import fit_to_images, prepare
from sgld_flux import plugin
from sgld_flux.params import FluxDevParams, FluxSchnellParams
from sgld_flux.presets import PRESETS
from sgld_flux.stages.schedule1 import first_step, shift_of

CLASSES = {"flux.1-dev": FluxDevParams, "flux.1-schnell": FluxSchnellParams}


def made(cls: Any, *layers: Layer, **values: Any) -> Any:
    return build(cls, [Layer("call", {"prompt": "x", **values}), *layers])


@pytest.mark.parametrize("cls", CLASSES.values())
def test_defaults_are_valid_and_survive_json(cls: Any) -> None:
    params = made(cls).params
    assert cls.model_validate(json.loads(json.dumps(params.model_dump(mode="json")))) == params
    assert (params.width, params.height, params.uses_cfg) == (1024, 1024, False)


def test_published_defaults() -> None:
    dev, schnell = made(FluxDevParams).params, made(FluxSchnellParams).params
    assert (dev.num_inference_steps, dev.guidance_scale, dev.max_sequence_length) == (28, 3.5, 512)
    assert (schnell.num_inference_steps, schnell.max_sequence_length) == (4, 256)


@pytest.mark.parametrize("family", PRESETS)
def test_every_preset_is_valid_for_its_pipeline(family: str) -> None:
    spec = next(spec for spec in plugin.sgld_pipelines() if spec.id == family)
    assert spec.params == f"sgld_flux.params:{CLASSES[family].__name__}"
    for preset in PRESETS[family]:
        built = made(CLASSES[family], Layer("preset", preset.defaults, source=preset.id))
        for name, value in preset.defaults.items():
            assert getattr(built.params, name) == value


@pytest.mark.parametrize(
    ("values", "active"),
    [({}, False), ({"true_cfg_scale": 4.0, "negative_prompt": "grey"}, True),
     ({"true_cfg_scale": 1.01, "negative_prompt": ""}, True),
     ({"true_cfg_scale": 1.0, "negative_prompt": ""}, False), ({"true_cfg_scale": 0.5}, False)],
)  # fmt: skip
@pytest.mark.parametrize("cls", CLASSES.values())
def test_true_guidance_needs_both(cls: Any, values: dict[str, Any], active: bool) -> None:
    assert made(cls, **values).params.uses_cfg is active


@pytest.mark.parametrize(
    ("cls", "values", "text"),
    [
        (FluxDevParams, {"true_cfg_scale": 4.0}, "true_cfg_scale.*needs a negative prompt"),
        (FluxDevParams, {"negative_prompt": "grey"}, "negative_prompt.*no effect"),
        (FluxSchnellParams, {"guidance_scale": 3.5}, "schnell has no guidance input"),
        (FluxDevParams, {"strength": 0.0}, "strength.*above 0"),
        (FluxDevParams, {"strength": 1.1}, "strength.*up to 1.0"),
        (FluxDevParams, {"strength": "0.5"}, "strength"),
        (FluxDevParams, {"width": 1000, "height": 1024}, "multiples of 16"),
        (FluxDevParams, {"width": 1024}, "needs height"),
        (FluxDevParams, {"max_sequence_length": 513}, "from 1 to 512"),
        (FluxDevParams, {"guidance_scale": -1.0}, "from 0.0 to 100.0"),
        (FluxDevParams, {"guidance_scale": float("nan")}, "guidance_scale"),
        (FluxDevParams, {"num_frames": 9}, "pictures, not clips"),
        (FluxDevParams, {"prompt": "  "}, "not empty"),
        (FluxDevParams, {"mask": "m.png"}, "mask"),
    ],
)
def test_what_is_refused(cls: Any, values: dict[str, Any], text: str) -> None:
    with pytest.raises(ParameterError, match=f"(?s){text}"):
        made(cls, **values)


def test_a_preset_may_set_a_scale_without_a_negative_prompt() -> None:
    """Only the user's own contradiction is an error."""
    assert not made(FluxDevParams, Layer("preset", {"true_cfg_scale": 2.0})).params.uses_cfg


def test_one_picture_and_no_more() -> None:
    assert prepare(FluxDevParams, [Layer("call", {"prompt": "x"})], images_given=1)
    with pytest.raises(ParameterError, match="this model takes 1"):
        prepare(FluxDevParams, [Layer("call", {"prompt": "x"})], images_given=2)


def test_the_output_takes_the_pictures_shape() -> None:
    (one,) = prepare(FluxDevParams, [Layer("call", {"prompt": "x"})], images_given=1)
    params = fit_to_images(one, [(400, 100)]).params
    assert (params.width, params.height) == (2048, 512)
    layer = Layer("call", {"prompt": "x", "width": 64, "height": 64})
    (one,) = prepare(FluxDevParams, [layer], images_given=1)
    assert fit_to_images(one, [(400, 100)]).params.width == 64


@pytest.mark.parametrize(
    ("steps", "strength", "first"),
    [(10, 1.0, 0), (10, 0.6, 4), (10, 0.05, 9), (4, 0.5, 2), (7, 0.35, 4), (4, 0.1, 3),
     (1, 0.01, 0), (28, 0.6, 11), (1000, 1e-19, 999)],
)  # fmt: skip
def test_strength_chooses_the_first_step(steps: int, strength: float, first: int) -> None:
    assert first_step(steps, strength) == first


@pytest.mark.parametrize(("tokens", "mu"), [(256, 0.5), (4096, 1.15), (1024, 0.63), (16384, 3.23)])
def test_dynamic_shift(tokens: int, mu: float) -> None:
    assert shift_of(tokens, {}) == pytest.approx(mu)
    half = {"base_image_seq_len": 0, "max_image_seq_len": 100, "base_shift": 0.0, "max_shift": 1.0}
    assert shift_of(tokens, half) == pytest.approx(tokens / 100)
