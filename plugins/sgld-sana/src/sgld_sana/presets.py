"""Defaults of the known SANA checkpoints, as plain data: hub ids, or what their files say.

The size is the one that the network was trained for, which its `sample_size` (rows of the latent)
tells; steps and guidance are those of the published pipelines and stand in `params.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sgld.api import Preset, Where

TRANSFORMER: Final = "transformer/config.json"
STRIDE: Final = 32
TINY: Final = Preset(
    "tiny",
    {"width": 128, "height": 96},
    rules=((Where(TRANSFORMER, "caption_channels", "==", 16),),),
)
TINY_VIDEO: Final = Preset(
    "tiny",
    {"width": 96, "height": 64, "num_frames": 9, "fps": 8, "num_inference_steps": 8},
    rules=((Where(TRANSFORMER, "caption_channels", "==", 16),),),
)


def _size(rows: int) -> Preset:
    side = rows * STRIDE
    return Preset(
        f"square-{side}",
        {"width": side, "height": side},
        # Two conditions, so that a tiny model's own preset is not narrower.
        rules=(
            (
                Where(TRANSFORMER, "sample_size", "==", rows),
                Where(TRANSFORMER, "caption_channels", "!=", 16),
            ),
        ),
    )


_480P: Final = Preset("video-480p", {"width": 832, "height": 480, "num_frames": 81, "fps": 16})
_720P: Final = Preset(
    "video-720p",
    {"width": 1280, "height": 704},
    rules=(
        (
            Where(TRANSFORMER, "sample_size", "==", 22),
            Where(TRANSFORMER, "caption_channels", "!=", 16),
        ),
    ),
)

PRESETS: Final[Mapping[str, tuple[Preset, ...]]] = {
    "sana": (_size(16), _size(32), _size(64), _size(128), TINY),
    "sana-sprint": (_size(32), TINY),
    "sana-video": (_480P, _720P, TINY_VIDEO),
    "sana-video-i2v": (_480P, _720P, TINY_VIDEO),
}
"""Pipeline id → its presets."""
