"""The parts of a SANA denoiser: attention, feed-forward, embeddings of time and text.

Parameter names equal those of diffusers' `SanaTransformer2DModel` and
`SanaVideoTransformer3DModel`. Tokens stay [B, N, width] throughout: the 1x1 convolutions of the
feed-forward network are matrix products, and the others see tokens as a channels-last picture.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sgld.ops import Ops
from sgld_sana.models.config import SanaConfig

WAVES = 256
"""Width of the sinusoid in front of the time and guidance embedders."""
QK_EPS = 1e-5
"""Of the norms of queries, keys and the text, whatever `norm_eps` is."""

Grid = tuple[int, int, int]
Rotary = tuple[Tensor, Tensor]


class Embedder(nn.Module):
    """Sinusoid (float32) -> linear -> SiLU -> linear of a number, in the dtype of the weights."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(WAVES, width)
        self.linear_2 = nn.Linear(width, width)

    def forward(self, number: Tensor) -> Tensor:  # n -> n width
        half = WAVES // 2
        steps = torch.arange(half, dtype=torch.float32, device=number.device)
        angles = number.float()[:, None] * torch.exp(steps * (-math.log(10000.0) / half))
        waves = torch.cat((angles.cos(), angles.sin()), dim=-1).to(self.linear_1.weight.dtype)
        return self.linear_2(F.silu(self.linear_1(waves)))


