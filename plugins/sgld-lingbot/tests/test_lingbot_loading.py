"""Checkpoints: recognised, read in both layouts and namings, refused by name, real sizes."""

from __future__ import annotations

import hashlib
import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lingbot_bench import open_pipeline
from lingbot_golden import network_config
from safetensors.torch import load_file, save_file

from sgld.api.errors import ModelError, ParameterError
from sgld.engine.build import weigh
from sgld.params.merge import Layer, build
from sgld.params.serving import ServingOptions
from sgld.plan import ModelPlan, make_plan
from sgld.weights.components import ComponentOverrides
from sgld.weights.files import ModelFiles
from sgld_lingbot import blueprints, configs, testing
from sgld_lingbot.layout import locate
from sgld_lingbot.models.config import LingBotConfig
from sgld_lingbot.params import LingBotParams
from sgld_lingbot.plugin import PIPELINE
from sgld_lingbot.schedules import V1_STEPS, V2_STEPS
from sgld_wan import originals, weights

WEIGHTS = "diffusion_pytorch_model.safetensors"
PICTURE = np.random.default_rng(3).integers(0, 255, (32, 48, 3), dtype=np.uint8)
WALK = {"prompt": "a castle", "actions": [["w"], ["w", "l"], []]}


def plan_of(path: Path | str, **more: Any) -> ModelPlan:
    given = {"model_path": str(path), "device": "cpu", **more}
    return make_plan(build(ServingOptions, [Layer("call", given)]).params)


def latents_of(folder: Path) -> torch.Tensor:
    """Latents of the first chunk that a checkpoint makes."""
    opened = open_pipeline(folder)
    given = {"prompt": "x", "width": 48, "height": 32, "num_frames": 21}
    params = build(LingBotParams, [Layer("call", given)]).params
    return opened.chunk(opened.job(params, PICTURE), 0, WALK)[0]


def rewrite(path: Path, change: Any) -> None:
    save_file({change(name): tensor for name, tensor in load_file(path).items()}, path)


def publisher_layout(source: Path, target: Path) -> Path:
    """The tiny checkpoint as the publisher's own repositories are laid out."""
    shutil.copytree(source / "transformer", target / "transformers")
    shutil.copytree(source / "tokenizer", target / originals.TOKENIZER_FOLDER)
    text = load_file(source / "text_encoder" / "model.safetensors")
    named = {weights.original_text_encoder(name): tensor for name, tensor in text.items()}
    torch.save(named, target / originals.TEXT_ENCODER_FILE)
    vae = load_file(source / "vae" / WEIGHTS)
    named = {weights.original_vae(name, residual=False): tensor for name, tensor in vae.items()}
    torch.save(named, target / originals.VAE_FILES[0])
    return target


# --- recognition --------------------------------------------------------------------------------


def test_a_local_copy_is_recognised_by_what_it_says(tiny: Path) -> None:
    with closing(plan_of(tiny)) as plan:
        assert plan.spec.id == PIPELINE
        assert plan.params_class is LingBotParams
        assert set(plan.located) == {"text_encoder", "transformer", "vae"}
        assert list(plan.adapters) == [PIPELINE]


@pytest.mark.parametrize(("shift", "steps"), [(10.0, V1_STEPS), (5.0, V2_STEPS)])
def test_the_generation_of_a_copy_is_known_by_its_shift(
    tmp_path: Path, shift: float, steps: tuple[int, ...]
) -> None:
    blueprints.write(tmp_path / "copy", configs.transformer_config(), flow_shift=shift)
    with closing(plan_of(tmp_path / "copy", load_format="dummy")) as plan:
        built = build(plan.params_class, [Layer("call", {"prompt": "x"}), plan.preset_layer])
        assert built.params.dmd_denoising_steps == steps


def test_the_publishers_layout_is_recognised(tiny: Path, tmp_path: Path) -> None:
    with closing(plan_of(publisher_layout(tiny, tmp_path / "own"), allow_pickle=True)) as plan:
        assert plan.spec.id == PIPELINE
        assert set(plan.located) == {"text_encoder", "transformer", "vae"}


# --- what is loaded -----------------------------------------------------------------------------


def test_every_way_to_name_the_weights_gives_the_same_world(tiny: Path, tmp_path: Path) -> None:
    wanted = latents_of(tiny)
    ours = tmp_path / "ours"
    shutil.copytree(tiny, ours)
    rewrite(ours / "transformer" / WEIGHTS, weights.rename_dit)
    config = {
        **configs.transformer_config(
            attention_head_dim=testing.WIDTH // testing.HEADS,
            ffn_dim=48,
            freq_dim=32,
            num_attention_heads=testing.HEADS,
            num_layers=testing.LAYERS,
            text_dim=testing.TEXT_WIDTH,
        ),
        "num_frames_per_block": testing.CHUNK,
        "local_attn_size": testing.WINDOW,
        "sink_size": testing.SINK,
    }
    (ours / "transformer" / "config.json").write_text(json.dumps(config))
    assert torch.equal(latents_of(ours), wanted)
    assert torch.equal(latents_of(publisher_layout(tiny, tmp_path / "own")), wanted)


