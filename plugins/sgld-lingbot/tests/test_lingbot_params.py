"""What a request may ask for: rules, recipes, lengths, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgld.api.errors import ParameterError
from sgld.params.merge import Built, Layer, build
from sgld.plugins.catalog import load_catalog
from sgld_lingbot.params import LONGEST_WINDOW, LingBotParams, RecipeName
from sgld_lingbot.plugin import PIPELINE
from sgld_lingbot.presets import PRESETS
from sgld_lingbot.schedules import RECIPES, V1_STEPS, V2_STEPS


def settle(*, preset: dict[str, Any] | None = None, **values: Any) -> Built[LingBotParams]:
    layers = [Layer("call", {"prompt": "a castle", **values})]
    if preset:
        layers.append(Layer("preset", preset))
    return build(LingBotParams, layers)


def refused(**values: Any) -> list[str]:
    with pytest.raises(ParameterError) as caught:
        settle(**values)
    return [str(problem) for problem in caught.value.problems]


def test_defaults_leave_the_memory_to_the_checkpoint() -> None:
    params = settle().params
    assert (params.width, params.height, params.fps) == (832, 480, 16)
    assert params.dmd_denoising_steps == V2_STEPS
    assert params.num_inference_steps == 4
    memory = (params.chunk_latents, params.realtime_causal_kv_cache_num_frames)
    assert (*memory, params.realtime_causal_sink_size, params.flow_shift) == (None,) * 4
    assert params.camera_actions is None


def test_recipe_names_are_the_recipes() -> None:
    assert set(RecipeName.__args__) == set(RECIPES)


def test_a_recipe_fills_in_what_the_user_did_not_say() -> None:
    preset = {"dmd_denoising_steps": V2_STEPS}
    params = settle(recipe="v1-script", realtime_causal_sink_size=0, preset=preset).params
    assert params.dmd_denoising_steps == V1_STEPS
    assert params.flow_shift == 10
    assert params.timestep_table == "unipc"
    assert params.chunk_latents == 3
    assert params.realtime_causal_kv_cache_num_frames == 18
    assert params.realtime_causal_sink_size == 0


@pytest.mark.parametrize(
    ("values", "frames"),
    [
        ({"num_frames": 81}, 81),
        ({"num_frames": 80}, 77),
        ({"num_frames": 81, "chunk_latents": 3}, 81),
        ({"num_frames": 80, "chunk_latents": 3}, 69),
        ({"num_frames": 81, "chunk_latents": 4}, 77),
        ({"num_frames": 2, "chunk_latents": 4}, 13),
        ({"num_frames": 1, "chunk_latents": 4}, 1),
        ({"num_frames": 7, "chunk_latents": 1}, 5),
        ({"seconds": 5, "fps": 16, "recipe": "v2-script"}, 77),
    ],
)
def test_lengths_are_whole_chunks(values: dict[str, Any], frames: int) -> None:
    built = settle(**values)
    assert built.params.num_frames == frames
    assert bool(built.notes) == (values.get("num_frames") != frames)


@given(st.integers(1, 4093), st.integers(1, 16))
def test_a_length_is_the_longest_that_is_not_longer(frames: int, chunk: int) -> None:
    rounded = settle(num_frames=frames, chunk_latents=chunk).params.num_frames
    if frames == 1:  # a picture
        assert rounded == 1
        return
    latents = (rounded - 1) // 4 + 1
    assert rounded % 4 == 1
    assert latents % chunk == 0
    assert rounded <= frames < rounded + 4 * chunk or rounded == 4 * chunk - 3


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"guidance_scale": 3.0}, ["guidance_scale", "without guidance"]),
        ({"negative_prompt": "fog"}, ["negative_prompt", "without guidance"]),
        ({"true_cfg_scale": 3.0}, ["true_cfg_scale", "without guidance"]),
        ({"num_inference_steps": 8}, ["num_inference_steps=8", "4 steps"]),
        ({"dmd_denoising_steps": (250, 500)}, ["dmd_denoising_steps", "fall"]),
        ({"timestep_table": "euler"}, ["timestep_table", "self-forcing, unipc"]),
        ({"recipe": "v3"}, ["recipe", "v2-script"]),
        ({"chunk_latents": 0}, ["chunk_latents", "1 to 16"]),
        ({"chunk_latents": 17}, ["chunk_latents", "1 to 16"]),
        ({"realtime_causal_sink_size": -1}, ["realtime_causal_sink_size", "0 to 239"]),
        ({"realtime_causal_sink_size": True}, ["realtime_causal_sink_size"]),
        ({"realtime_causal_kv_cache_num_frames": 0}, ["num_frames=0", "1 to 240"]),
        ({"realtime_causal_kv_cache_num_frames": LONGEST_WINDOW + 1}, ["1 to 240"]),
        ({"realtime_causal_kv_cache_num_frames": 6.5}, ["num_frames=6.5"]),
        ({"camera_actions": [["w"], ["W"]]}, ["camera_actions", "lower case"]),
        ({"camera_actions": [["w"], ["x"]]}, ["camera_actions", "'x'", "i, j, k, l"]),
        ({"camera_actions": [["w"]] * 513}, ["camera_actions", "513", "512"]),
        ({"camera_actions": "w"}, ["camera_actions", "one list of action tokens"]),
        ({"size": "833x480"}, ["16"]),
        ({"size": "1920x1088"}, ["921600"]),
        ({"max_sequence_length": 100}, ["max_sequence_length"]),
    ],
)
def test_a_wrong_value_is_refused_by_name(values: dict[str, Any], words: list[str]) -> None:
    text = "\n".join(refused(**values))
    for word in words:
        assert word in text


@pytest.mark.parametrize(
    ("chunk", "window", "sink"),
    [(3, 5, 3), (4, 3, None), (None, 6, 6), (3, 11, 9), (16, 18, 3)],
)
def test_a_window_without_room_is_refused(
    chunk: int | None, window: int | None, sink: int | None
) -> None:
    given = {
        "chunk_latents": chunk,
        "realtime_causal_kv_cache_num_frames": window,
        "realtime_causal_sink_size": sink,
    }
    (problem,) = refused(**{name: value for name, value in given.items() if value is not None})
    least = (chunk or 1) + (sink or 0)
    assert "realtime_causal_kv_cache_num_frames" in problem
    assert f"at least {least}" in problem
    given["realtime_causal_kv_cache_num_frames"] = least
    settle(**{name: value for name, value in given.items() if value is not None})


def test_keys_are_read_from_a_flag() -> None:
    layer = Layer("flag", {"prompt": "x", "camera_actions": '[["w"], ["w", "l", "w"], []]'})
    params = build(LingBotParams, [layer]).params
    assert params.camera_actions == (("w",), ("w", "l"), ())
    with pytest.raises(ParameterError, match="one list of action tokens"):
        build(LingBotParams, [Layer("flag", {"prompt": "x", "camera_actions": "w,w"})])


def test_every_preset_can_be_settled_and_none_outranks_the_checkpoint() -> None:
    for preset in PRESETS:
        settle(preset=dict(preset.defaults))
        assert not {"flow_shift", "chunk_latents", "recipe"} & set(preset.defaults)


def test_the_plugin_is_found_and_whole() -> None:
    catalog = load_catalog({})
    assert catalog.pipelines[PIPELINE].spec.presets == PRESETS
    assert catalog.realtime[PIPELINE].spec.pipeline == PIPELINE
    assert not [row for row in catalog.failures if row.plugin == "lingbot"]