class TimeOnly(nn.Module):
    """The embedder of time under the name that the reference gives it without guidance."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.timestep_embedder = Embedder(width)


class TimeEmbed(nn.Module):
    """Time, and guidance where the model takes it: an embedding and the six modulations from it."""

    def __init__(self, config: SanaConfig) -> None:
        super().__init__()
        width = config.width
        if config.guidance_embeds:
            self.timestep_embedder = Embedder(width)
            self.guidance_embedder = Embedder(width)
        else:
            self.emb = TimeOnly(width)
        self.linear = nn.Linear(width, 6 * width)

    def forward(self, time: Tensor, guidance: Tensor | None) -> tuple[Tensor, Tensor]:
        """(embedding [B, G, width], modulations [B, G, 6, width]) of time [B, G], guidance [B]."""
        if guidance is None:
            embedding = self.emb.timestep_embedder(time.flatten())
        else:
            embedding = self.timestep_embedder(time.flatten())
            embedding = embedding + self.guidance_embedder(guidance).repeat_interleave(
                time.shape[1], dim=0
            )
        parts = self.linear(F.silu(embedding)).unflatten(-1, (6, -1))
        return embedding.unflatten(0, time.shape), parts.unflatten(0, time.shape)


class TextProjection(nn.Module):
    """Text states [B, L, caption_channels] to the model width."""

    def __init__(self, config: SanaConfig, ops: Ops) -> None:
        super().__init__()
        self.gelu = ops["activation.gelu_tanh"]
        self.linear_1 = nn.Linear(config.caption_channels, config.width)
        self.linear_2 = nn.Linear(config.width, config.width)

    def forward(self, text: Tensor) -> Tensor:
        return self.linear_2(self.gelu(self.linear_1(text)))


class _Attention(nn.Module):
    """Projections that both kinds of attention have."""

    def __init__(self, config: SanaConfig, ops: Ops, heads: int, head: int, bias: bool) -> None:
        super().__init__()
        width, inner = config.width, heads * head
        self.heads, self.rms = heads, ops["norm.rms"]
        self.to_q = nn.Linear(width, inner, bias=bias)
        self.to_k = nn.Linear(width, inner, bias=bias)
        self.to_v = nn.Linear(width, inner, bias=bias)
        self.to_out = nn.ModuleList((nn.Linear(inner, width),))
        self.norm_q = nn.RMSNorm(inner, eps=QK_EPS) if config.qk_norm else None
        self.norm_k = nn.RMSNorm(inner, eps=QK_EPS) if config.qk_norm else None

    def split(self, x: Tensor, norm: nn.RMSNorm | None) -> Tensor:
        """[B, N, heads·D] to [B, N, heads, D], normalised over all heads where the model does."""
        if norm is not None:
            # diffusers' own RMS norm rounds before it multiplies with the weight, and after.
            x = self.rms(x, None, QK_EPS) * norm.weight
        return x.unflatten(-1, (self.heads, -1))


class SelfAttention(_Attention):
    """Linear attention among tokens, rotated in videos."""

    def __init__(self, config: SanaConfig, ops: Ops) -> None:
        heads, head = config.num_attention_heads, config.attention_head_dim
        super().__init__(config, ops, heads, head, config.attention_bias)
        self.attend: Callable[..., Tensor] = ops[
            "linear_attention.relu_rope" if config.video else "linear_attention.relu"
        ]

    def forward(self, x: Tensor, rotary: Rotary | tuple[()]) -> Tensor:
        q, k = self.split(self.to_q(x), self.norm_q), self.split(self.to_k(x), self.norm_k)
        out = self.attend(q, k, self.split(self.to_v(x), None), *rotary)
        return self.to_out[0](out.flatten(2))


class CrossAttention(_Attention):
    """Attention from tokens to those text tokens that the mask keeps."""

    def __init__(self, config: SanaConfig, ops: Ops) -> None:
        heads, head = config.num_cross_attention_heads, config.cross_attention_head_dim
        super().__init__(config, ops, heads, head, bias=True)
        self.attend: Callable[..., Tensor] = ops["attention.masked"]

    def forward(self, x: Tensor, text: Tensor, mask: Tensor) -> Tensor:
        q, k = self.split(self.to_q(x), self.norm_q), self.split(self.to_k(text), self.norm_k)
        out = self.attend(q, k, self.split(self.to_v(text), None), mask=mask)
        return self.to_out[0](out.flatten(2))


class FeedForward(nn.Module):
    """Widen, look at the neighbours on the grid, gate, narrow; videos also look at their frames."""

    def __init__(self, config: SanaConfig) -> None:
        super().__init__()
        width, wide = config.width, 2 * config.inner
        self.conv_inverted = nn.Conv2d(width, wide, 1)
        self.conv_depth = nn.Conv2d(wide, wide, 3, padding=1, groups=wide)
        self.conv_point = nn.Conv2d(config.inner, width, 1, bias=False)
        self.conv_temp = (
            nn.Conv2d(width, width, (3, 1), padding=(1, 0), bias=False) if config.video else None
        )

    def forward(self, x: Tensor, grid: Grid) -> Tensor:  # b n d
        frames, rows, columns = grid
        y = F.linear(x, self.conv_inverted.weight.flatten(1), self.conv_inverted.bias)
        y = F.silu(y, inplace=not y.requires_grad)
        y = y.reshape(len(x) * frames, rows, columns, -1).permute(0, 3, 1, 2)
        value, gate = self.conv_depth(y).permute(0, 2, 3, 1).chunk(2, dim=-1)
        y = (value * F.silu(gate)).reshape(len(x), frames * rows * columns, -1)
        y = F.linear(y, self.conv_point.weight.flatten(1))
        if self.conv_temp is None:
            return y
        line = y.unflatten(1, (frames, rows * columns)).permute(0, 3, 1, 2)  # b d f n
        return y + self.conv_temp(line).permute(0, 2, 3, 1).flatten(1, 2)


class Block(nn.Module):
    """Self-attention, cross-attention and feed-forward; the second sees the raw residual stream."""

    def __init__(self, config: SanaConfig, ops: Ops) -> None:
        super().__init__()
        self.eps = config.norm_eps
        self.layer_modulate = ops["norm.layer_modulate"]
        self.gate = ops["residual.gate"]
        self.gate_layer_modulate = ops["residual.gate_layer_modulate"]
        self.attn1 = SelfAttention(config, ops)
        self.attn2 = CrossAttention(config, ops)
        self.ff = FeedForward(config)
        self.scale_shift_table = nn.Parameter(torch.empty(6, config.width))

    def forward(
        self,
        x: Tensor,
        modulation: Tensor,
        text: Tensor,
        mask: Tensor,
        grid: Grid,
        rotary: Rotary | tuple[()],
    ) -> Tensor:
        """One block over tokens [B, N, width]; `modulation` is [B, G, 6, width]."""
        # In the model's own precision, as the reference has it: the ops then round as it does.
        table = self.scale_shift_table + modulation
        shift_1, scale_1, gate_1, shift_2, scale_2, gate_2 = table.unbind(2)
        y = self.attn1(self.layer_modulate(x, scale_1, shift_1, self.eps), rotary)
        x = self.gate(x, y, gate_1)
        y = self.attn2(x, text, mask)
        x, y = self.gate_layer_modulate(x, y, None, scale_2, shift_2, self.eps)
        return self.gate(x, self.ff(y, grid), gate_2)
