"""Components: what the index lists, what the user replaces, what memory they need."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from sgld.api.errors import ModelError, ParameterError
from sgld.weights.components import (
    ComponentOverrides,
    Listed,
    component_bytes,
    component_folder,
    component_weights,
    override_flag,
    parse_precision,
    read_index,
)
from sgld.weights.files import ModelFiles


@pytest.fixture
def model(tmp_path: Path) -> ModelFiles:
    root = tmp_path / "model"
    index = {
        "_class_name": "TinyPipeline",
        "transformer": ["diffusers", "TinyTransformer"],
        "vae": ["tiny_library", "TinyVae"],
        "scheduler": ["diffusers", "EulerScheduler"],
        "image_encoder": [None, None],
        "transformer_2": ["diffusers", None],
        "modular": ["diffusers", "Modular", {"repo": "x"}],
        "boundary_ratio": 0.5,
        "sizes": [1, 2],
    }
    for name in ("transformer", "vae", "scheduler", "modular"):
        (root / name).mkdir(parents=True)
    (root / "model_index.json").write_text(json.dumps(index))
    weights = {"w": np.zeros((10, 4), np.float32), "ids": np.zeros(3, np.int64)}
    save_file(weights, root / "transformer" / "diffusion_pytorch_model.safetensors")
    save_file({"w": np.zeros(6, np.float16)}, root / "vae" / "model.safetensors")
    return ModelFiles(root, "model")


def test_the_index(model: ModelFiles) -> None:
    index = read_index(model)
    assert index is not None
    assert index.class_name == "TinyPipeline"
    assert index.components == {
        "transformer": Listed("diffusers", "TinyTransformer"),
        "vae": Listed("tiny_library", "TinyVae"),
        "scheduler": Listed("diffusers", "EulerScheduler"),
        "modular": Listed("diffusers", "Modular"),
    }
    assert index.settings == {"boundary_ratio": 0.5, "sizes": [1, 2]}


def test_no_index_is_none(tmp_path: Path) -> None:
    assert read_index(ModelFiles(tmp_path, "x")) is None


@pytest.mark.parametrize("name", ["../other/vae", "/tmp/vae", "..", "a.b", ""])
def test_a_name_that_is_a_path_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "model_index.json").write_text(json.dumps({name: ["diffusers", "AutoencoderKL"]}))
    with pytest.raises(ModelError, match="is no name of a component") as caught:
        read_index(ModelFiles(tmp_path, "x"))
    assert caught.value.code == "checkpoint_incomplete"


def test_sizes_come_from_headers(model: ModelFiles, tmp_path: Path) -> None:
    sizes = component_bytes(model)
    assert set(sizes) == {"transformer", "vae"}
    transformer = sizes["transformer"]
    assert (transformer.parameters, transformer.bytes) == (43, 160 + 24)
    assert transformer.bytes_at("auto") == 184
    assert transformer.bytes_at("float32") == 184
    assert transformer.bytes_at("bf16") == 80 + 24
    assert sizes["vae"].bytes_at("float32") == 24
    other = tmp_path / "big.safetensors"
    save_file({"w": np.zeros(1000, np.float32)}, other)
    overrides = ComponentOverrides.build(weights={"vae": str(other)})
    assert component_bytes(model, overrides)["vae"].parameters == 1000


def test_a_damaged_component_is_named_by_the_plan(model: ModelFiles) -> None:
    path = model.path("vae/model.safetensors")
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(ModelError, match=r"vae: (?s:.*)truncated"):
        component_bytes(model)


def test_folders_and_weights(model: ModelFiles, tmp_path: Path) -> None:
    other = tmp_path / "other vae"
    other.mkdir()
    weights = tmp_path / "w.safetensors"
    weights.write_bytes(b"")
    overrides = ComponentOverrides.build(
        paths={"vae": f"{other}/", "transformer": str(weights)}, precisions={"vae": "fp32"}
    )
    assert component_folder(model, "vae") == model.path("vae")
    assert component_folder(model, "vae", overrides) == other
    assert component_weights(model, "vae", overrides) == other
    assert component_folder(model, "transformer", overrides) == model.path("transformer")
    assert component_weights(model, "transformer", overrides) == weights
    assert overrides.weights == {"transformer": weights}
    assert overrides.precision("vae") == "float32"
    assert overrides.precision("transformer") == "auto"
    assert overrides.precision("transformer", "bfloat16") == "bfloat16"
    with pytest.raises(ModelError, match=r"'image_encoder'.*--component-path\.image_encoder"):
        component_folder(model, "image_encoder")


def test_every_wrong_override_is_listed(tmp_path: Path) -> None:
    weights = tmp_path / "w.safetensors"
    weights.write_bytes(b"")
    with pytest.raises(ParameterError) as caught:
        ComponentOverrides.build(
            paths={"vae": str(weights), "clip": "/no/such", "empty": ""},
            weights={"vae": str(weights)},
            precisions={"vae": "fp12"},
        )
    fields = [problem.field for problem in caught.value.problems]
    assert fields == [
        "component_path.vae",
        "component_path.clip",
        "component_path.empty",
        "component_precision.vae",
    ]
    assert caught.value.problems[0].code == "conflict"
    assert "float16" in str(caught.value)


def test_unknown_components_name_the_valid_ones(tmp_path: Path) -> None:
    overrides = ComponentOverrides.build(
        paths={"vea": str(tmp_path)}, precisions={"vae": "bf16", "clip": "fp16"}
    )
    with pytest.raises(ParameterError) as caught:
        overrides.validate(["vae", "transformer"])
    assert [problem.field for problem in caught.value.problems] == [
        "component_path.vea",
        "component_precision.clip",
    ]
    assert "transformer, vae" in str(caught.value)
    overrides.validate(["vae", "vea", "clip"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("auto", "auto"),
        ("BF16", "bfloat16"),
        ("torch.float16", "float16"),
        (" fp32 ", "float32"),
        ("half", "float16"),
        ("float8", None),
        ("", None),
        ("16", None),
    ],
)
def test_precisions(text: str, expected: str | None) -> None:
    if expected is not None:
        assert parse_precision(text) == expected
        return
    with pytest.raises(ParameterError, match="auto, float32, bfloat16, float16") as caught:
        parse_precision(text, "vae_precision")
    assert caught.value.problems[0].field == "vae_precision"


@pytest.mark.parametrize(
    ("flag", "expected"),
    [
        ("--component-path.vae", ("path", "vae")),
        ("--component-paths.text_encoder_2", ("path", "text_encoder_2")),
        ("component_paths.vae", ("path", "vae")),
        ("--component-weights-path.vae", ("weights", "vae")),
        ("--component-weights-paths.vae", ("weights", "vae")),
        ("--component-precision.vae", ("precision", "vae")),
        ("--component-precisions.vae", ("precision", "vae")),
        ("--vae-path", ("path", "vae")),
        ("--text-encoder-path", ("path", "text_encoder")),
        ("--text-encoder-2-weights-path", ("weights", "text_encoder_2")),
        ("--vae-precision", ("precision", "vae")),
        ("--path", None),
        ("--component-path", None),
        ("--vae-tiling", None),
        ("--component-path.", None),
        ("--component-weights-path", None),
        ("", None),
    ],
)
def test_every_spelling_of_an_override(flag: str, expected: Any) -> None:
    assert override_flag(flag) == expected
