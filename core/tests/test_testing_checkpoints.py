"""A random checkpoint from modules: complete, in the diffusers layout, the same every time."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import nn

from sgld.testing.checkpoints import write_random
from sgld.weights.checkpoint import Checkpoint
from sgld.weights.files import ModelFiles
from sgld.weights.layout import diffusers_layout
from sgld.weights.loading import load_module


class Mixed(nn.Module):
    """Parameters, a norm, and a parameter that is a view."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(3, 2)
        self.norm = nn.LayerNorm(2)
        self.turned = nn.Parameter(torch.zeros(4, 2).T)


def write(folder: Path, seed: int = 0) -> dict[str, bytes]:
    modules = {"transformer": Mixed(), "vae": nn.Linear(2, 2)}
    write_random(folder, "MyPipeline", modules, configs={"transformer": {"width": 3}}, seed=seed)
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_what_is_written(tmp_path: Path) -> None:
    first, again, other = write(tmp_path / "a"), write(tmp_path / "b"), write(tmp_path / "c", 1)
    assert first == again
    assert first.keys() == other.keys()
    assert (
        first["vae/diffusion_pytorch_model.safetensors"]
        != other["vae/diffusion_pytorch_model.safetensors"]
    )
    index = json.loads(first["model_index.json"])
    assert index["_class_name"] == "MyPipeline"
    assert index["transformer"] == ["diffusers", "Mixed"]
    assert json.loads(first["transformer/config.json"]) == {"_class_name": "Mixed", "width": 3}


def test_it_can_be_loaded(tmp_path: Path) -> None:
    write(tmp_path)
    groups = {"transformer": "dit", "vae": "vae"}
    located = {row.name: row for row in diffusers_layout(ModelFiles(tmp_path, "x"), groups)}
    assert located["transformer"].config["width"] == 3
    checkpoint = Checkpoint.open(located["transformer"].weights, allow_pickle=False, field="x")
    module = load_module(Mixed, checkpoint, device="cpu", dtype=torch.float32)
    tensors = dict(module.named_parameters())
    assert all(tensor.abs().min() > 0 for tensor in tensors.values()), "no path is left dead"
