"""Reads the weights of a checkpoint that `export.py` wrote back, as training has them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import load_file
from torch import Tensor

MEAN, STD = "latents_mean", "latents_std"
WEIGHTS: Final = "diffusion_pytorch_model.safetensors"
TEXT_WEIGHTS: Final = "model.safetensors"
PARTS: Final = {
    "transformer": (WEIGHTS, "transformer."),
    "text_encoder": (TEXT_WEIGHTS, "text_encoder.model."),
}
"""Files of the parts that the stage `dit` trains, and the prefix of their names in training."""


def vae(folder: Path) -> dict[str, Tensor]:
    """Weights and statistics of latents, float32; empty when `folder` is no checkpoint."""
    path = folder / "vae" / WEIGHTS
    if not path.is_file():
        return {}
    tensors = {name: tensor.float() for name, tensor in load_file(path).items()}
    config = json.loads((folder / "vae" / "config.json").read_text(encoding="utf-8"))
    return tensors | {name: torch.tensor(config[name]) for name in (MEAN, STD)}


def world(folder: Path) -> dict[str, Tensor]:
    """Weights of denoiser and text encoder, float32; empty when `folder` is no checkpoint."""
    tensors: dict[str, Tensor] = {}
    for part, (file, prefix) in PARTS.items():
        path = folder / part / file
        if not path.is_file():
            return {}
        tensors |= {prefix + name: tensor.float() for name, tensor in load_file(path).items()}
    return tensors
