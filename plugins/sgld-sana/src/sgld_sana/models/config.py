"""Sizes and switches of a SANA denoiser, read from `transformer/config.json`. Free of torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from sgld.api.errors import ModelError

VIDEO: Final = "SanaVideoTransformer3DModel"
RMS: Final = "rms_norm_across_heads"
VIDEO_DEFAULTS: Final[Mapping[str, Any]] = {
    "in_channels": 16,
    "out_channels": 16,
    "num_attention_heads": 20,
    "attention_head_dim": 112,
    "sample_size": 30,
    "patch_size": (1, 2, 2),
    "qk_norm": RMS,
}
"""Where the video network's defaults differ from those of the picture network."""


@dataclass(frozen=True, slots=True)
class SanaConfig:
    """One denoiser; names and defaults as in `transformer/config.json` of the diffusers layout.

    Args:
        video: whether tokens lie on frames x rows x columns with rotary positions.
        in_channels: latent channels going in.
        out_channels: latent channels coming out; twice as many: the second half is not used.
        num_attention_heads: heads of linear self-attention; the model width is heads x width.
        attention_head_dim: width of such a head.
        num_layers: blocks.
        num_cross_attention_heads: heads of attention to the text.
        cross_attention_head_dim: width of such a head.
        cross_attention_dim: width of the projected text, always the model width.
        caption_channels: width of the text encoder.
        mlp_ratio: inner width of the feed-forward network over the model width.
        attention_bias: whether queries, keys and values of self-attention have a bias.
        sample_size: rows of the latent of the trained size.
        patch_size: latent frames, rows and columns that make one token.
        norm_elementwise_affine: only false is computed.
        norm_eps: of the blocks' layer norms.
        interpolation_scale: of the additive positions; None: there are none.
        guidance_embeds: whether the guidance scale is an input (SANA-Sprint).
        guidance_embeds_scale: what the guidance scale is multiplied with.
        qk_norm: None, or `rms_norm_across_heads`.
        timestep_scale: what the sampler's time is multiplied with.
        rope_max_seq_len: most tokens along one axis of a video.
        dropout: only 0 is computed.
    """

    video: bool = False
    in_channels: int = 32
    out_channels: int = 32
    num_attention_heads: int = 70
    attention_head_dim: int = 32
    num_layers: int = 20
    num_cross_attention_heads: int = 20
    cross_attention_head_dim: int = 112
    cross_attention_dim: int = 2240
    caption_channels: int = 2304
    mlp_ratio: float = 2.5
    attention_bias: bool = False
    sample_size: int = 32
    patch_size: tuple[int, int, int] = (1, 1, 1)
    norm_elementwise_affine: bool = False
    norm_eps: float = 1e-6
    interpolation_scale: float | None = None
    guidance_embeds: bool = False
    guidance_embeds_scale: float = 0.1
    qk_norm: str | None = None
    timestep_scale: float = 1.0
    rope_max_seq_len: int = 1024
    dropout: float = 0.0

    @property
    def width(self) -> int:
        """Model width: heads x head width."""
        return self.num_attention_heads * self.attention_head_dim

    @property
    def inner(self) -> int:
        """Inner width of the feed-forward network."""
        return int(self.mlp_ratio * self.width)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> SanaConfig:
        """Read a `transformer/config.json`; keys that start with `_` are notes and are skipped.

        Raises:
            ModelError: an unknown key, a value of the wrong type or one that this code does not
                compute; the message names every one.
        """
        video = values.get("_class_name") == VIDEO or "rope_max_seq_len" in values
        kinds = {field.name: str(field.type) for field in fields(cls)}
        taken: dict[str, Any] = dict(VIDEO_DEFAULTS) if video else {}
        wrong: list[str] = []
        for key, value in values.items():
            if key.startswith("_"):
                continue
            if key not in kinds or key == "video":
                wrong.append(f"{key}={value!r}: unknown key")
                continue
            given = _read(key, value)
            if complaint := _complaint(kinds[key], given):
                wrong.append(f"{key}={value!r}: {complaint}")
            taken[key] = given
        if taken.get("out_channels", 0) is None:
            taken["out_channels"] = taken.get("in_channels", cls().in_channels)
            wrong = [row for row in wrong if not row.startswith("out_channels=None")]
        if not wrong:
            config = cls(video=video, **taken)
            wrong = config._conflicts()
            if not wrong:
                return config
        raise ModelError(
            "transformer/config.json: " + "; ".join(wrong) + ".",
            remedy="This checkpoint is not a SANA denoiser that sgld-sana can compute.",
        )

    def _conflicts(self) -> list[str]:
        wrong: list[str] = []
        if self.qk_norm not in (None, RMS):
            wrong.append(f"qk_norm={self.qk_norm!r}: only null and {RMS!r} are supported")
        if self.norm_elementwise_affine:
            wrong.append("norm_elementwise_affine=True: only false is supported")
        if self.cross_attention_dim != self.width:
            wrong.append(f"cross_attention_dim={self.cross_attention_dim}: must be {self.width}")
        if self.out_channels not in (self.in_channels, 2 * self.in_channels):
            wrong.append(
                f"out_channels={self.out_channels}: must be {self.in_channels} or twice that"
            )
        if self.video and self.attention_head_dim % 2:
            wrong.append(f"attention_head_dim={self.attention_head_dim}: must be even")
        if self.video and self.interpolation_scale is not None:
            wrong.append(f"interpolation_scale={self.interpolation_scale}: not for video")
        if self.interpolation_scale is not None and self.width % 4:
            wrong.append(f"interpolation_scale needs a width in steps of 4, not {self.width}")
        if not self.video and self.patch_size[0] != 1:
            wrong.append(f"patch_size={self.patch_size}: pictures have one number")
        return wrong


def _read(key: str, value: Any) -> Any:
    if key != "patch_size":
        return value
    return (1, value, value) if isinstance(value, int) else tuple(value or ())


def _complaint(kind: str, value: Any) -> str:
    """Why `value` cannot be a field of this type, or an empty string."""
    if value is None:
        return "" if "None" in kind else "must be given"
    if kind.startswith("tuple"):
        fits = len(value) == 3 and all(map(_is_size, value))
        return "" if fits else "must be one or three positive whole numbers"
    if kind == "bool":
        return "" if isinstance(value, bool) else "must be true or false"
    if kind.startswith("str"):
        return "" if isinstance(value, str) else "must be a string"
    if kind.startswith("float"):
        fits = isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0
        return "" if fits else "must be a number of at least 0"
    return "" if _is_size(value) else "must be a positive whole number"


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def token_grid(config: SanaConfig, frames: int, height: int, width: int) -> tuple[int, int, int]:
    """Tokens along (frame, row, column) of a latent with these sizes; pictures have one frame."""
    deep, high, wide = config.patch_size
    return frames // deep, height // high, width // wide


def tokens(config: SanaConfig, frames: int, height: int, width: int) -> int:
    """Tokens of a latent of these sizes; 1024x1024 pixels are 1024 with a stride of 32."""
    return math.prod(token_grid(config, frames, height, width))