def test_the_publishers_layout_keeps_the_numbers_of_its_own_file(
    tiny: Path, tmp_path: Path
) -> None:
    opened = open_pipeline(publisher_layout(tiny, tmp_path / "own"))
    params = build(LingBotParams, [Layer("call", {"prompt": "x"})]).params
    assert opened.pipeline.memory(params) == (testing.CHUNK, testing.WINDOW, testing.SINK)


def test_a_missing_camera_weight_is_named(tiny: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(tiny, broken)
    path = broken / "transformer" / WEIGHTS
    tensors = load_file(path)
    del tensors["blocks.1.cam_scale_layer.weight"]
    save_file(tensors, path)
    with pytest.raises(ModelError, match=r"blocks\.1\.cam_scale_layer\.weight") as caught:
        open_pipeline(broken)
    assert caught.value.code == "checkpoint_incomplete"


def test_a_folder_without_a_layout_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"transformers/config\.json") as caught:
        locate(ModelFiles(tmp_path, "empty"))
    assert caught.value.code == "checkpoint_incomplete"


def test_overrides_of_the_publishers_layout_are_checked(tiny: Path, tmp_path: Path) -> None:
    files = ModelFiles(publisher_layout(tiny, tmp_path / "own"), "own")
    other = tmp_path / "other.safetensors"
    located = locate(files, ComponentOverrides(weights={"vae": other}))
    assert {where.name: where.weights for where in located}["vae"] == other
    with pytest.raises(ParameterError, match="vea"):
        locate(files, ComponentOverrides(weights={"vea": other}))
    with pytest.raises(ModelError, match=r"--component-weights-path\.vae"):
        locate(files, ComponentOverrides(paths={"vae": tmp_path}))


# --- configurations -----------------------------------------------------------------------------


def test_both_words_of_a_configuration_mean_the_same() -> None:
    original = LingBotConfig.from_json(testing.original_config())
    named = configs.transformer_config(
        attention_head_dim=32, ffn_dim=48, freq_dim=32, num_attention_heads=2, num_layers=2,
        text_dim=32, sliding_window_num_frames=9, sink_size=3, num_frame_per_block=3,
    )  # fmt: skip
    assert LingBotConfig.from_json(named) == original
    assert (original.chunk, original.window, original.sink) == (3, 9, 3)
    assert original.mask_channels == 4


def test_a_window_of_minus_one_says_nothing() -> None:
    config = LingBotConfig.from_json(network_config())  # window -1, sink 0
    assert (config.chunk, config.window, config.sink, config.text_length) == (None, None, None, 16)
    kept = LingBotConfig.from_json({**network_config(), "local_attn_size": 12})
    assert (kept.window, kept.sink) == (12, 0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"control_dim": 7}, "control_dim=7"),
        ({"control_type": "act"}, "control_type='act'"),
        ({"model_type": "t2v"}, "model_type='t2v'"),
        ({"num_heads": 5}, "heads must divide the width"),
        ({"dim": "wide"}, "dim='wide'"),
        ({"in_dim": 16}, "no room"),
        ({"patch_size": [2, 2, 2]}, "one latent frame"),
        ({"sink_size": -3}, "sink_size=-3"),
        ({"num_frames_per_block": "3"}, "num_frames_per_block='3'"),
        ({"local_attn_size": True}, "local_attn_size=True"),
        ({"colour": 1}, "colour"),
    ],
)
def test_a_configuration_that_is_not_computed_is_refused(
    change: dict[str, Any], words: str
) -> None:
    with pytest.raises(ModelError, match=r"transformer/config\.json") as caught:
        LingBotConfig.from_json({**testing.original_config(), **change})
    assert words in caught.value.message


# --- sizes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("lingbot-world-fast", 18.53e9),
        ("lingbot-world-v2-14b", 18.53e9),
        ("lingbot-world-v2-1.3b", 1.71e9),
    ],
)
def test_blueprints_have_the_real_size(name: str, numbers: float) -> None:
    with closing(plan_of(f"config:{name}", load_format="dummy")) as plan:
        assert weigh(plan)["transformer"].parameters == pytest.approx(numbers, rel=0.01)


def test_the_tiny_checkpoint_is_small_and_the_same_every_time(tiny: Path, tmp_path: Path) -> None:
    def prints(folder: Path) -> dict[str, str]:
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        return {
            str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in files
        }

    testing.tiny(tmp_path / "again")
    assert prints(tiny) == prints(tmp_path / "again")
    assert sum(path.stat().st_size for path in tiny.rglob("*") if path.is_file()) < 5_000_000
