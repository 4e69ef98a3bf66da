"""Defaults of the known LingBot World checkpoints, as plain data: hub ids, or what files say.

Only what no file of a checkpoint says stands here: the steps it was distilled for. A local copy of
v1 is known by its shift, since both generations name the same classes.
"""

from __future__ import annotations

from typing import Final

from sgld.api import Preset, Where
from sgld_lingbot.schedules import V1_STEPS, V2_STEPS

SCHEDULER: Final = "scheduler/scheduler_config.json"
TRANSFORMER: Final = "transformer/config.json"

V1_REPOS: Final = (
    "robbyant/lingbot-world-fast-diffusers",
    "IPostYellow/lingbot-world-fast-diffusers",
    "FastVideo/LingBot-World-Fast-Diffusers",
)
V2_REPOS: Final = (
    "robbyant/lingbot-world-v2-14b-causal-fast-diffusers",
    "robbyant/lingbot-world-v2-1.3b-causal-fast-diffusers",
    "robbyant/lingbot-world-v2-14b-causal-fast",
    "robbyant/lingbot-world-v2-1.3b-causal-fast",
)

PRESETS: Final = (
    Preset(
        "v1",
        {"dmd_denoising_steps": V1_STEPS},
        repos=V1_REPOS,
        rules=((Where(SCHEDULER, "flow_shift", "==", 10.0),),),
    ),
    Preset("v2", {"dmd_denoising_steps": V2_STEPS}, repos=V2_REPOS),
    Preset(
        "tiny",
        {"width": 96, "height": 64, "num_frames": 33, "fps": 8},
        rules=(
            # Two conditions, so that it counts for more than the shift.
            (Where(TRANSFORMER, "text_dim", "==", 32), Where(SCHEDULER, "flow_shift")),
        ),
    ),
)
