"""Defaults of the known FLUX.2 checkpoints, as plain data.

Steps and guidance are those of the released pipelines; the pipeline's class and its `is_distilled`
tell the variants apart, so a base preset per pipeline is enough.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sgld.api import Preset, Where

TRANSFORMER: Final = "transformer/config.json"
TINY_CHANNELS: Final = 16

_SIZE: Final = {"width": 1024, "height": 1024}
_TINY: Final = Preset(
    "tiny",
    {"width": 64, "height": 64, "num_inference_steps": 4},
    rules=((Where(TRANSFORMER, "in_channels", "==", TINY_CHANNELS),),),
)


def _presets(**defaults: Any) -> tuple[Preset, ...]:
    return Preset("base", {**_SIZE, **defaults}), _TINY


PRESETS2: Final[Mapping[str, tuple[Preset, ...]]] = {
    "flux.2-dev": _presets(num_inference_steps=50, guidance_scale=4.0),
    "flux.2-klein": _presets(num_inference_steps=4),
    "flux.2-klein-kv": _presets(num_inference_steps=4),
    "flux.2-klein-base": _presets(num_inference_steps=50, guidance_scale=4.0),
}
"""Pipeline id → its presets."""
