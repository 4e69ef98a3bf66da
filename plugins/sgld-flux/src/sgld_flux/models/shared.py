"""What FLUX.1 and FLUX.2 have in common, below the level of a block.

    pack(latents), unpack(tokens, rows, columns)      2×2 latent patches ↔ tokens
    PositionTables(axes, theta).of(key, ids, device)  rotary tables from position ids, kept by key
    sinusoid(values), ValueEmbedder                   a scalar (time, guidance) to the model's width
    rounded_thousands(values, dtype)                  the reference's rounding of scalars
    modulation(linear, embedding, parts)              adaLN vectors, float32
    JointAttention                                    text and image tokens in one attention

Parameter names equal those of diffusers' classes, so checkpoints load by name.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sgld.ops import Ops, rope

EPS: Final = 1e-6
SINUSOID: Final = 256
"""Width of the sinusoid of a scalar in every released model."""
KEPT_TABLES: Final = 8
"""Rotary tables kept per model: a batch mixes few sizes, and one is 2 MB at 1024×1024."""

Rotary = tuple[Tensor, Tensor]
"""cos and sin, float32 [S, head_dim/2]."""


def pack(latents: Tensor) -> Tensor:
    """[B, C, h, w] → [B, (h/2)(w/2), 4C]; a token's channels are ordered (c, sub-row, sub-column).

    `h` and `w` must be even.
    """
    batch, channels, height, width = latents.shape
    tokens = latents.view(batch, channels, height // 2, 2, width // 2, 2)
    return tokens.permute(0, 2, 4, 1, 3, 5).reshape(batch, -1, 4 * channels)


def unpack(tokens: Tensor, rows: int, columns: int) -> Tensor:
    """The inverse of `pack`: [B, rows·columns, 4C] → [B, C, 2·rows, 2·columns]."""
    batch, _, channels = tokens.shape
    latents = tokens.view(batch, rows, columns, channels // 4, 2, 2)
    return latents.permute(0, 3, 1, 4, 2, 5).reshape(batch, channels // 4, 2 * rows, 2 * columns)


def grid_ids(rows: int, columns: int, *, axes: int, first: float = 0) -> Tensor:
    """Position ids [rows·columns, axes] of a token grid, row by row: (first, row, column, 0, …)."""
    ids = torch.zeros(rows, columns, axes, dtype=torch.float64)
    ids[..., 0] = first
    ids[..., 1] = torch.arange(rows, dtype=torch.float64)[:, None]
    ids[..., 2] = torch.arange(columns, dtype=torch.float64)[None]
    return ids.flatten(0, 1)


def position_table(
    ids: Tensor, axes: Sequence[int], theta: float, device: torch.device | str
) -> Rotary:
    """cos and sin of position ids [S, len(axes)], every axis with its own share of the head."""
    parts = [rope.axis(ids[:, index], width, theta) for index, width in enumerate(axes)]
    cos, sin = (torch.cat(tables, dim=-1).to(device) for tables in zip(*parts, strict=True))
    return cos, sin


class PositionTables:
    """Rotary tables by a key that stands for the position ids; the last few are kept."""

    def __init__(self, axes: Sequence[int], theta: float) -> None:
        self.axes, self.theta = tuple(axes), theta
        self._kept: OrderedDict[Hashable, Rotary] = OrderedDict()

    def of(self, key: Hashable, ids: Callable[[], Tensor], device: torch.device) -> Rotary:
        """The tables of `key` on `device`; `ids` makes the position ids when they are new."""
        place = (key, device)
        if place in self._kept:
            self._kept.move_to_end(place)
            return self._kept[place]
        table = self._kept[place] = position_table(ids(), self.axes, self.theta, device)
        if len(self._kept) > KEPT_TABLES:
            self._kept.popitem(last=False)
        return table


def sinusoid(values: Tensor, width: int = SINUSOID) -> Tensor:
    """[B] → float32 [B, width]: cosines, then sines, of value·10000^(-i/half)."""
    half = width // 2
    steps = torch.arange(half, dtype=torch.float32, device=values.device)
    angles = values.float().unsqueeze(-1) * torch.exp(steps * (-math.log(10000.0) / half))
    return torch.cat((angles.cos(), angles.sin()), dim=-1)


def rounded_thousands(values: Tensor, dtype: torch.dtype, *, divided: bool = False) -> Tensor:
    """1000·value, rounded to `dtype` before the product, as the reference does.

    With `divided` the values come times 1000 already (a time); the reference rounds that, divides
    by 1000 and multiplies again, each step in `dtype`. In bfloat16 the times that the model sees
    therefore differ from the schedule's, and models were tuned with that.
    """
    values = values.to(dtype)
    return (values / 1000 if divided else values) * 1000


class ValueEmbedder(nn.Module):
    """Linear → SiLU → linear, for the sinusoid of a scalar or for a pooled text vector."""

    def __init__(self, wide_in: int, width: int, *, bias: bool = True) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(wide_in, width, bias=bias)
        self.linear_2 = nn.Linear(width, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:  # b wide_in -> b width
        return self.linear_2(F.silu(self.linear_1(x)))


def modulation(linear: nn.Linear, embedding: Tensor, parts: int) -> tuple[Tensor, ...]:
    """`parts` adaLN vectors [B, 1, D] of the embedding [B, D], in float32 as the ops want them."""
    vectors = linear(F.silu(embedding)).float().unsqueeze(1)
    return vectors.chunk(parts, dim=-1)


class JointAttention(nn.Module):
    """One attention over text and image tokens, text first, with projections for each.

    Queries and keys are RMS-normalised per head, then rotated.
    """

    def __init__(self, width: int, heads: int, ops: Ops, *, bias: bool = True) -> None:
        super().__init__()
        self.heads = heads
        self.norm_rope, self.attend = ops["norm.head_rms_rope"], ops["attention.self"]
        self.norm_q = nn.RMSNorm(width // heads, eps=EPS)
        self.norm_k = nn.RMSNorm(width // heads, eps=EPS)
        self.norm_added_q = nn.RMSNorm(width // heads, eps=EPS)
        self.norm_added_k = nn.RMSNorm(width // heads, eps=EPS)
        self.to_q = nn.Linear(width, width, bias=bias)
        self.to_k = nn.Linear(width, width, bias=bias)
        self.to_v = nn.Linear(width, width, bias=bias)
        self.add_q_proj = nn.Linear(width, width, bias=bias)
        self.add_k_proj = nn.Linear(width, width, bias=bias)
        self.add_v_proj = nn.Linear(width, width, bias=bias)
        self.to_out = nn.ModuleList((nn.Linear(width, width, bias=bias),))
        self.to_add_out = nn.Linear(width, width, bias=bias)

    def forward(self, image: Tensor, text: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor]:
        """(image [B, N, D], text [B, L, D]) → the same shapes; `rotary` has L + N rows."""
        length = text.shape[1]
        q, k, v = self.queries_keys_values(image, text, rotary)
        out = self.attend(q, k, v).flatten(2)
        return self.to_out[0](out[:, length:]), self.to_add_out(out[:, :length])

    def queries_keys_values(
        self, image: Tensor, text: Tensor, rotary: Rotary
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated q, k and plain v of all tokens, text first, each [B, L + N, H, D/H]."""
        length = text.shape[1]
        (cos_text, cos), (sin_text, sin) = [(t[:length], t[length:]) for t in rotary]
        q = torch.cat(
            (
                self._turn(self.add_q_proj(text), self.norm_added_q, cos_text, sin_text),
                self._turn(self.to_q(image), self.norm_q, cos, sin),
            ),
            dim=1,
        )
        k = torch.cat(
            (
                self._turn(self.add_k_proj(text), self.norm_added_k, cos_text, sin_text),
                self._turn(self.to_k(image), self.norm_k, cos, sin),
            ),
            dim=1,
        )
        v = torch.cat((self.add_v_proj(text), self.to_v(image)), dim=1)
        return q, k, v.unflatten(-1, (self.heads, -1))

    def _turn(self, x: Tensor, norm: nn.RMSNorm, cos: Tensor, sin: Tensor) -> Tensor:
        return self.norm_rope(x, norm.weight, cos, sin, self.heads, EPS)
