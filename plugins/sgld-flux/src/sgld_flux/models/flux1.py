"""The FLUX.1 denoiser, written for serving.

    FluxTransformer(config, ops).forward(hidden_states, timestep, encoder_hidden_states,
                                         pooled_projections, guidance=None, rows=…, columns=…)

Double blocks keep text and image tokens apart and let them meet in one attention; single blocks run
both as one sequence, attention and feed-forward side by side. Parameter names equal those of
diffusers' `FluxTransformer2DModel`, so a checkpoint in that layout loads by name. Everything that a
kernel may replace goes through `sgld.ops.Ops`. Nothing in `forward` waits for the device.

Build it under `torch.device("meta")` and fill it with `load_state_dict(..., assign=True)`: there
are no buffers, and the rotary tables are made at the first call of a size.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor, nn

from sgld.api.errors import ParameterError, Problem
from sgld.ops import Ops
from sgld_flux.models.config1 import FluxConfig
from sgld_flux.models.shared import (
    EPS,
    SINUSOID,
    JointAttention,
    PositionTables,
    Rotary,
    ValueEmbedder,
    grid_ids,
    modulation,
    rounded_thousands,
    sinusoid,
)

FP16_MOST: Final = 65504.0
__all__ = ["FluxConfig", "FluxTransformer"]

THETA: Final = 10000.0
MLP_RATIO: Final = 4
MOST_ROWS: Final = 1024
"""Most rows or columns of tokens: far above what was trained, and a bound on memory."""


class Conditions(nn.Module):
    """Time, pooled text and (dev) guidance as one vector of the model's width."""

    def __init__(self, config: FluxConfig) -> None:
        super().__init__()
        width = config.width
        self.timestep_embedder = ValueEmbedder(SINUSOID, width)
        if config.guidance_embeds:
            self.guidance_embedder = ValueEmbedder(SINUSOID, width)
        self.text_embedder = ValueEmbedder(config.pooled_projection_dim, width)

    def forward(self, timestep: Tensor, guidance: Tensor | None, pooled: Tensor) -> Tensor:
        """timestep [B] (1000·sigma), guidance [B] or None, pooled [B, P] → [B, D]."""
        dtype = pooled.dtype
        time = rounded_thousands(timestep, dtype, divided=True)
        embedding = self.timestep_embedder(sinusoid(time).to(dtype))
        if guidance is not None:
            scale = rounded_thousands(guidance, dtype)
            embedding = embedding + self.guidance_embedder(sinusoid(scale).to(dtype))
        return embedding + self.text_embedder(pooled)


class Projection(nn.Module):
    """A linear under the name `proj`, where the reference keeps it."""

    def __init__(self, wide_in: int, wide_out: int) -> None:
        super().__init__()
        self.proj = nn.Linear(wide_in, wide_out)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x)


class FeedForward(nn.Module):
    """Linear → tanh-GELU → linear; the middle of `net` only keeps the reference's numbering."""

    def __init__(self, width: int, ops: Ops) -> None:
        super().__init__()
        self.gelu = ops["activation.gelu_tanh"]
        inner = MLP_RATIO * width
        self.net = nn.ModuleList((Projection(width, inner), nn.Identity(), nn.Linear(inner, width)))

    def forward(self, x: Tensor) -> Tensor:
        return self.net[2](self.gelu(self.net[0](x)))


class Modulation(nn.Module):
    """The linear that makes a block's shifts, scales and gates of the condition vector."""

    def __init__(self, width: int, parts: int) -> None:
        super().__init__()
        self.parts = parts
        self.linear = nn.Linear(width, parts * width)

    def forward(self, condition: Tensor) -> tuple[Tensor, ...]:
        """[B, D] → `parts` vectors [B, 1, D] in float32."""
        return modulation(self.linear, condition, self.parts)


def finite(x: Tensor) -> Tensor:
    """Float16 kept within its range, as the reference does; other dtypes as they are."""
    return x.clamp(-FP16_MOST, FP16_MOST) if x.dtype == torch.float16 else x


