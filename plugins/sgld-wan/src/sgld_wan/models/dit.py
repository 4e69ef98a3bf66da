"""The Wan 2.1 and 2.2 denoiser, written for serving.

    WanTransformer(config, ops).forward(hidden_states, timestep, encoder_hidden_states,
                                        encoder_hidden_states_image=None) -> velocity

Parameter names equal those of diffusers' `WanTransformer3DModel`, so a checkpoint in that layout
loads by name. Everything that a kernel may replace goes through `sgld.ops.Ops`. Rounding follows
the eager chain of the reference: float32 time embedder, modulation tables and norms
(`keep_fp32`), one cast back after each. Nothing in `forward` waits for the device.

Build it under `torch.device("meta")` and fill it with `load_state_dict(..., assign=True)`:
there are no buffers, and the rotary tables are made at the first call of a size.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import ClassVar, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sgld.api.errors import ParameterError, Problem
from sgld.ops import Ops, rope
from sgld_wan.models.config import WanConfig, token_grid, tokens

__all__ = ["FP32_PARTS", "WanConfig", "WanTransformer", "keep_fp32", "token_grid", "tokens"]

FP32_PARTS: Final = frozenset(
    {"rope", "time_embedder", "scale_shift_table", "norm1", "norm2", "norm3"}
)
"""Parameters with one of these words in their dotted name stay float32, as in diffusers."""

ROTARY_SIZES: Final = 8
"""Sizes whose rotary tables are kept: a batch mixes few sizes, and one table is 17 MB at 480p."""


def keep_fp32(name: str) -> bool:
    """Whether the parameter of this dotted name stays float32 when the model runs in bfloat16."""
    return not FP32_PARTS.isdisjoint(name.split("."))


class PatchEmbedding(nn.Conv3d):
    """Cut a latent [B, C, F, H, W] into patches and project each: [B, N, width].

    Computed as one matrix product, because a convolution whose stride equals its kernel is one and
    its channel-first result would have to be transposed.
    """

    def forward(self, input: Tensor) -> Tensor:
        batch, channels, frames, height, width = input.shape
        deep, high, wide = self.kernel_size
        patches = input.reshape(
            batch, channels, frames // deep, deep, height // high, high, width // wide, wide
        )
        patches = patches.permute(0, 2, 4, 6, 1, 3, 5, 7).flatten(4).flatten(1, 3)
        return F.linear(patches, self.weight.flatten(1), self.bias)


class TimeEmbedder(nn.Module):
    """Sinusoid → linear → SiLU → linear, in the dtype of its weights (float32)."""

    def __init__(self, config: WanConfig) -> None:
        super().__init__()
        self.waves = config.freq_dim // 2
        self.linear_1 = nn.Linear(config.freq_dim, config.width)
        self.linear_2 = nn.Linear(config.width, config.width)

    def forward(self, timestep: Tensor) -> Tensor:  # b g -> b g width
        steps = torch.arange(self.waves, dtype=torch.float32, device=timestep.device)
        angles = timestep.float().unsqueeze(-1) * torch.exp(
            steps * (-math.log(10000.0) / self.waves)
        )
        sinusoid = torch.cat((angles.cos(), angles.sin()), dim=-1)
        return self.linear_2(F.silu(self.linear_1(sinusoid.to(self.linear_1.weight.dtype))))


class TextEmbedder(nn.Module):
    """Project text states [B, L, text_dim] to the model width."""

    def __init__(self, config: WanConfig, ops: Ops) -> None:
        super().__init__()
        self.gelu = ops["activation.gelu_tanh"]
        self.linear_1 = nn.Linear(config.text_dim, config.width)
        self.linear_2 = nn.Linear(config.width, config.width)

    def forward(self, text: Tensor) -> Tensor:
        return self.linear_2(self.gelu(self.linear_1(text)))


class Projection(nn.Module):
    """A linear under the name `proj`, where the reference keeps it."""

    def __init__(self, wide_in: int, wide_out: int) -> None:
        super().__init__()
        self.proj = nn.Linear(wide_in, wide_out)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x)


class FeedForward(nn.Module):
    """Linear → activation → linear; the middle of `net` only keeps the reference's numbering."""

    def __init__(
        self, wide_in: int, inner: int, wide_out: int, activation: Callable[[Tensor], Tensor]
    ) -> None:
        super().__init__()
        self.activation = activation
        self.net = nn.ModuleList(
            (Projection(wide_in, inner), nn.Identity(), nn.Linear(inner, wide_out))
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.net[2](self.activation(self.net[0](x)))


class ImageEmbedder(nn.Module):
    """Norm, feed-forward, norm: image states [B, Li, image_dim] to the model width (Wan2.1 I2V)."""

    EPS: Final = 1e-5  # the reference leaves torch's default here, unlike in the blocks

    def __init__(self, config: WanConfig, ops: Ops) -> None:
        super().__init__()
        width = config.image_dim or 0
        self.layer_norm = ops["norm.layer"]
        self.norm1 = nn.LayerNorm(width)
        self.ff = FeedForward(width, width, config.width, F.gelu)
        self.norm2 = nn.LayerNorm(config.width)
        self.pos_embed: nn.Parameter | None = None
        if config.pos_embed_seq_len is not None:
            self.pos_embed = nn.Parameter(torch.empty(1, config.pos_embed_seq_len, width))

    def forward(self, image: Tensor) -> Tensor:
        if self.pos_embed is not None:
            # First and last frame come as two rows of 257 tokens and are one sequence of 514.
            _, length, width = self.pos_embed.shape
            image = image.reshape(-1, length, width) + self.pos_embed
        image = self.layer_norm(image, self.norm1.weight, self.norm1.bias, self.EPS)
        return self.layer_norm(self.ff(image), self.norm2.weight, self.norm2.bias, self.EPS)


class ConditionEmbedder(nn.Module):
    """Time, text and image states in the model's width."""

    def __init__(self, config: WanConfig, ops: Ops) -> None:
        super().__init__()
        self.time_embedder = TimeEmbedder(config)
        self.time_proj = nn.Linear(config.width, 6 * config.width)
        self.text_embedder = TextEmbedder(config, ops)
        self.image_embedder = None if config.image_dim is None else ImageEmbedder(config, ops)

    def time(self, timestep: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """From [B, G]: the embedding [B, G, width] and the blocks' modulation [B, G, 6, width]."""
        embedding = self.time_embedder(timestep).to(dtype)
        return embedding, self.time_proj(F.silu(embedding)).unflatten(-1, (6, -1))


class SelfAttention(nn.Module):
    """Attention among tokens; queries and keys RMS-normalised over all heads, then rotated."""

    def __init__(self, config: WanConfig, ops: Ops) -> None:
        super().__init__()
        width = config.width
        self.heads, self.eps = config.num_attention_heads, config.eps
        self.norm_rope, self.attend = ops["norm.rms_rope"], ops["attention.self"]
        self.rms_norm = ops["norm.rms"]
        self.to_q = nn.Linear(width, width)
        self.to_k = nn.Linear(width, width)
        self.to_v = nn.Linear(width, width)
        self.to_out = nn.ModuleList((nn.Linear(width, width),))
        self.norm_q = nn.RMSNorm(width, eps=config.eps)
        self.norm_k = nn.RMSNorm(width, eps=config.eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q, (k, v) = self.queries(x, cos, sin), self.keys(x, cos, sin)
        return self.to_out[0](self.attend(q, k, v).flatten(2))

    def queries(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotated queries [B, S, H, D]."""
        return self.norm_rope(self.to_q(x), self.norm_q.weight, cos, sin, self.heads, self.eps)

    def keys(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Rotated keys, and values, both [B, S, H, D]."""
        k = self.norm_rope(self.to_k(x), self.norm_k.weight, cos, sin, self.heads, self.eps)
        return k, self.to_v(x).unflatten(-1, (self.heads, -1))

    def plain_keys(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Keys that are not rotated yet, and values, both [B, S, H, D]."""
        k = self.rms_norm(self.to_k(x), self.norm_k.weight, self.eps)
        v = self.to_v(x)
        return k.unflatten(-1, (self.heads, -1)), v.unflatten(-1, (self.heads, -1))


class CrossAttention(nn.Module):
    """Attention from tokens to the text and, in Wan2.1 I2V, added to it, to the image."""

    def __init__(self, config: WanConfig, ops: Ops) -> None:
        super().__init__()
        width = config.width
        self.heads, self.eps = config.num_attention_heads, config.eps
        self.rms_norm, self.attend = ops["norm.rms"], ops["attention.cross"]
        self.to_q = nn.Linear(width, width)
        self.to_k = nn.Linear(width, width)
        self.to_v = nn.Linear(width, width)
        self.to_out = nn.ModuleList((nn.Linear(width, width),))
        self.norm_q = nn.RMSNorm(width, eps=config.eps)
        self.norm_k = nn.RMSNorm(width, eps=config.eps)
        if config.added_kv_proj_dim is not None:
            self.add_k_proj = nn.Linear(config.added_kv_proj_dim, width)
            self.add_v_proj = nn.Linear(config.added_kv_proj_dim, width)
            self.norm_added_k = nn.RMSNorm(width, eps=config.eps)

    def forward(self, x: Tensor, text: Tensor, image: Tensor | None) -> Tensor:
        q = self.queries(x)
        out = self.attend(q, *self.keys(text))
        if image is not None:
            k = self.rms_norm(self.add_k_proj(image), self.norm_added_k.weight, self.eps)
            out = out + self.attend(q, self._split(k), self._split(self.add_v_proj(image)))
        return self.to_out[0](out.flatten(2))

    def queries(self, x: Tensor) -> Tensor:
        """Queries [B, S, H, D]."""
        return self._split(self.rms_norm(self.to_q(x), self.norm_q.weight, self.eps))

    def keys(self, text: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of text states, both [B, L, H, D]."""
        k = self._split(self.rms_norm(self.to_k(text), self.norm_k.weight, self.eps))
        return k, self._split(self.to_v(text))

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1))


class BlockParts(nn.Module):
    """The weights and ops of one block; how they are run is up to the subclass."""

    def __init__(self, config: WanConfig, ops: Ops) -> None:
        super().__init__()
        self.eps = config.eps
        self.layer_norm = ops["norm.layer"]
        self.layer_modulate = ops["norm.layer_modulate"]
        self.gate = ops["residual.gate"]
        self.gate_layer = ops["residual.gate_layer"]
        self.gate_layer_modulate = ops["residual.gate_layer_modulate"]
        self.attn1 = SelfAttention(config, ops)
        self.attn2 = CrossAttention(config, ops)
        self.norm2 = nn.LayerNorm(config.width, config.eps) if config.cross_attn_norm else None
        self.ffn = FeedForward(
            config.width, config.ffn_dim, config.width, ops["activation.gelu_tanh"]
        )
        self.scale_shift_table = nn.Parameter(torch.empty(1, 6, config.width))

    def _modulate(self, modulation: Tensor) -> Callable[[int], Tensor]:
        """Shift, scale, gate of attention, then of the feed-forward, as float32 [B, G, width].

        Few groups: one addition for all six. A vector per token would make six times the residual
        stream in float32 (2 GB in the 5B model at 704p), so each part is then made when asked for.
        """
        if modulation.shape[1] <= 64:
            return (self.scale_shift_table + modulation).unbind(2).__getitem__
        return lambda index: self.scale_shift_table[:, index] + modulation[:, :, index]


class Block(BlockParts):
    """Self-attention, cross-attention, feed-forward, each on a normalised residual stream."""

    def forward(
        self,
        x: Tensor,
        modulation: Tensor,
        rotary: tuple[Tensor, Tensor],
        text: Tensor,
        image: Tensor | None = None,
    ) -> Tensor:
        """One block over tokens [B, N, width]; `modulation` is [B, G, 6, width]."""
        part = self._modulate(modulation)
        # One name for what is normalised and what a branch returns: the old tensor is freed, and
        # only `x` and it are held while the widest one, inside the feed-forward, lives.
        y = self.layer_modulate(x, part(1), part(0), self.eps)
        y = self.attn1(y, *rotary)
        if self.norm2 is None:
            x = y = self.gate(x, y, part(2))
        else:
            weight, bias = self.norm2.weight, self.norm2.bias
            x, y = self.gate_layer(x, y, part(2), weight, bias, self.eps)
        y = self.attn2(y, text, image)
        x, y = self.gate_layer_modulate(x, y, None, part(4), part(3), self.eps)
        y = self.ffn(y)
        return self.gate(x, y, part(5))


class WanParts(nn.Module):
    """The weights of a denoiser and what happens before and after its blocks."""

    block_type: ClassVar[type[BlockParts]]

    def __init__(self, config: WanConfig, ops: Ops) -> None:
        super().__init__()
        self.config = config
        self.layer_modulate = ops["norm.layer_modulate"]
        patch = config.patch_size
        self.patch_embedding = PatchEmbedding(config.in_channels, config.width, patch, stride=patch)
        self.condition_embedder = ConditionEmbedder(config, ops)
        self.blocks = nn.ModuleList(self.block_type(config, ops) for _ in range(config.num_layers))
        self.proj_out = nn.Linear(config.width, config.out_channels * math.prod(patch))
        self.scale_shift_table = nn.Parameter(torch.empty(1, 2, config.width))
        self.requires_grad_(False)

    keep_fp32 = staticmethod(keep_fp32)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that the blocks compute in; inputs are cast to it and the output has it."""
        return self.patch_embedding.weight.dtype

    def layer_groups(self) -> nn.ModuleList:
        """The blocks, in the order they run: the units that layerwise offload moves."""
        return self.blocks

    def _check(
        self, latent: Tensor, timestep: Tensor, image: Tensor | None
    ) -> tuple[int, int, int]:
        config, shape = self.config, tuple(latent.shape)
        problems: list[Problem] = []
        if len(shape) != 5 or shape[1] != config.in_channels:
            wanted = f"must be [B, {config.in_channels}, F, H, W]."
            raise ParameterError([Problem("hidden_states", shape, wanted)])
        grid = token_grid(config, *shape[2:])
        if any(size % patch for size, patch in zip(shape[2:], config.patch_size, strict=True)):
            wanted = f"frames, rows and columns must be multiples of {config.patch_size}."
            problems.append(Problem("hidden_states", shape, wanted))
        if not all(0 < size <= config.rope_max_seq_len for size in grid):
            wanted = f"every axis must have 1 to {config.rope_max_seq_len} tokens."
            problems.append(Problem("hidden_states", shape, wanted))
        given = tuple(timestep.shape)
        count = given[1] if len(given) == 2 else 1
        if given[:1] != shape[:1] or len(given) > 2 or not count or math.prod(grid) % count:
            wanted = f"must be [{shape[0]}] or [{shape[0]}, G] with G dividing {math.prod(grid)}."
            problems.append(Problem("timestep", given, wanted))
        if (image is None) != (config.image_dim is None):
            wanted = "must be given." if image is None else "this model takes no image states."
            value = None if image is None else tuple(image.shape)
            problems.append(Problem("encoder_hidden_states_image", value, wanted))
        if problems:
            raise ParameterError(problems)
        return grid

    def _velocity(self, x: Tensor, embedding: Tensor, grid: tuple[int, int, int]) -> Tensor:
        """The head: tokens [B, N, width] and the time's embedding [B, G, width] to a latent."""
        shift, scale = (self.scale_shift_table + embedding.unsqueeze(2)).unbind(2)
        x = self.proj_out(self.layer_modulate(x, scale, shift, self.config.eps))
        return self._unpatchify(x, grid)

    def _unpatchify(self, x: Tensor, grid: tuple[int, int, int]) -> Tensor:
        x = x.reshape(x.shape[0], *grid, *self.config.patch_size, -1)  # b f h w pf ph pw c
        x = x.permute(0, 7, 1, 4, 2, 5, 3, 6)
        return x.flatten(6).flatten(4, 5).flatten(2, 3)


class WanTransformer(WanParts):
    """Predicts the flow velocity of a noisy latent; see the module's head for how to build it."""

    block_type: ClassVar[type[BlockParts]] = Block

    def __init__(self, config: WanConfig, ops: Ops) -> None:
        super().__init__(config, ops)
        self._rotary: OrderedDict[tuple[int, int, int, torch.device], tuple[Tensor, Tensor]]
        self._rotary = OrderedDict()

    @torch.no_grad()
    def forward(
        self,
        hidden_states: Tensor,
        timestep: Tensor,
        encoder_hidden_states: Tensor,
        encoder_hidden_states_image: Tensor | None = None,
    ) -> Tensor:
        """Velocity [B, C_out, F, H, W] in the model's dtype.

        Args:
            hidden_states: latent with its conditions, [B, C_in, F, H, W]; H and W in whole patches.
            timestep: 1000·sigma on the same device: [B] one per row, [B, F'] one per frame of
                tokens, or [B, N] one per token; any [B, G] with G dividing N, each value for N/G
                tokens in a row. Per frame costs far less memory than per token.
            encoder_hidden_states: text states [B, L, text_dim], any L; padding is attended to.
            encoder_hidden_states_image: image states [B, Li, image_dim], or [2B, Li/2, image_dim]
                for a first and a last frame; exactly when the config has `image_dim`.

        Raises:
            ParameterError: an input does not fit the config; nothing was computed.
        """
        grid = self._check(hidden_states, timestep, encoder_hidden_states_image)
        dtype, embed = self.dtype, self.condition_embedder
        rotary = self.rotary(*grid, hidden_states.device)
        x = self.patch_embedding(hidden_states.to(dtype))
        groups = timestep.unsqueeze(1) if timestep.ndim == 1 else timestep
        embedding, modulation = embed.time(groups, dtype)
        text = embed.text_embedder(encoder_hidden_states.to(dtype))
        image = None
        if embed.image_embedder is not None and encoder_hidden_states_image is not None:
            image = embed.image_embedder(encoder_hidden_states_image.to(dtype))
        for block in self.blocks:
            x = block(x, modulation, rotary, text, image)
        return self._velocity(x, embedding, grid)

    def rotary(
        self, frames: int, rows: int, columns: int, device: torch.device
    ) -> tuple[Tensor, Tensor]:
        """cos and sin float32 [N, D/2] of a token grid; the last few sizes are kept."""
        key = (frames, rows, columns, device)
        if key in self._rotary:
            self._rotary.move_to_end(key)
            return self._rotary[key]
        table = rope.grid(self.config.attention_head_dim, frames, rows, columns, device=device)
        self._rotary[key] = table
        if len(self._rotary) > ROTARY_SIZES:
            self._rotary.popitem(last=False)
        return table
