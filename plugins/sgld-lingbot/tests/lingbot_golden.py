"""The golden tensors and their settings; made by a reference implementation in float32."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

DATA = Path(__file__).parent / "data"
ABSOLUTE = RELATIVE = 1e-4
"""Tolerance of every comparison with them."""


@cache
def tensors(name: str) -> dict[str, Tensor]:
    """Tensors of a file in the data folder."""
    return load_file(DATA / f"{name}.safetensors")


@cache
def settings(name: str) -> dict[str, Any]:
    """Settings of a fixture."""
    return json.loads((DATA / "golden.json").read_text())[name]


def same(ours: Tensor, theirs: Tensor) -> None:
    """Assert that two tensors agree within the fixtures' tolerance."""
    torch.testing.assert_close(ours.to(theirs.dtype), theirs, atol=ABSOLUTE, rtol=RELATIVE)


def network_config() -> dict[str, Any]:
    """The configuration of the golden network, in the words of the original code."""
    words = (
        "model_type", "patch_size", "qk_norm", "cross_attn_norm", "eps", "local_attn_size",
        "sink_size", "dim", "ffn_dim", "freq_dim", "text_dim", "text_len", "in_dim", "out_dim",
        "num_heads", "num_layers",
    )  # fmt: skip
    config = settings("causal_fast")["config"]
    return {word: config[word] for word in words}
