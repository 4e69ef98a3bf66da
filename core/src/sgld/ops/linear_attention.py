"""Linear attention: a ReLU in place of the softmax, so that its cost grows with the tokens alone.

`relu` is the plain form, `relu_rope` the one with rotary positions. Both add up over all tokens, so
they work in float32 (float64 for float64 input) and round once, to the dtype of `q`. For S tokens
they hold one D x D matrix per head and never an S x S one.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from sgld.ops.norm import widen
from sgld.ops.rope import rotate


def relu(q: Tensor, k: Tensor, v: Tensor, *, eps: float = 1e-15) -> Tensor:
    """Σ_t w_st·v_t / (Σ_t w_st + eps) with weights w_st = relu(q_s)·relu(k_t).

    Args:
        q: [B, S, H, D].
        k: [B, T, H, D].
        v: [B, T, H, E].
        eps: keeps a token whose weights are all zero from dividing by zero.

    Returns [B, S, H, E] in the dtype of `q`.
    """
    wide_q, wide_k, wide_v = _heads(F.relu(q)), _heads(F.relu(k)), _heads(v)
    total = wide_q @ (wide_k.mT @ wide_v)
    return _divided(total, _weight(wide_q, wide_k), eps).to(q.dtype)


def relu_rope(
    q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, *, eps: float = 1e-15
) -> Tensor:
    """`relu` with positions: the weights of the values come from rotated queries and keys.

    The sum of weights that they are divided by comes from those before the rotation, because
    rotated ones may be negative and their sum zero. The rotation and the inverse of that sum round
    to the dtype of `q`, as the eager chain of diffusers' linear video attention does.

    Args:
        q: [B, S, H, D].
        k: [B, S, H, D].
        v: [B, S, H, E].
        cos: float32 [S, D/2], one per interleaved pair (see `sgld.ops.rope.grid`).
        sin: like `cos`.
        eps: added to the sum of weights.

    Returns [B, S, H, E] in the dtype of `q`.
    """
    q, k = F.relu(q), F.relu(k)
    inverse = 1 / (_weight(q.transpose(1, 2), k.transpose(1, 2)) + eps)
    turned_q, turned_k = _heads(rotate(q, cos, sin)), _heads(rotate(k, cos, sin))
    total = turned_q @ (turned_k.mT @ _heads(v))
    return (total * inverse).transpose(1, 2).to(q.dtype)


def _heads(x: Tensor) -> Tensor:  # b s h d -> b h s d
    return widen(x.transpose(1, 2))


def _weight(q: Tensor, k: Tensor) -> Tensor:  # b h s 1
    return q @ k.sum(2).unsqueeze(3)


def _divided(total: Tensor, weight: Tensor, eps: float) -> Tensor:  # b h s e -> b s h e
    return (total / (weight + eps)).transpose(1, 2)
