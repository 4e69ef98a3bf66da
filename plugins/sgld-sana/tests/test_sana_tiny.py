"""Tiny checkpoints: size, determinism, liveliness, and how they are recognised."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sana_oracle
import torch
from safetensors.torch import load_file

from sgld.params.merge import Layer, build
from sgld.params.serving import ServingOptions
from sgld.plan import make_plan
from sgld.testing.parity import relative_l2
from sgld_sana import blueprints, testing

Tiny = Callable[[str], Path]
VARIANTS = ("sana", "sana15", "sana_2k", "sprint", "video", "video_i2v")
PIPELINES = {
    "sana": "sana",
    "sana15": "sana",
    "sana_2k": "sana",
    "sprint": "sana-sprint",
    "video": "sana-video",
    "video_i2v": "sana-video-i2v",
}


def fingerprints(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def plan(path: str) -> Any:
    options = build(ServingOptions, [Layer("call", {"model_path": path, "device": "cpu"})]).params
    return make_plan(options)


@pytest.mark.parametrize("variant", VARIANTS)
def test_folder_is_small_and_the_same_every_time(tiny: Tiny, variant: str, tmp_path: Path) -> None:
    getattr(testing, f"tiny_{variant}")(tmp_path / "again")
    assert fingerprints(tiny(variant)) == fingerprints(tmp_path / "again")
    size = sum(path.stat().st_size for path in tiny(variant).rglob("*") if path.is_file())
    assert size < 5_000_000


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_tensor_is_constant(tiny: Tiny, variant: str) -> None:
    for file in tiny(variant).rglob("*.safetensors"):
        for name, tensor in load_file(file).items():
            assert torch.isfinite(tensor).all(), name
            assert tensor.numel() == 1 or tensor.std() > 0, f"{file}: {name}"


@pytest.mark.parametrize("variant", VARIANTS)
def test_reference_is_sane_and_follows_its_inputs(tiny: Tiny, variant: str) -> None:
    """Every input must move the latents far more than the 1e-4 that parity allows."""
    folder, picture = tiny(variant), None
    options: dict[str, Any] = {"height": 64, "width": 96, "steps": 2, "prompt": "a cat on the sea"}
    if variant == "video_i2v":
        picture = options["image"] = sana_oracle.picture()
    one = sana_oracle.run(folder, **options)
    assert np.isfinite(one.frames).all()
    assert one.frames.std() > 0.02
    assert ((one.frames <= 0) | (one.frames >= 1)).mean() < 0.05
    others = {
        "prompt": {"prompt": "red car 12345"},
        "guidance": {"guidance": 2.0},
        "seed": {"seed": 1},
        "instruction": {"instruction": ""},
    }
    if variant != "sprint":
        others |= {"negative prompt": {"negative_prompt": "blurry"}, "shift": {"flow_shift": 2.0}}
    if picture is not None:
        others["image"] = {"image": picture.rotate(180)}
    for name, change in others.items():
        other = sana_oracle.run(folder, **{**options, **change}, frames=False)
        assert relative_l2(other.latents, one.latents) > 0.003, name


@pytest.mark.parametrize("variant", VARIANTS)
def test_folder_is_recognised_by_its_index(tiny: Tiny, variant: str) -> None:
    found = plan(str(tiny(variant)))
    assert found.spec.id == PIPELINES[variant]
    params = found.build([Layer("call", {"prompt": "x"})]).params
    assert params.width < 200


@pytest.mark.parametrize(
    ("name", "id", "size"),
    [
        ("sana-0.6b", "sana", (1024, 1024)),
        ("sana-1.6b", "sana", (1024, 1024)),
        ("sana1.5-4.8b", "sana", (1024, 1024)),
        ("sana-sprint-1.6b", "sana-sprint", (1024, 1024)),
        ("sana-video-2b", "sana-video", (832, 480)),
    ],
)
def test_real_sizes_are_planned_without_weights(name: str, id: str, size: Any) -> None:
    options = {"model_path": f"config:{name}", "device": "cpu", "load_format": "dummy"}
    found = make_plan(build(ServingOptions, [Layer("call", options)]).params)
    try:
        params = found.build([Layer("call", {"prompt": "x"})]).params
        assert found.spec.id == id
        assert (params.width, params.height) == size
    finally:
        found.close()


@pytest.mark.parametrize(("rows", "side"), [(16, 512), (32, 1024), (64, 2048), (128, 4096)])
def test_the_trained_size_is_the_default(rows: int, side: int, tmp_path: Path) -> None:
    import json

    blueprints.sana_1_6b(tmp_path)
    file = tmp_path / "transformer" / "config.json"
    config = {**json.loads(file.read_text()), "sample_size": rows}
    file.write_text(json.dumps(config))
    options = {"model_path": str(tmp_path), "device": "cpu", "load_format": "dummy"}
    found = make_plan(build(ServingOptions, [Layer("call", options)]).params)
    params = found.build([Layer("call", {"prompt": "x"})]).params
    assert (params.width, params.height) == (side, side)


@pytest.mark.parametrize("name", blueprints.BLUEPRINTS)
def test_upstream_libraries_accept_the_configurations(name: str, tmp_path: Path) -> None:
    blueprints.BLUEPRINTS[name](tmp_path)
    assert not list(tmp_path.rglob("*.safetensors"))
    index = sana_oracle.json.loads((tmp_path / "model_index.json").read_text())
    for part in ("transformer", "vae"):
        kind = getattr(sana_oracle.diffusers, index[part][1])
        with torch.device("meta"):
            kind.from_config(kind.load_config(tmp_path / part))
    config = sana_oracle.transformers.AutoConfig.from_pretrained(tmp_path / "text_encoder")
    with torch.device("meta"):
        model = sana_oracle.transformers.AutoModel.from_config(config)
    assert 2.5e9 < sum(parameter.numel() for parameter in model.parameters()) < 2.7e9
