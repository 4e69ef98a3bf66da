"""The SANA denoisers, written for serving.

    SanaTransformer(config, ops).forward(hidden_states, timestep, encoder_hidden_states,
                                         encoder_attention_mask, guidance=None) -> output

One class for pictures (SANA 1.0, 1.5, Sprint) and videos (SANA-Video): `config.video` decides about
the shape of the latent, the rotation in linear attention and the temporal convolution. Parameter
names equal those of diffusers' classes, so a checkpoint in that layout loads by name. Everything
that a kernel may replace goes through `sgld.ops.Ops`; nothing in `forward` waits for the device.

Rounding: modulations are added in the model's dtype, as the reference does; each fused chain then
rounds once where the reference rounds after every operation, so bfloat16 is closer to float32 here.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sgld.api.errors import ParameterError, Problem
from sgld.ops import Ops, rope
from sgld_sana.models.blocks import QK_EPS, Block, TextProjection, TimeEmbed
from sgld_sana.models.config import SanaConfig, token_grid, tokens

__all__ = ["SanaConfig", "SanaTransformer", "token_grid", "tokens"]

TABLES: Final = 8
"""Sizes whose position tables are kept: a batch mixes few sizes."""
OUT_EPS: Final = 1e-6
"""Of the last norm, whatever `norm_eps` is."""


class PatchProjection(nn.Module):
    """The projection of patches under the name that the picture network gives it."""

    def __init__(self, config: SanaConfig) -> None:
        super().__init__()
        size = config.patch_size[1:]
        self.proj = nn.Conv2d(config.in_channels, config.width, size, stride=size)


class SanaTransformer(nn.Module):
    """Predicts the flow velocity (or the TrigFlow output) of a noisy latent."""

    def __init__(self, config: SanaConfig, ops: Ops) -> None:
        super().__init__()
        self.config = config
        self.layer_modulate, self.rms = ops["norm.layer_modulate"], ops["norm.rms"]
        width, patch = config.width, config.patch_size
        if config.video:
            self.patch_embedding = nn.Conv3d(config.in_channels, width, patch, stride=patch)
        else:
            self.patch_embed = PatchProjection(config)
        self.time_embed = TimeEmbed(config)
        self.caption_projection = TextProjection(config, ops)
        self.caption_norm = nn.RMSNorm(width, eps=QK_EPS)
        self.transformer_blocks = nn.ModuleList(
            Block(config, ops) for _ in range(config.num_layers)
        )
        self.scale_shift_table = nn.Parameter(torch.empty(2, width))
        self.proj_out = nn.Linear(width, config.out_channels * math.prod(patch))
        self._tables: OrderedDict[tuple[object, ...], tuple[Tensor, ...]] = OrderedDict()
        self.requires_grad_(False)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that the blocks compute in; inputs are cast to it and the output has it."""
        return self.proj_out.weight.dtype

    def layer_groups(self) -> nn.ModuleList:
        """The blocks, in the order they run: the units that layerwise offload moves."""
        return self.transformer_blocks

    @torch.no_grad()
    def forward(
        self,
        hidden_states: Tensor,
        timestep: Tensor,
        encoder_hidden_states: Tensor,
        encoder_attention_mask: Tensor,
        guidance: Tensor | None = None,
    ) -> Tensor:
        """The model's output, shaped like `hidden_states` but with `out_channels`, in its dtype.

        Args:
            hidden_states: latent [B, C, H, W] of a picture, [B, C, F, H, W] of a video.
            timestep: [B] one per row, or [B, G] with G dividing the tokens N, each value for N/G
                tokens in a row (one per frame in image-to-video).
            encoder_hidden_states: text states [B, L, caption_channels].
            encoder_attention_mask: [B, L], not zero where a text token counts; every row has one.
            guidance: [B], already multiplied with `guidance_embeds_scale`; exactly when the config
                has `guidance_embeds`.

        Raises:
            ParameterError: an input does not fit the config; nothing was computed.
        """
        grid = self._check(hidden_states, timestep, guidance)
        dtype = self.dtype
        x = self._add_positions(self._patches(hidden_states.to(dtype), grid), grid)
        groups = timestep.unsqueeze(1) if timestep.ndim == 1 else timestep
        embedding, modulation = self.time_embed(groups, guidance)
        text = self.caption_projection(encoder_hidden_states.to(dtype))
        text = self.rms(text, None, QK_EPS) * self.caption_norm.weight
        mask, rotary = encoder_attention_mask != 0, self._rotary(grid, x.device)
        for block in self.transformer_blocks:
            x = block(x, modulation, text, mask, grid, rotary)
        last = self.scale_shift_table + embedding.unsqueeze(2)
        shift, scale = last.unbind(2)
        x = self.proj_out(self.layer_modulate(x, scale, shift, OUT_EPS))
        return self._whole(x, grid)

    def _patches(self, latent: Tensor, grid: tuple[int, int, int]) -> Tensor:
        """Tokens [B, N, width]; a convolution whose stride is its kernel is a matrix product."""
        projection = self.patch_embedding if self.config.video else self.patch_embed.proj
        deep, high, wide = self.config.patch_size
        frames, rows, columns = grid
        x = latent.reshape(len(latent), -1, frames, deep, rows, high, columns, wide)
        x = x.permute(0, 2, 4, 6, 1, 3, 5, 7).flatten(4).flatten(1, 3)
        return F.linear(x, projection.weight.flatten(1), projection.bias)

    def _add_positions(self, x: Tensor, grid: tuple[int, int, int]) -> Tensor:
        if self.config.interpolation_scale is None:
            return x
        return (x + self._table("added", grid, x.device)[0]).to(x.dtype)

    def _rotary(self, grid: tuple[int, int, int], device: torch.device) -> tuple[Tensor, ...]:
        return self._table("rotary", grid, device) if self.config.video else ()

    def _table(
        self, kind: str, grid: tuple[int, int, int], device: torch.device
    ) -> tuple[Tensor, ...]:
        key = (kind, grid, device)
        if key in self._tables:
            self._tables.move_to_end(key)
            return self._tables[key]
        if kind == "rotary":
            made = rope.grid(self.config.attention_head_dim, *grid, device=device)
        else:
            made = (added_positions(self.config, grid[1], grid[2]).to(device),)
        self._tables[key] = made
        if len(self._tables) > TABLES:
            self._tables.popitem(last=False)
        return made

    def _check(
        self, latent: Tensor, timestep: Tensor, guidance: Tensor | None
    ) -> tuple[int, int, int]:
        config, shape = self.config, tuple(latent.shape)
        axes = 5 if config.video else 4
        if len(shape) != axes or shape[1] != config.in_channels:
            names = "F, H, W" if config.video else "H, W"
            wanted = f"must be [B, {config.in_channels}, {names}]."
            raise ParameterError([Problem("hidden_states", shape, wanted)])
        sizes = shape[2:] if config.video else (1, *shape[2:])
        grid, problems = token_grid(config, *sizes), list[Problem]()
        if any(size % patch for size, patch in zip(sizes, config.patch_size, strict=True)):
            wanted = f"frames, rows and columns must be multiples of {config.patch_size}."
            problems.append(Problem("hidden_states", shape, wanted))
        longest = config.rope_max_seq_len if config.video else max(grid)
        if not all(0 < size <= longest for size in grid):
            wanted = f"every axis must have 1 to {longest} tokens."
            problems.append(Problem("hidden_states", shape, wanted))
        given = tuple(timestep.shape)
        count = given[1] if len(given) == 2 else 1
        if given[:1] != shape[:1] or len(given) > 2 or not count or math.prod(grid) % count:
            wanted = f"must be [{shape[0]}] or [{shape[0]}, G] with G dividing {math.prod(grid)}."
            problems.append(Problem("timestep", given, wanted))
        if (guidance is not None) != config.guidance_embeds:
            wanted = "must be given." if guidance is None else "this model takes none."
            value = None if guidance is None else tuple(guidance.shape)
            problems.append(Problem("guidance", value, wanted))
        if problems:
            raise ParameterError(problems)
        return grid

    def _whole(self, x: Tensor, grid: tuple[int, int, int]) -> Tensor:
        x = x.reshape(len(x), *grid, *self.config.patch_size, -1)  # b f h w pf ph pw c
        x = x.permute(0, 7, 1, 4, 2, 5, 3, 6).flatten(6).flatten(4, 5).flatten(2, 3)
        return x if self.config.video else x.squeeze(2)


def added_positions(config: SanaConfig, rows: int, columns: int) -> Tensor:
    """Sines and cosines of columns, then of rows, float32 [1, rows·columns, width], on the CPU.

    Positions are stretched so that every size spans the trained one (diffusers' `PatchEmbed`), and
    divided by `interpolation_scale`.
    """
    assert config.interpolation_scale is not None
    quarter = config.width // 4
    base = config.sample_size // config.patch_size[1]
    waves = 1.0 / 10000 ** (torch.arange(quarter, dtype=torch.float64) / quarter)
    parts: list[Tensor] = []
    for axis, count in ((1, columns), (0, rows)):
        places = torch.arange(count, dtype=torch.float32) / (count / base)
        angles = torch.outer((places / config.interpolation_scale).double(), waves)
        shape = (1, count, -1) if axis else (count, 1, -1)
        table = torch.cat((angles.sin(), angles.cos()), dim=-1).view(*shape)
        parts.append(table.expand(rows, columns, -1))
    return torch.cat(parts, dim=-1).flatten(0, 1)[None].float()
