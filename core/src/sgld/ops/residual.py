"""Residual additions with a gate, alone or fused with the normalisation that follows them."""

from __future__ import annotations

import torch
from torch import Tensor

from sgld.ops.norm import grouped, layer, layer_modulate, spread, stepwise


def gate(x: Tensor, y: Tensor, gate: Tensor | None) -> Tensor:
    """x + gate·y, rounded once to the dtype of `x`; plain x + y without a gate.

    A gate in the half precision of `x` rounds the product too, as references do that stay in it.

    Args:
        x: the residual stream [B, S, D]; not written to, since step caches may hold it.
        y: a branch's output [B, S, D].
        gate: [B, G, D] with G dividing S, usually float32, or None.
    """
    if gate is None:
        return x + y
    tokens, groups = x.shape[1], gate.shape[1]
    if stepwise(x, gate):
        return x + (grouped(y, groups) * spread(gate, tokens)).view_as(x)
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    torch.addcmul(
        grouped(x, groups), grouped(y, groups), spread(gate, tokens), out=grouped(out, groups)
    )
    return out


def gate_layer(
    x: Tensor,
    y: Tensor,
    gate_by: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """`gate`, then `norm.layer` of the rounded sum: (residual, normed), both [B, S, D]."""
    residual = gate(x, y, gate_by)
    return residual, layer(residual, weight, bias, eps)


def gate_layer_modulate(
    x: Tensor, y: Tensor, gate_by: Tensor | None, scale: Tensor, shift: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """`gate`, then `norm.layer_modulate` of the rounded sum: (residual, normed), both [B, S, D]."""
    residual = gate(x, y, gate_by)
    return residual, layer_modulate(residual, scale, shift, eps)
