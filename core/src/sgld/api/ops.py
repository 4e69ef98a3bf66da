"""The names of the ops that a kernel or an attention backend may take over; stdlib only.

Signatures and contracts are in `docs/ops.md`, the plain-torch references in `sgld.ops`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

ATTENTION: Final = "attention."
"""Ops that begin so are roles of attention: backends play them, not kernels."""

OPS: Final = (
    "norm.layer",
    "norm.layer_modulate",
    "norm.rms",
    "norm.rms_rope",
    "norm.head_rms_rope",
    "norm.channel_rms_silu",
    "residual.gate",
    "residual.gate_layer",
    "residual.gate_layer_modulate",
    "activation.gelu_tanh",
    "attention.self",
    "attention.cross",
    "attention.masked",
    "linear_attention.relu",
    "linear_attention.relu_rope",
)
"""Every op of `sgld.ops.table.Ops`, in its order."""

NEEDS: Final[Mapping[str, frozenset[str]]] = {"masked": frozenset({"mask"})}
"""Role of attention → abilities its backend must have; the others need none."""
