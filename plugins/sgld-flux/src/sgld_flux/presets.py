"""Defaults of the FLUX.1 checkpoints, as plain data. Each variant is a pipeline of its own, told by
`guidance_embeds`, so a base preset holds for copies under any name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sgld.api import Preset, Where

_TINY: Final = Preset(
    "tiny",
    {"width": 64, "height": 64, "num_inference_steps": 4},
    rules=((Where("transformer/config.json", "joint_attention_dim", "==", 32),),),
)

PRESETS: Final[Mapping[str, tuple[Preset, ...]]] = {
    "flux.1-dev": (
        Preset(
            "base",
            {"width": 1024, "height": 1024, "num_inference_steps": 28, "guidance_scale": 3.5},
        ),
        _TINY,
    ),
    "flux.1-schnell": (
        Preset("base", {"width": 1024, "height": 1024, "num_inference_steps": 4}),
        _TINY,
    ),
}
"""Pipeline id → its presets."""
