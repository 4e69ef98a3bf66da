"""Sizes of a LingBot World network and what its checkpoint says about chunks. Free of torch.

Published checkpoints carry the file of the original code (`dim`, `num_heads`, …) or one in
diffusers' words (`attention_head_dim`, …), and some name the chunk, the window and the sink.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from sgld.api.errors import ModelError
from sgld_wan.models.config import WanConfig

FIELD: Final = "transformer/config.json"
CONTROL_DIM: Final = 6
"""Numbers per pixel of the camera condition: a ray's origin and direction."""
TEXT_LENGTH: Final = 512

_ORIGINAL: Final = {
    "in_dim": "in_channels",
    "out_dim": "out_channels",
    "num_heads": "num_attention_heads",
}
_CHUNK: Final = ("num_frames_per_block", "num_frame_per_block")
_WINDOW: Final = ("local_attn_size", "sliding_window_num_frames")
_SINK: Final = ("sink_size",)
_NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {
    "model_type": ("i2v", "ti2v", "camera"),
    "control_dim": (CONTROL_DIM,),
    "control_type": ("cam", None),
    "independent_first_frame": (False, None),
    "boundary_ratio": (None, 0.9, 0.947),
}
"""Keys which only mean something at other values than these."""


class LingBotConfig(NamedTuple):
    """One network.

    Args:
        wan: its sizes; `in_channels` is noise, mask and picture together.
        chunk: latent frames per chunk that the checkpoint asks for, None: it does not say.
        window: latent frames of its attention window, sink and chunk included; None likewise.
        sink: first latent frames that never leave the window; None likewise.
        text_length: rows of the encoded prompt; the network attends to empty ones, too.
    """

    wan: WanConfig
    chunk: int | None = None
    window: int | None = None
    sink: int | None = None
    text_length: int = TEXT_LENGTH

    @property
    def mask_channels(self) -> int:
        """Channels that tell which frames of the picture's clip are given."""
        return self.wan.in_channels - 2 * self.wan.out_channels

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> LingBotConfig:
        """Read a `transformer/config.json`.

        Raises:
            ModelError: an unknown key, a value of the wrong type or one that this code does not
                compute; the message names it.
        """
        rest = {key: value for key, value in values.items() if not key.startswith("_")}
        wrong = [
            f"{key}={rest[key]!r}: only {' or '.join(map(repr, good))} is supported"
            for key, good in _NEUTRAL.items()
            if key in rest and rest[key] not in good
        ]
        for key in _NEUTRAL:
            rest.pop(key, None)
        chunk = _count(rest, _CHUNK, wrong)
        window = _count(rest, _WINDOW, wrong)
        sink = _count(rest, _SINK, wrong)
        length = _count(rest, ("text_len",), wrong) or TEXT_LENGTH
        if wrong:
            raise _refused(wrong)
        # The original file writes window -1 and sink 0 where it leaves both to the caller.
        window = window or None
        sink = sink if sink or window else None
        wan = WanConfig.from_json(_in_our_words(rest))
        config = cls(wan, chunk or None, window, sink, length)
        if config.mask_channels < 1:
            wrong.append(
                f"in_channels={wan.in_channels}, out_channels={wan.out_channels}: there is no room "
                "for the first frame's latents and mask"
            )
        if wan.patch_size[0] != 1:
            wrong.append(f"patch_size={wan.patch_size}: a token must be one latent frame")
        if wrong:
            raise _refused(wrong)
        return config


def _in_our_words(values: Mapping[str, Any]) -> dict[str, Any]:
    """The file in diffusers' words."""
    if "dim" not in values:
        return dict(values)
    named = {_ORIGINAL.get(key, key): value for key, value in values.items()}
    width, heads = named.pop("dim"), named.get("num_attention_heads")
    if not isinstance(width, int) or not isinstance(heads, int) or heads < 1 or width % heads:
        raise _refused([f"dim={width!r}, num_heads={heads!r}: heads must divide the width"])
    named.setdefault("attention_head_dim", width // heads)
    if named.get("qk_norm") is True:
        named["qk_norm"] = "rms_norm_across_heads"
    return named


def _count(values: dict[str, Any], keys: tuple[str, ...], wrong: list[str]) -> int | None:
    """The first of these keys as a number, -1 as 0; None when none is there."""
    found = {key: values.pop(key) for key in keys if key in values}
    for key, value in found.items():
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < -1:
            wrong.append(f"{key}={value!r}: must be a whole number of latent frames")
            return None
        return max(value, 0)
    return None


def _refused(wrong: list[str]) -> ModelError:
    return ModelError(
        f"{FIELD}: " + "; ".join(wrong) + ".",
        remedy="This checkpoint is not a causal LingBot World network that sgld-lingbot computes.",
    )
