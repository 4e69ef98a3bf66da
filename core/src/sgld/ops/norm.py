"""Normalisations as the denoisers use them, each a plain-torch reference that kernels may replace.

`layer`, `layer_modulate`, `rms`, `rms_rope`, `head_rms_rope`. All compute in float32 (float64 for
float64 input) and round once, to the input's dtype, at the end. Where a modulation is per row, per
frame or per token, it comes as [B, G, D]: every group of S/G consecutive tokens shares one vector.
`channel_rms_silu` is for the convolutions of a VAE and rounds after each operation, as they do.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from sgld.ops.rope import rotate


def widen(x: Tensor) -> Tensor:
    """`x` in the dtype that the arithmetic runs in: float32, or float64 if it is that already."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def stepwise(x: Tensor, modulation: Tensor) -> bool:
    """Whether a modulation asks for half-precision arithmetic by its own dtype."""
    return modulation.dtype == x.dtype and x.dtype in (torch.bfloat16, torch.float16)


def grouped(x: Tensor, groups: int) -> Tensor:
    """View tokens [B, S, D] so that [B, G, 1, D] broadcasts; [B, S, D] as it is if G is 1 or S.

    Raises:
        ValueError: `groups` does not divide S.
    """
    tokens = x.shape[1]
    if groups in (1, tokens):
        return x
    if tokens % groups:
        raise ValueError(f"groups={groups}: must divide the {tokens} tokens of x evenly.")
    return x.unflatten(1, (groups, tokens // groups))


def spread(vector: Tensor, tokens: int) -> Tensor:
    """View a modulation [B, G, D] so that it broadcasts over `grouped(x, G)`."""
    return vector if vector.shape[1] in (1, tokens) else vector.unsqueeze(2)


def layer(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Layer norm of the last axis in float32, weight and bias [D] included; dtype of `x`."""
    wide = widen(x)
    return F.layer_norm(
        wide,
        (x.shape[-1],),
        None if weight is None else weight.to(wide.dtype),
        None if bias is None else bias.to(wide.dtype),
        eps,
    ).to(x.dtype)


def layer_modulate(x: Tensor, scale: Tensor, shift: Tensor, eps: float) -> Tensor:
    """x_hat·(1 + scale) + shift, x_hat the layer norm of `x` without weights (adaLN).

    Args:
        x: [B, S, D].
        scale: [B, G, D] with G dividing S, in float32 or in the dtype of `x`.
        shift: like `scale`.
        eps: added to the variance.

    Returns [B, S, D] in the dtype of `x`. A float32 modulation rounds once; one in the half
    precision of `x` rounds after every operation, as references do that never leave it.
    """
    tokens, groups = x.shape[1], scale.shape[1]
    if stepwise(x, scale):
        normed = F.layer_norm(x, (x.shape[-1],), None, None, eps)
        normed = grouped(normed, groups) * spread(1 + scale, tokens)
        return (normed + spread(shift, tokens)).view_as(x)
    normed = F.layer_norm(widen(x), (x.shape[-1],), None, None, eps)
    # One pass for multiply, add and the cast back: eager torch would write two float32 copies.
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    torch.addcmul(
        spread(shift, tokens),
        grouped(normed, groups),
        spread(1 + scale, tokens),
        out=grouped(out, groups),
    )
    return out


def rms(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """x / sqrt(mean(x²) + eps)·weight over the last axis in float32; dtype of `x`, rounded once.

    Without a weight it is for those who multiply themselves, and so round twice, as some references
    do.
    """
    return F.rms_norm(x, (x.shape[-1],), None if weight is None else weight.to(x.dtype), eps)


def rms_rope(x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, heads: int, eps: float) -> Tensor:
    """`rms` over all heads together, rounded, then split into heads and rotated.

    Args:
        x: [B, S, H·D], a query or key projection.
        weight: [H·D].
        cos: float32 [S, D/2], one per interleaved pair (see `sgld.ops.rope.grid`).
        sin: like `cos`.
        heads: H.
        eps: added to the mean square.

    Returns [B, S, H, D] in the dtype of `x`. The value is rounded to that dtype between the norm
    and the rotation, because that is what the eager chain of the reference does.
    """
    return rotate(rms(x, weight, eps).unflatten(-1, (heads, -1)), cos, sin)


def head_rms_rope(
    x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, heads: int, eps: float
) -> Tensor:
    """Split into heads, then `rms` of each head alone, rounded, then rotated.

    As `rms_rope`, but with one weight [D] that every head shares: x [B, S, H·D] → [B, S, H, D].
    """
    return rotate(rms(x.unflatten(-1, (heads, -1)), weight, eps), cos, sin)


def channel_rms_silu(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / max(|x|, eps)·sqrt(C)·weight over channels, then SiLU, as Wan's VAE has it.

    Args:
        x: [B, C, ...], places of a picture or clip in any memory order; |x| is the root of the sum
            of squares over C.
        weight: [C].
        eps: least |x|.

    Returns a new tensor of the shape, dtype and memory order of `x`. In half precision the
    division, each product and SiLU round, as in the eager chain of the reference.
    """
    normed = F.normalize(widen(x), dim=1, eps=eps).to(x.dtype) * x.shape[1] ** 0.5
    return F.silu(normed * weight.to(x.dtype).view(-1, *[1] * (x.ndim - 2)))
