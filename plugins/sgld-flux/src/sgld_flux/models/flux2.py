"""The FLUX.2 denoiser (dev and klein), written for serving.

    Flux2Transformer(config, ops).forward(hidden_states, encoder_hidden_states, timestep, grids,
                                          guidance=None, memory=None) -> velocity
    Flux2Transformer.remember(references, grids) -> memory

Parameter names equal those of diffusers' `Flux2Transformer2DModel`. No linear has a bias, and all
blocks of a kind share one modulation, made once per forward from time and guidance.

A sequence is [text | picture | reference 1 | reference 2 ...]. `grids` says where the tokens of the
pictures stand: one (time, rows, columns) each, the generated picture first. It is a plain tuple, so
calls with equal grids may share a forward. `remember` computes the reference pictures alone and
keeps their keys and values (klein-KV): they attend only to themselves and stand at time zero, so
nothing of the text, the noise or the step is in them, and one pass serves every step.

Build it under `torch.device("meta")` and fill it with `load_state_dict(..., assign=True)`: there
are no buffers, and the rotary tables are made at the first call of a size.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sgld.ops import Ops
from sgld_flux.models.config2 import EPS, Flux2Config, Grids
from sgld_flux.models.shared import (
    JointAttention,
    PositionTables,
    Rotary,
    ValueEmbedder,
    grid_ids,
    modulation,
    rounded_thousands,
    sinusoid,
)

__all__ = ["Flux2Config", "Flux2Transformer", "Grids"]

Vectors = tuple[Tensor, ...]
"""Shift, scale and gate [B, 1, D], once or twice, float32."""

FLOAT16_MAX: Final = 65504.0


def swiglu(x: Tensor) -> Tensor:
    """SiLU of the first half of the channels times the second half: [..., 2·F] to [..., F]."""
    gate, value = x.chunk(2, dim=-1)
    return F.silu(gate) * value


def bounded(x: Tensor) -> Tensor:
    """The residual stream within float16, whose range the blocks of this family can leave."""
    return x.clip(-FLOAT16_MAX, FLOAT16_MAX) if x.dtype is torch.float16 else x


def extended(k: Tensor, v: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor]:
    """Keys and values with the remembered ones [B, 2, R, H, D] behind them."""
    if memory is None:
        return k, v
    return torch.cat((k, memory[:, 0]), dim=1), torch.cat((v, memory[:, 1]), dim=1)


class TimeGuidanceEmbedder(nn.Module):
    """The sum of the embeddings of time and, where the model takes one, guidance scale."""

    def __init__(self, config: Flux2Config) -> None:
        super().__init__()
        self.channels = config.timestep_guidance_channels
        build = partial(ValueEmbedder, self.channels, config.width, bias=False)
        self.timestep_embedder = build()
        self.guidance_embedder = build() if config.guidance_embeds else None

    def forward(self, timestep: Tensor, guidance: Tensor | None) -> Tensor:
        """Times 0..1000 and guidance scales times 1000, each [B] → [B, D]."""
        embedding = self.timestep_embedder(self._waves(timestep))
        if self.guidance_embedder is None or guidance is None:
            return embedding
        return embedding + self.guidance_embedder(self._waves(guidance))

    def _waves(self, values: Tensor) -> Tensor:
        return sinusoid(values, self.channels).to(values.dtype)


class Modulation(nn.Module):
    """Shift, scale and gate for each of `sets` sub-blocks, shared by all blocks of a kind."""

    def __init__(self, width: int, sets: int) -> None:
        super().__init__()
        self.parts = 3 * sets
        self.linear = nn.Linear(width, self.parts * width, bias=False)

    def forward(self, embedding: Tensor) -> Vectors:
        return modulation(self.linear, embedding, self.parts)


class FeedForward(nn.Module):
    """Linear → SwiGLU → linear."""

    def __init__(self, config: Flux2Config) -> None:
        super().__init__()
        self.linear_in = nn.Linear(config.width, 2 * config.inner, bias=False)
        self.linear_out = nn.Linear(config.inner, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_out(swiglu(self.linear_in(x)))


class RememberingAttention(JointAttention):
    """Joint attention that can also look at remembered references, or be run on these alone."""

    def __init__(self, config: Flux2Config, ops: Ops) -> None:
        super().__init__(config.width, config.num_attention_heads, ops, bias=False)

    def with_memory(
        self, picture: Tensor, text: Tensor, rotary: Rotary, memory: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """As `forward`, with the keys and values `memory` [B, 2, R, H, D] besides."""
        length = text.shape[1]
        q, k, v = self.queries_keys_values(picture, text, rotary)
        out = self.attend(q, *extended(k, v, memory)).flatten(2)
        return self.to_out[0](out[:, length:]), self.to_add_out(out[:, :length])

    def remember(self, picture: Tensor, rotary: Rotary, into: Tensor) -> Tensor:
        """Attention of reference tokens among themselves; fills `into` [B, 2, R, H, D]."""
        turn = partial(self.norm_rope, cos=rotary[0], sin=rotary[1], heads=self.heads, eps=EPS)
        into[:, 0] = turn(self.to_k(picture), self.norm_k.weight)
        into[:, 1] = self.to_v(picture).unflatten(-1, (self.heads, -1))
        q = turn(self.to_q(picture), self.norm_q.weight)
        return self.to_out[0](self.attend(q, into[:, 0], into[:, 1]).flatten(2))


class DoubleBlock(nn.Module):
    """Text and picture with separate weights, joined in attention."""

    def __init__(self, config: Flux2Config, ops: Ops) -> None:
        super().__init__()
        self.modulate, self.gate = ops["norm.layer_modulate"], ops["residual.gate"]
        self.gate_modulate = ops["residual.gate_layer_modulate"]
        self.attn = RememberingAttention(config, ops)
        self.ff = FeedForward(config)
        self.ff_context = FeedForward(config)

    def forward(
        self,
        picture: Tensor,
        text: Tensor | None,
        by_picture: Vectors,
        by_text: Vectors,
        rotary: Rotary,
        memory: Tensor | None = None,
        into: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """New (picture, text); reads `memory`, keys and values [B, 2, R, H, D].

        With `into` of that shape the picture's tokens are references, run alone to fill it.
        """
        normed = self.modulate(picture, by_picture[1], by_picture[0], EPS)
        if into is not None:
            attended = self.attn.remember(normed, rotary, into)
            return self._finish(picture, attended, by_picture, self.ff), None
        assert text is not None
        normed_text = self.modulate(text, by_text[1], by_text[0], EPS)
        attended, text_attended = self.attn.with_memory(normed, normed_text, rotary, memory)
        text = self._finish(text, text_attended, by_text, self.ff_context)
        return self._finish(picture, attended, by_picture, self.ff), bounded(text)

    def _finish(self, x: Tensor, attended: Tensor, by: Vectors, ff: FeedForward) -> Tensor:
        _, _, gate, shift, scale, last_gate = by
        x, normed = self.gate_modulate(x, attended, gate, scale, shift, EPS)
        return self.gate(x, ff(normed), last_gate)


class FusedAttention(nn.Module):
    """Attention and feed-forward side by side, in one projection in and one out."""

    def __init__(self, config: Flux2Config, ops: Ops) -> None:
        super().__init__()
        self.heads, self.width = config.num_attention_heads, config.width
        self.norm_rope, self.attend = ops["norm.head_rms_rope"], ops["attention.self"]
        self.to_qkv_mlp_proj = nn.Linear(
            config.width, 3 * config.width + 2 * config.inner, bias=False
        )
        self.norm_q = nn.RMSNorm(config.attention_head_dim, eps=EPS)
        self.norm_k = nn.RMSNorm(config.attention_head_dim, eps=EPS)
        self.to_out = nn.Linear(config.width + config.inner, config.width, bias=False)

    def forward(
        self, x: Tensor, rotary: Rotary, memory: Tensor | None = None, into: Tensor | None = None
    ) -> Tensor:
        """[B, S, D] → [B, S, D]; reads `memory` or fills `into`, both [B, 2, R, H, D]."""
        q, k, v, inner = self.to_qkv_mlp_proj(x).split(
            (
                self.width,
                self.width,
                self.width,
                self.to_qkv_mlp_proj.out_features - 3 * self.width,
            ),
            dim=-1,
        )
        q = self.norm_rope(q, self.norm_q.weight, *rotary, self.heads, EPS)
        k = self.norm_rope(k, self.norm_k.weight, *rotary, self.heads, EPS)
        v = v.unflatten(-1, (self.heads, -1))
        if into is not None:
            into[:, 0], into[:, 1] = k, v
        attended = self.attend(q, *extended(k, v, memory)).flatten(2)
        return self.to_out(torch.cat((attended, swiglu(inner)), dim=-1))


class SingleBlock(nn.Module):
    """One stream of text and picture tokens."""

    def __init__(self, config: Flux2Config, ops: Ops) -> None:
        super().__init__()
        self.modulate, self.gate = ops["norm.layer_modulate"], ops["residual.gate"]
        self.attn = FusedAttention(config, ops)

    def forward(
        self,
        x: Tensor,
        by: Vectors,
        rotary: Rotary,
        memory: Tensor | None = None,
        into: Tensor | None = None,
    ) -> Tensor:
        """The new stream; reads `memory` or fills `into`, both [B, 2, R, H, D]."""
        shift, scale, gate = by
        branch = self.attn(self.modulate(x, scale, shift, EPS), rotary, memory, into)
        return bounded(self.gate(x, branch, gate))


class FinalModulation(nn.Module):
    """The last layer norm, modulated by scale and shift of its own."""

    def __init__(self, config: Flux2Config, ops: Ops) -> None:
        super().__init__()
        self.modulate = ops["norm.layer_modulate"]
        self.linear = nn.Linear(config.width, 2 * config.width, bias=False)

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        scale, shift = modulation(self.linear, embedding, 2)
        return self.modulate(x, scale, shift, EPS)


class Flux2Transformer(nn.Module):
    """Predicts the velocity of latent tokens; see the module's docstring."""

    def __init__(self, config: Flux2Config, ops: Ops) -> None:
        super().__init__()
        self.config = config
        self.time_guidance_embed = TimeGuidanceEmbedder(config)
        self.double_stream_modulation_img = Modulation(config.width, 2)
        self.double_stream_modulation_txt = Modulation(config.width, 2)
        self.single_stream_modulation = Modulation(config.width, 1)
        self.x_embedder = nn.Linear(config.in_channels, config.width, bias=False)
        self.context_embedder = nn.Linear(config.joint_attention_dim, config.width, bias=False)
        self.transformer_blocks = nn.ModuleList(
            DoubleBlock(config, ops) for _ in range(config.num_layers)
        )
        self.single_transformer_blocks = nn.ModuleList(
            SingleBlock(config, ops) for _ in range(config.num_single_layers)
        )
        self.norm_out = FinalModulation(config, ops)
        self.proj_out = nn.Linear(config.width, config.channels_out, bias=False)
        self.positions = PositionTables(config.axes_dims_rope, config.rope_theta)

    def layer_groups(self) -> Sequence[nn.Module]:
        """The layers that layerwise offload streams, in the order of use."""
        return [*self.transformer_blocks, *self.single_transformer_blocks]

    def forward(
        self,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor,
        timestep: Tensor,
        grids: Grids,
        guidance: Tensor | None = None,
        memory: Tensor | None = None,
    ) -> Tensor:
        """Velocity [B, N, C] of the N tokens of the first grid.

        Args:
            hidden_states: [B, S, C], the tokens of all grids one behind the other.
            encoder_hidden_states: text states [B, L, joint_attention_dim].
            timestep: time 0..1000 of each row, [B].
            grids: (time, rows, columns) of each picture.
            guidance: guidance scale of each row [B], for a model that takes one.
            memory: what `remember` returned, [B, blocks, 2, R, H, D].
        """
        dtype, length = hidden_states.dtype, encoder_hidden_states.shape[1]
        embedding = self.time_guidance_embed(
            rounded_thousands(timestep, dtype, divided=True),
            None if guidance is None else rounded_thousands(guidance, dtype),
        )
        by_picture = self.double_stream_modulation_img(embedding)
        by_text = self.double_stream_modulation_txt(embedding)
        by_both = self.single_stream_modulation(embedding)
        rotary = self.rotary(grids, length, hidden_states.device)
        kept = [None] * self.config.blocks if memory is None else memory.unbind(1)
        picture, text = self.x_embedder(hidden_states), self.context_embedder(encoder_hidden_states)
        for block, part in zip(self.transformer_blocks, kept, strict=False):
            picture, text = block(picture, text, by_picture, by_text, rotary, part)
        x = torch.cat((text, picture), dim=1)
        singles = zip(self.single_transformer_blocks, kept[self.config.num_layers :], strict=True)
        for block, part in singles:
            x = block(x, by_both, rotary, part)
        _, rows, columns = grids[0]
        x = x[:, length : length + rows * columns]
        return self.proj_out(self.norm_out(x, embedding))

    def remember(self, references: Tensor, grids: Grids) -> Tensor:
        """Rotated keys, and values, of reference tokens [B, R, C]: [B, blocks, 2, R, H, D]."""
        config, (batch, tokens, _) = self.config, references.shape
        embedding = self.time_guidance_embed(references.new_zeros(batch), None)
        by_picture = self.double_stream_modulation_img(embedding)
        by_both = self.single_stream_modulation(embedding)
        rotary = self.rotary(grids, 0, references.device)
        heads, wide = config.num_attention_heads, config.attention_head_dim
        memory = references.new_empty(batch, config.blocks, 2, tokens, heads, wide)
        kept = memory.unbind(1)
        x = self.x_embedder(references)
        for block, into in zip(self.transformer_blocks, kept, strict=False):
            x, _ = block(x, None, by_picture, (), rotary, None, into)
        singles = zip(self.single_transformer_blocks, kept[config.num_layers :], strict=True)
        for block, into in singles:
            x = block(x, by_both, rotary, None, into)
        return memory

    def rotary(self, grids: Grids, length: int, device: torch.device) -> Rotary:
        """Rotary tables of `length` text tokens followed by the tokens of the grids."""
        return self.positions.of((grids, length), lambda: position_ids(grids, length), device)


def position_ids(grids: Grids, length: int) -> Tensor:
    """[length + S, 4]: text at (0, 0, 0, i), pictures at (time, row, column, 0)."""
    text = torch.zeros(length, 4, dtype=torch.float64)
    text[:, 3] = torch.arange(length, dtype=torch.float64)
    pictures = [grid_ids(rows, columns, axes=4, first=time) for time, rows, columns in grids]
    return torch.cat([text, *pictures])