class DoubleBlock(nn.Module):
    """Joint attention and a feed-forward network for each of the two streams, all gated."""

    def __init__(self, config: FluxConfig, ops: Ops) -> None:
        super().__init__()
        width = config.width
        self.layer_modulate = ops["norm.layer_modulate"]
        self.gate = ops["residual.gate"]
        self.gate_layer_modulate = ops["residual.gate_layer_modulate"]
        self.norm1 = Modulation(width, 6)
        self.norm1_context = Modulation(width, 6)
        self.attn = JointAttention(width, config.num_attention_heads, ops)
        self.ff = FeedForward(width, ops)
        self.ff_context = FeedForward(width, ops)

    def forward(
        self, image: Tensor, text: Tensor, condition: Tensor, rotary: Rotary
    ) -> tuple[Tensor, Tensor]:
        """image [B, N, D] and text [B, L, D] → the same."""
        of_image, of_text = self.norm1(condition), self.norm1_context(condition)
        x = self.layer_modulate(image, of_image[1], of_image[0], EPS)
        y = self.layer_modulate(text, of_text[1], of_text[0], EPS)
        x, y = self.attn(x, y, rotary)
        image = self._rest(image, x, of_image, self.ff)
        return image, finite(self._rest(text, y, of_text, self.ff_context))

    def _rest(
        self, stream: Tensor, attended: Tensor, parts: tuple[Tensor, ...], ff: FeedForward
    ) -> Tensor:
        _, _, gate, shift_mlp, scale_mlp, gate_mlp = parts
        stream, y = self.gate_layer_modulate(stream, attended, gate, scale_mlp, shift_mlp, EPS)
        return self.gate(stream, ff(y), gate_mlp)


class SelfAttention(nn.Module):
    """Attention among all tokens without an output projection, which the single block shares."""

    def __init__(self, config: FluxConfig, ops: Ops) -> None:
        super().__init__()
        width = config.width
        self.heads = config.num_attention_heads
        self.norm_rope, self.attend = ops["norm.head_rms_rope"], ops["attention.self"]
        self.norm_q = nn.RMSNorm(config.attention_head_dim, eps=EPS)
        self.norm_k = nn.RMSNorm(config.attention_head_dim, eps=EPS)
        self.to_q = nn.Linear(width, width)
        self.to_k = nn.Linear(width, width)
        self.to_v = nn.Linear(width, width)

    def forward(self, x: Tensor, rotary: Rotary) -> Tensor:
        q = self.norm_rope(self.to_q(x), self.norm_q.weight, *rotary, self.heads, EPS)
        k = self.norm_rope(self.to_k(x), self.norm_k.weight, *rotary, self.heads, EPS)
        v = self.to_v(x).unflatten(-1, (self.heads, -1))
        return self.attend(q, k, v).flatten(2)


class SingleBlock(nn.Module):
    """Attention and feed-forward side by side on one sequence of text and image tokens."""

    def __init__(self, config: FluxConfig, ops: Ops) -> None:
        super().__init__()
        width = config.width
        self.layer_modulate = ops["norm.layer_modulate"]
        self.gate, self.gelu = ops["residual.gate"], ops["activation.gelu_tanh"]
        self.norm = Modulation(width, 3)
        self.attn = SelfAttention(config, ops)
        self.proj_mlp = nn.Linear(width, MLP_RATIO * width)
        self.proj_out = nn.Linear((1 + MLP_RATIO) * width, width)

    def forward(self, x: Tensor, condition: Tensor, rotary: Rotary) -> Tensor:
        """x [B, L + N, D] → the same."""
        shift, scale, gate = self.norm(condition)
        y = self.layer_modulate(x, scale, shift, EPS)
        y = torch.cat((self.attn(y, rotary), self.gelu(self.proj_mlp(y))), dim=-1)
        return finite(self.gate(x, self.proj_out(y), gate))


