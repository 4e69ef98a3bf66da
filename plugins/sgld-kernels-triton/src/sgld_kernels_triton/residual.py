"""`residual.gate`, `residual.gate_layer`, `residual.gate_layer_modulate` in one pass each.

Signatures and roundings are those of `sgld.ops.residual`; `launch` overrides the size of a program,
for measurements. All raise ValueError where a shape does not fit.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sgld.ops.norm import stepwise
from sgld_kernels_triton.kernels import residual_norm, wide
from sgld_kernels_triton.launch import (
    NO_GROUPS,
    Launch,
    fits,
    groups,
    launch_for,
    on_device,
    rows,
)


def gate(x: Tensor, y: Tensor, gate: Tensor | None, *, launch: Launch | None = None) -> Tensor:
    """x + gate·y or x + y: [B, S, D] in the dtype of `x`, rounded once."""
    total, _ = fused(x, y, gate, norm=False, launch=launch)
    assert total is not None
    return total


def gate_layer(
    x: Tensor,
    y: Tensor,
    gate_by: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    *,
    launch: Launch | None = None,
) -> tuple[Tensor, Tensor]:
    """`gate`, then the layer norm of the rounded sum with weight and bias [D]."""
    total, out = fused(x, y, gate_by, weight=weight, bias=bias, eps=eps, launch=launch)
    assert total is not None
    assert out is not None
    return total, out


def gate_layer_modulate(
    x: Tensor,
    y: Tensor,
    gate_by: Tensor | None,
    scale: Tensor,
    shift: Tensor,
    eps: float,
    *,
    launch: Launch | None = None,
) -> tuple[Tensor, Tensor]:
    """`gate`, then the layer norm of the rounded sum, times 1 + scale, plus shift [B, G, D]."""
    total, out = fused(x, y, gate_by, scale=scale, shift=shift, eps=eps, launch=launch)
    assert total is not None
    assert out is not None
    return total, out


def fused(
    x: Tensor,
    y: Tensor | None = None,
    gate_by: Tensor | None = None,
    *,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
    eps: float = 0.0,
    norm: bool = True,
    launch: Launch | None = None,
) -> tuple[Tensor | None, Tensor | None]:
    """The sum where there is a `y`, and the norm unless `norm` is False; see `residual_norm`."""
    stream = rows(x)
    tokens = stream.tensor
    width = tokens.shape[-1]
    branch = None
    if y is not None:
        if y.shape != x.shape:
            raise ValueError(f"y {tuple(y.shape)}: must be {tuple(x.shape)}, as x.")
        branch = rows(y)
    gates = NO_GROUPS if gate_by is None else groups(tokens, "gate", gate_by)
    scales = NO_GROUPS if scale is None else groups(tokens, "scale", scale)
    shifts = NO_GROUPS if shift is None else groups(tokens, "shift", shift)
    contiguous = torch.contiguous_format
    total = None if y is None else torch.empty_like(x, memory_format=contiguous)
    out = torch.empty_like(x, memory_format=contiguous) if norm else None
    count = tokens.shape[0] * tokens.shape[1]
    if not count or not width:
        return total, out
    size = launch or launch_for(width)
    gate_stepwise = gate_by is not None and stepwise(x, gate_by)
    scale_stepwise = scale is not None and stepwise(x, scale)
    with on_device(x):
        residual_norm[(-(-count // size.rows),)](
            tokens,
            None if branch is None else branch.tensor,
            gates.tensor,
            None if weight is None else fits("weight", weight, width),
            None if bias is None else fits("bias", bias, width),
            scales.tensor,
            shifts.tensor,
            total,
            out,
            count,
            tokens.shape[1],
            stream.batch,
            stream.token,
            0 if branch is None else branch.batch,
            0 if branch is None else branch.token,
            gates.batch,
            gates.group,
            gates.span,
            scales.batch,
            scales.group,
            scales.span,
            shifts.batch,
            shifts.group,
            shifts.span,
            eps,
            **size.tile(width, stepwise=gate_stepwise or scale_stepwise),
            **{
                "WIDE": wide(x),
                "GATE_STEPWISE": gate_stepwise,
                "SCALE_STEPWISE": scale_stepwise,
            },
        )
    return total, out
