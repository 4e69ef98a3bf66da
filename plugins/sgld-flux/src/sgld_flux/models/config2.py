"""Sizes and switches of a FLUX.2 denoiser, read from `transformer/config.json`. Free of torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from sgld.api.errors import ModelError

AXES: Final = 4
"""Every token stands at (time, row, column, place in the text)."""
EPS: Final = 1e-6
"""Of every norm of every released model."""

Grids = tuple[tuple[int, int, int], ...]
"""(time, rows, columns) of each picture in a sequence, in tokens."""


@dataclass(frozen=True, slots=True)
class Flux2Config:
    """One denoiser; names and defaults as in `transformer/config.json` of the diffusers layout.

    Args:
        patch_size: only 1 exists: latents come patched by the VAE's side.
        in_channels: channels of a latent token.
        out_channels: channels of the predicted velocity; None: as many as come in.
        num_layers: blocks with separate weights for text and picture.
        num_single_layers: blocks that treat both alike.
        attention_head_dim: width D of a head.
        num_attention_heads: heads H; the model width is H·D.
        joint_attention_dim: width of a text state.
        timestep_guidance_channels: width of the sinusoids of time and guidance.
        mlp_ratio: inner width of the feed-forward network over the model width.
        axes_dims_rope: how the head width is shared out among the four axes.
        rope_theta: base of the rotary frequencies.
        eps: of every norm; only 1e-6 exists.
        guidance_embeds: takes a guidance scale as an input (dev).
    """

    patch_size: int = 1
    in_channels: int = 128
    out_channels: int | None = None
    num_layers: int = 8
    num_single_layers: int = 48
    attention_head_dim: int = 128
    num_attention_heads: int = 48
    joint_attention_dim: int = 15360
    timestep_guidance_channels: int = 256
    mlp_ratio: float = 3.0
    axes_dims_rope: tuple[int, ...] = (32, 32, 32, 32)
    rope_theta: float = 2000.0
    eps: float = 1e-6
    guidance_embeds: bool = True

    @property
    def width(self) -> int:
        """Model width: heads × head width."""
        return self.num_attention_heads * self.attention_head_dim

    @property
    def inner(self) -> int:
        """Inner width of a feed-forward network."""
        return int(self.width * self.mlp_ratio)

    @property
    def channels_out(self) -> int:
        """Channels of the predicted velocity."""
        return self.out_channels or self.in_channels

    @property
    def blocks(self) -> int:
        """Blocks of both kinds."""
        return self.num_layers + self.num_single_layers

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Flux2Config:
        """Read a `transformer/config.json`; keys that start with `_` are notes and are skipped.

        Raises:
            ModelError: an unknown key, a value of the wrong type or one that this code does not
                compute; the message names every one.
        """
        known = {field.name: field for field in fields(cls)}
        wrong: list[str] = []
        taken: dict[str, Any] = {}
        for key, value in values.items():
            if key.startswith("_"):
                continue
            if key not in known:
                wrong.append(f"{key}={value!r}: unknown key")
                continue
            taken[key] = tuple(value) if isinstance(value, list) else value
            complaint = _complaint(str(known[key].type), taken[key])
            if complaint:
                wrong.append(f"{key}={value!r}: {complaint}")
        if not wrong:
            config = cls(**taken)
            wrong = config._conflicts()
            if not wrong:
                return config
        raise ModelError(
            "transformer/config.json: " + "; ".join(wrong) + ".",
            remedy="This checkpoint is not a FLUX.2 denoiser that sgld-flux can compute.",
        )

    def _conflicts(self) -> list[str]:
        wrong: list[str] = []
        if self.patch_size != 1:
            wrong.append(f"patch_size={self.patch_size}: only 1 is supported")
        axes = self.axes_dims_rope
        if len(axes) != AXES or any(width % 2 for width in axes):
            wrong.append(f"axes_dims_rope={list(axes)}: must be {AXES} even numbers")
        elif sum(axes) != self.attention_head_dim:
            wrong.append(
                f"axes_dims_rope={list(axes)}: must add up to "
                f"attention_head_dim={self.attention_head_dim}"
            )
        if self.eps != EPS:
            wrong.append(f"eps={self.eps}: only {EPS} is supported")
        if self.timestep_guidance_channels % 2:
            wrong.append(
                f"timestep_guidance_channels={self.timestep_guidance_channels}: must be even"
            )
        return wrong


def _complaint(kinds: str, value: Any) -> str:
    """Why `value` cannot be a field of these kinds, or an empty string."""
    if value is None:
        return "" if "None" in kinds else "must be given"
    if kinds.startswith("tuple"):
        fits = isinstance(value, tuple) and all(map(_is_size, value))
        return "" if fits else "must be a list of positive whole numbers"
    if kinds == "bool":
        return "" if isinstance(value, bool) else "must be true or false"
    if kinds == "float":
        fits = isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0
        return "" if fits else "must be a positive number"
    return "" if _is_size(value) else "must be a positive whole number"


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