class FluxTransformer(nn.Module):
    """Predicts the flow velocity of packed latents; see the module's head for how to build it."""

    def __init__(self, config: FluxConfig, ops: Ops) -> None:
        super().__init__()
        self.config = config
        width = config.width
        self.layer_modulate = ops["norm.layer_modulate"]
        self.time_text_embed = Conditions(config)
        self.context_embedder = nn.Linear(config.joint_attention_dim, width)
        self.x_embedder = nn.Linear(config.in_channels, width)
        self.transformer_blocks = nn.ModuleList(
            DoubleBlock(config, ops) for _ in range(config.num_layers)
        )
        self.single_transformer_blocks = nn.ModuleList(
            SingleBlock(config, ops) for _ in range(config.num_single_layers)
        )
        self.norm_out = Modulation(width, 2)
        self.proj_out = nn.Linear(width, config.out_channels or config.in_channels)
        self.positions = PositionTables(config.axes_dims_rope, THETA)
        self.requires_grad_(False)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that the blocks compute in; inputs are cast to it and the output has it."""
        return self.x_embedder.weight.dtype

    def layer_groups(self) -> list[nn.Module]:
        """The blocks, in the order they run: the units that layerwise offload moves."""
        return [*self.transformer_blocks, *self.single_transformer_blocks]

    @torch.no_grad()
    def forward(
        self,
        hidden_states: Tensor,
        timestep: Tensor,
        encoder_hidden_states: Tensor,
        pooled_projections: Tensor,
        guidance: Tensor | None = None,
        *,
        rows: int,
        columns: int,
    ) -> Tensor:
        """Velocity [B, N, C] of the image tokens, in the model's dtype.

        Args:
            hidden_states: packed latents [B, N, C] with N = rows·columns, in row order.
            timestep: 1000·sigma, [B].
            encoder_hidden_states: T5 states [B, L, text_dim]; padding is attended to.
            pooled_projections: pooled CLIP states [B, P].
            guidance: the guidance scale, [B], exactly when the config has `guidance_embeds`.
            rows: rows of tokens.
            columns: columns of tokens.

        Raises:
            ParameterError: an input does not fit the config; nothing was computed.
        """
        self._check(hidden_states, timestep, guidance, rows, columns)
        dtype = self.dtype
        length = encoder_hidden_states.shape[1]
        rotary = self._rotary(length, rows, columns, hidden_states.device)
        image = self.x_embedder(hidden_states.to(dtype))
        condition = self.time_text_embed(timestep, guidance, pooled_projections.to(dtype))
        text = self.context_embedder(encoder_hidden_states.to(dtype))
        for block in self.transformer_blocks:
            image, text = block(image, text, condition, rotary)
        x = torch.cat((text, image), dim=1)
        del text, image
        for block in self.single_transformer_blocks:
            x = block(x, condition, rotary)
        # Here, and only here, the scale comes before the shift.
        scale, shift = self.norm_out(condition)
        return self.proj_out(self.layer_modulate(x[:, length:], scale, shift, EPS))

    def _rotary(self, length: int, rows: int, columns: int, device: torch.device) -> Rotary:
        def ids() -> Tensor:
            text = torch.zeros(length, 3, dtype=torch.float64)
            return torch.cat((text, grid_ids(rows, columns, axes=3)))

        return self.positions.of((length, rows, columns), ids, device)

    def _check(
        self, hidden: Tensor, timestep: Tensor, guidance: Tensor | None, rows: int, columns: int
    ) -> None:
        problems = list(self._problems(hidden, timestep, guidance, rows, columns))
        if problems:
            raise ParameterError(problems)

    def _problems(
        self, hidden: Tensor, timestep: Tensor, guidance: Tensor | None, rows: int, columns: int
    ) -> Iterator[Problem]:
        batch, wanted = hidden.shape[0], (rows * columns, self.config.in_channels)
        if hidden.ndim != 3 or tuple(hidden.shape[1:]) != wanted:
            yield Problem(
                "hidden_states", tuple(hidden.shape), f"must be [B, {wanted[0]}, {wanted[1]}]."
            )
        if not (0 < rows <= MOST_ROWS and 0 < columns <= MOST_ROWS):
            yield Problem("rows", (rows, columns), f"rows and columns must be 1 to {MOST_ROWS}.")
        if tuple(timestep.shape) != (batch,):
            yield Problem("timestep", tuple(timestep.shape), f"must be [{batch}].")
        if (guidance is None) == self.config.guidance_embeds:
            given = None if guidance is None else tuple(guidance.shape)
            message = "must be given." if guidance is None else "this model takes no guidance."
            yield Problem("guidance", given, message)
        elif guidance is not None and tuple(guidance.shape) != (batch,):
            yield Problem("guidance", tuple(guidance.shape), f"must be [{batch}].")
