"""What a checkpoint's class does not say of itself: the frame rate that its clips are made for."""

from __future__ import annotations

from typing import Final

from sgld.api import Preset, Where

INDEX: Final = "model_index.json"
FRAME_RATES: Final = {
    8: ("CogVideoXPipeline", "CogVideoXImageToVideoPipeline", "AnimateDiffPipeline"),
    15: ("HunyuanVideoPipeline", "HunyuanVideoImageToVideoPipeline"),
    24: (
        "HunyuanVideo15Pipeline",
        "HunyuanVideo15ImageToVideoPipeline",
        "Kandinsky5T2VPipeline",
        "Kandinsky5I2VPipeline",
        "SkyReelsV2Pipeline",
    ),
    30: ("MochiPipeline",),
}
"""Frames per second in the examples of each class's own documentation."""

PRESETS: Final = tuple(
    Preset(f"fps-{rate}", {"fps": rate}, rules=((Where(INDEX, "_class_name", "in", names),),))
    for rate, names in FRAME_RATES.items()
)
