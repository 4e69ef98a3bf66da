"""Checkpoints that do not fit together are refused by name, before any weight is read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import sgld
from sgld.api.errors import ModelError, ParameterError, RequestError, SgldError
from sgld.testing.parity import relative_l2
from sgld_sana.stages.size import nearest, resized

Tiny = Callable[[str], Path]
SMALL = {"width": 64, "height": 32, "num_inference_steps": 1, "seed": 1, "prompt": "a cat"}


@pytest.fixture
def copy(tiny: Tiny, tmp_path: Path) -> Callable[[str], Path]:
    """A checkpoint of one's own, to be changed."""
    return lambda variant: Path(shutil.copytree(tiny(variant), tmp_path / variant))


def change(folder: Path, file: str, **values: Any) -> None:
    path = folder / file
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, **values}))


def load(folder: Path) -> sgld.Model:
    return sgld.load(str(folder), device="cpu", dtype="float32")


@pytest.mark.parametrize(
    ("variant", "file", "values", "told"),
    [
        ("sana", "transformer/config.json", {"qk_norm": "l2"}, "qk_norm='l2'"),
        ("sana", "transformer/config.json", {"in_channels": 4, "out_channels": 4}, "8 channels"),
        ("sana", "transformer/config.json", {"guidance_embeds": True}, "takes the guidance scale"),
        ("sprint", "transformer/config.json", {"guidance_embeds": False}, "does not take the"),
        ("sana", "text_encoder/config.json", {"hidden_size": 24}, "24 wide"),
        ("video", "vae/config.json", {"_class_name": "AutoencoderDC"}, "'AutoencoderDC', not"),
        ("sana", "scheduler/scheduler_config.json", {"_class_name": "SCMScheduler"}, "Use DPM"),
        ("sprint", "scheduler/scheduler_config.json", {"_class_name": "DDIM"}, "Use SCMScheduler"),
        (
            "sana",
            "scheduler/scheduler_config.json",
            {"prediction_type": "epsilon"},
            "use_flow_sigmas must be true",
        ),
        ("sana", "model_index.json", {"_class_name": "SanaVideoPipeline"}, "one for pictures"),
    ],
)
def test_what_does_not_fit_is_named(
    variant: str, file: str, values: dict[str, Any], told: str, copy: Any
) -> None:
    folder = copy(variant)
    change(folder, file, **values)
    with pytest.raises(ModelError, match=told):
        load(folder)


@pytest.mark.parametrize("name", ["tokenizer", "scheduler"])
def test_a_missing_light_part_is_named(name: str, copy: Any) -> None:
    folder = copy("sana")
    shutil.rmtree(folder / name)
    with pytest.raises(SgldError, match=name):
        load(folder)


def test_a_text_encoder_may_be_the_whole_language_model(copy: Any, tiny: Tiny) -> None:
    folder = copy("sana")
    file = folder / "text_encoder" / "model.safetensors"
    tensors = {f"model.{name}": tensor for name, tensor in load_file(file).items()}
    save_file({**tensors, "lm_head.weight": torch.ones(360, 16)}, file)
    with load(folder) as whole, load(tiny("sana")) as decoder:
        one = whole.generate(want_latents=True, **SMALL)
        two = decoder.generate(want_latents=True, **SMALL)
    assert np.array_equal(one.outputs[0].latents, two.outputs[0].latents)


def test_an_unknown_tensor_is_refused(copy: Any) -> None:
    folder = copy("sana")
    file = folder / "transformer" / "diffusion_pytorch_model.safetensors"
    save_file({**load_file(file), "extra.weight": torch.ones(2)}, file)
    with pytest.raises(ModelError, match="extra"):
        load(folder)


def test_what_was_used_is_reported(tiny: Tiny) -> None:
    with load(tiny("sana")) as model:
        left = model.generate(**SMALL)
        asked = model.generate(flow_shift=5.0, **SMALL)
    assert left.parameters["flow_shift"] == 3.0
    assert asked.parameters["flow_shift"] == 5.0
    assert left.outputs[0].kind == "image"
    assert left.frames.shape == (1, 32, 64, 3)
    with load(tiny("sprint")) as model:
        sprint = model.generate(**{**SMALL, "num_inference_steps": 2})
    assert sprint.parameters["intermediate_timesteps"] == 1.3


def test_a_picture_decides_about_the_shape(tiny: Tiny) -> None:
    tall = np.full((200, 100, 3), 90, np.uint8)
    with load(tiny("video")) as model:
        result = model.generate(
            images=[tall], prompt="a cat", num_frames=1, num_inference_steps=1, seed=1
        )
    assert result.frames.shape == (1, 96, 32, 3)  # of 96 x 64 pixels, in steps of 32


def test_a_picture_is_needed_where_it_is(tiny: Tiny) -> None:
    with load(tiny("video_i2v")) as model, pytest.raises(ParameterError, match="starts from a"):
        model.generate(prompt="a cat")


def test_binning_without_a_table_is_refused_before_any_work(copy: Any) -> None:
    folder = copy("sana")
    change(folder, "transformer/config.json", sample_size=40)
    with load(folder) as model, pytest.raises(RequestError, match="sample_size=40"):
        model.generate(use_resolution_binning=True, **SMALL)


def test_tiling_is_asked_of_the_autoencoder(tiny: Tiny) -> None:
    size = {**SMALL, "width": 576, "height": 64}
    with load(tiny("sana")) as whole:
        one = whole.generate(want_latents=True, **size)
    with sgld.load(str(tiny("sana")), device="cpu", dtype="float32", vae_tiling=True) as tiled:
        two = tiled.generate(want_latents=True, **size)
    assert np.array_equal(one.outputs[0].latents, two.outputs[0].latents)
    assert not np.array_equal(one.frames, two.frames)
    assert one.frames.shape == two.frames.shape


def test_bfloat16_runs_close_to_float32(tiny: Tiny) -> None:
    params = {**SMALL, "num_inference_steps": 4, "want_latents": True}
    with load(tiny("sana15")) as full:
        wanted = full.generate(**params).outputs[0].latents
    with sgld.load(str(tiny("sana15")), device="cpu", dtype="bfloat16") as half:
        found = half.generate(**params).outputs[0].latents
    assert 1e-4 < relative_l2(found, wanted) < 0.1


@pytest.mark.parametrize(("variant", "tensors"), [("sana", 0), ("sprint", 0), ("video", 0)])
def test_random_weights_run_without_files(variant: str, tensors: int, copy: Any) -> None:
    folder = copy(variant)
    for file in folder.rglob("*.safetensors"):
        file.unlink()
    assert len(list(folder.rglob("*.safetensors"))) == tensors
    with sgld.load(str(folder), device="cpu", dtype="float32", load_format="dummy") as model:
        frames = model.generate(**SMALL).frames
    assert frames.std() > 0


def test_nearest_bin() -> None:
    bins = {"0.5": [704.0, 1408.0], "1.0": [1024.0, 1024.0], "2.0": [1408.0, 704.0]}
    assert nearest(bins, 600, 1000) == (704, 1408)
    assert nearest(bins, 1000, 1000) == (1024, 1024)
    assert nearest(bins, 3000, 1000) == (1408, 704)


@pytest.mark.parametrize("size", [(1000, 1000), (31, 97), (96, 32), (1, 1)])
def test_resized_has_exactly_the_size_asked_for(size: tuple[int, int]) -> None:
    frames = torch.rand(2, 3, 64, 96)
    assert resized(frames, *size).shape == (2, 3, *size)
    assert resized(frames, 64, 96) is frames
