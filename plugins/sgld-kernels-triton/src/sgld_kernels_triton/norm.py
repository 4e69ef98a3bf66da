"""`norm.layer`, `norm.layer_modulate`, `norm.rms`, `norm.rms_rope`, `norm.head_rms_rope`,
`norm.channel_rms_silu`.

Signatures and roundings are those of `sgld.ops.norm`; `launch` overrides the size of a program, for
measurements. All raise ValueError where a shape does not fit.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sgld_kernels_triton import kernels
from sgld_kernels_triton.kernels import rms_rotate, wide
from sgld_kernels_triton.launch import Launch, fits, launch_for, on_device, rows
from sgld_kernels_triton.residual import fused


def layer(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    *,
    launch: Launch | None = None,
) -> Tensor:
    """Layer norm of the last axis with weight and bias [D], rounded once to the dtype of `x`."""
    _, out = fused(x, weight=weight, bias=bias, eps=eps, launch=launch)
    assert out is not None
    return out


def layer_modulate(
    x: Tensor, scale: Tensor, shift: Tensor, eps: float, *, launch: Launch | None = None
) -> Tensor:
    """Layer norm of `x` [B, S, D], times 1 + scale, plus shift [B, G, D]."""
    _, out = fused(x, scale=scale, shift=shift, eps=eps, launch=launch)
    assert out is not None
    return out


def rms(x: Tensor, weight: Tensor | None, eps: float, *, launch: Launch | None = None) -> Tensor:
    """x / sqrt(mean(x²) + eps)·weight over the last axis, rounded once to the dtype of `x`."""
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    _rms(x, weight, None, None, out, parts=1, pairs=1, eps=eps, launch=launch)
    return out


def rms_rope(
    x: Tensor,
    weight: Tensor,
    cos: Tensor,
    sin: Tensor,
    heads: int,
    eps: float,
    *,
    launch: Launch | None = None,
) -> Tensor:
    """`rms` over all heads of x [B, S, H·D] together, rounded, then rotated: [B, S, H, D]."""
    return _turned(x, weight, cos, sin, heads, eps, parts=1, launch=launch)


def head_rms_rope(
    x: Tensor,
    weight: Tensor,
    cos: Tensor,
    sin: Tensor,
    heads: int,
    eps: float,
    *,
    launch: Launch | None = None,
) -> Tensor:
    """`rms` of each head of x [B, S, H·D] alone, rounded, then rotated: [B, S, H, D]."""
    return _turned(x, weight, cos, sin, heads, eps, parts=heads, launch=launch)


def channel_rms_silu(
    x: Tensor, weight: Tensor, eps: float, *, launch: Launch | None = None
) -> Tensor:
    """x / max(|x|, eps)·sqrt(C)·weight over the channels of [B, C, ...], then SiLU; each operation
    rounds. The result has the memory order of `x`."""
    out = torch.empty_like(x)
    flat, made = x.flatten(2), out.flatten(2)  # copies only where places lie at no common stride
    batch, width, places = flat.shape
    count = batch * places
    if count and width:
        size = launch or launch_for(width)
        with on_device(x):
            kernels.channel_rms_silu[(-(-count // size.rows),)](
                flat,
                fits("weight", weight, width),
                made,
                count,
                places,
                flat.stride(0),
                flat.stride(1),
                flat.stride(2),
                made.stride(0),
                made.stride(1),
                made.stride(2),
                eps,
                width**0.5,
                **size.tile(width),
                **{"WIDE": wide(x)},
            )
    # Not `made` as a view: with one picture its first stride says nothing, and convolutions would
    # take the order of its memory for another.
    return out if made.data_ptr() == out.data_ptr() else out.copy_(made.view_as(out))


def _turned(
    x: Tensor,
    weight: Tensor,
    cos: Tensor,
    sin: Tensor,
    heads: int,
    eps: float,
    *,
    parts: int,
    launch: Launch | None,
) -> Tensor:
    batch, tokens, width = x.shape
    if heads < 1 or width % (2 * heads):
        raise ValueError(f"heads={heads}: must cut {width} channels into heads of whole pairs.")
    pairs = width // heads // 2
    cos, sin = fits("cos", cos, tokens, pairs), fits("sin", sin, tokens, pairs)
    out = torch.empty(batch, tokens, heads, 2 * pairs, dtype=x.dtype, device=x.device)
    _rms(x, weight, cos, sin, out, parts=parts, pairs=pairs, eps=eps, launch=launch)
    return out


def _rms(
    x: Tensor,
    weight: Tensor | None,
    cos: Tensor | None,
    sin: Tensor | None,
    out: Tensor,
    *,
    parts: int,
    pairs: int,
    eps: float,
    launch: Launch | None,
) -> None:
    """Fill `out` with tokens of `parts` rows each; see `rms_rotate`."""
    stream = rows(x)
    tokens = stream.tensor
    width = tokens.shape[-1] // parts
    count = tokens.shape[0] * tokens.shape[1] * parts
    if not count or not width:
        return
    size = launch or launch_for(width)
    with on_device(x):
        rms_rotate[(-(-count // size.rows),)](
            tokens,
            None if weight is None else fits("weight", weight, width),
            cos,
            sin,
            out,
            count,
            tokens.shape[1],
            stream.batch,
            stream.token,
            eps,
            **size.tile(width),
            **{"WIDE": wide(x), "PARTS": parts, "PAIRS": pairs},
        )
