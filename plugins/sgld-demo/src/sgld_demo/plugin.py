"""What sgld-demo brings: one checkpoint, and how it is run. No model code of its own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from sgld.api import ModelSpec, Plugin, hookimpl

MODEL: Final = "demo:world"
STEPS: Final = (1000, 667, 333)
"""It was also trained for four (1000, 750, 500, 250), which were not measurably better."""
DEFAULTS: Final[dict[str, Any]] = {
    "prompt": "dusk, clear, warm, tall pillars",
    "width": 160,
    "height": 96,
    "num_frames": 81,
    "fps": 12,
    "num_inference_steps": len(STEPS),
    "dmd_denoising_steps": STEPS,
}


@hookimpl
def sgld_plugin() -> Plugin:
    """Name and contracts."""
    return Plugin(
        "demo",
        contracts={"model": 1},
        summary="A small trained world that runs live on two processor cores",
        needs=("lingbot",),
    )


@hookimpl
def sgld_models() -> Iterable[ModelSpec]:
    """The world."""
    yield ModelSpec(
        id=MODEL,
        pipeline="lingbot-world",
        folder="sgld_demo:world",
        defaults=DEFAULTS,
        picture="start.png",
        blank="grey.png",
        tasks=("image-to-video", "text-to-video", "text-to-image"),
        summary="Pillars on a chequered ground, walked through with keys; 160x96",
    )
