"""Sizes and switches of a Wan denoiser, read from `transformer/config.json`. Free of torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, Final

from sgld.api.errors import ModelError

NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {
    "add_img_emb": (False, None),
    "window_size": ([-1, -1], (-1, -1), None),
}
"""Keys of older exports which only mean something at other values than these."""


@dataclass(frozen=True, slots=True)
class WanConfig:
    """One denoiser; names and defaults as in `transformer/config.json` of the diffusers layout.

    Args:
        patch_size: latent frames, rows and columns that make one token.
        num_attention_heads: heads H; the model width is H·D.
        attention_head_dim: width D of a head.
        in_channels: latent channels going in, image condition and mask included.
        out_channels: latent channels coming out.
        text_dim: width of the text encoder.
        freq_dim: width of the sinusoidal time embedding.
        ffn_dim: inner width of the feed-forward network.
        num_layers: blocks.
        cross_attn_norm: a layer norm with weights in front of cross-attention.
        qk_norm: only `rms_norm_across_heads` exists.
        eps: of every norm of the blocks.
        image_dim: width of the image encoder (Wan2.1 I2V), else None.
        added_kv_proj_dim: input width of the image keys and values, else None.
        rope_max_seq_len: most tokens along one axis.
        pos_embed_seq_len: image tokens of first and last frame together, else None.
    """

    patch_size: tuple[int, int, int] = (1, 2, 2)
    num_attention_heads: int = 40
    attention_head_dim: int = 128
    in_channels: int = 16
    out_channels: int = 16
    text_dim: int = 4096
    freq_dim: int = 256
    ffn_dim: int = 13824
    num_layers: int = 40
    cross_attn_norm: bool = True
    qk_norm: str = "rms_norm_across_heads"
    eps: float = 1e-6
    image_dim: int | None = None
    added_kv_proj_dim: int | None = None
    rope_max_seq_len: int = 1024
    pos_embed_seq_len: int | None = None

    @property
    def width(self) -> int:
        """Model width: heads × head width."""
        return self.num_attention_heads * self.attention_head_dim

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> WanConfig:
        """Read a `transformer/config.json`; keys that start with `_` are notes and are skipped.

        Raises:
            ModelError: an unknown key, a value of the wrong type or one that this code does not
                compute; the message names every one.
        """
        known = {field.name: field for field in fields(cls)}
        wrong: list[str] = []
        taken: dict[str, Any] = {}
        for key, value in values.items():
            if key.startswith("_") or (key in NEUTRAL and value in NEUTRAL[key]):
                continue
            if key not in known:
                wrong.append(f"{key}={value!r}: unknown key")
                continue
            taken[key] = tuple(value) if isinstance(value, list) else value
        if taken.get("out_channels", MISSING) is None:
            taken["out_channels"] = taken.get(
                "in_channels", cls.__dataclass_fields__["in_channels"].default
            )
        wrong += [
            f"{key}={value!r}: {complaint}"
            for key, value in taken.items()
            if (complaint := _complaint(key, known[key].type, value))
        ]
        if not wrong:
            config = cls(**taken)
            wrong = config._conflicts()
            if not wrong:
                return config
        raise ModelError(
            "transformer/config.json: " + "; ".join(wrong) + ".",
            remedy="This checkpoint is not a Wan 2.1 or 2.2 denoiser that sgld-wan can compute.",
        )

    def _conflicts(self) -> list[str]:
        wrong: list[str] = []
        if self.qk_norm != "rms_norm_across_heads":
            wrong.append(f"qk_norm={self.qk_norm!r}: only 'rms_norm_across_heads' is supported")
        if self.attention_head_dim % 2:
            wrong.append(f"attention_head_dim={self.attention_head_dim}: must be even")
        if self.freq_dim % 2:
            wrong.append(f"freq_dim={self.freq_dim}: must be even")
        if (self.image_dim is None) != (self.added_kv_proj_dim is None):
            wrong.append(
                f"image_dim={self.image_dim!r}, added_kv_proj_dim={self.added_kv_proj_dim!r}: "
                "both or neither"
            )
        elif self.added_kv_proj_dim not in (None, self.width):
            wrong.append(f"added_kv_proj_dim={self.added_kv_proj_dim}: must be {self.width}")
        if self.pos_embed_seq_len is not None and self.image_dim is None:
            wrong.append(f"pos_embed_seq_len={self.pos_embed_seq_len}: needs image_dim")
        return wrong


def _complaint(key: str, annotation: Any, value: Any) -> str:
    """Why `value` cannot be this field, or an empty string."""
    kinds = str(annotation)
    if value is None:
        return "" if "None" in kinds else "must be given"
    if kinds.startswith("tuple"):
        fits = isinstance(value, tuple) and len(value) == 3 and all(map(_is_size, value))
        return "" if fits else "must be three positive whole numbers"
    if kinds == "bool":
        return "" if isinstance(value, bool) else "must be true or false"
    if kinds == "str":
        return "" if isinstance(value, str) else "must be a string"
    if kinds == "float":
        fits = isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0
        return "" if fits else "must be a positive number"
    return "" if _is_size(value) else "must be a positive whole number"


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def token_grid(config: WanConfig, frames: int, height: int, width: int) -> tuple[int, int, int]:
    """Tokens along (frame, row, column) of a latent with these sizes, in latent units."""
    sizes = zip((frames, height, width), config.patch_size, strict=True)
    rows = tuple(size // patch for size, patch in sizes)
    return rows[0], rows[1], rows[2]


def tokens(config: WanConfig, frames: int, height: int, width: int) -> int:
    """Tokens of a latent [.., frames, height, width]; 480×832 with 81 frames has 32760."""
    return math.prod(token_grid(config, frames, height, width))
