"""What sgld-lingbot brings. Strings only; nothing here imports torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sgld.api import Claims, PipelineSpec, Plugin, RealtimeSpec, Where, features, hookimpl
from sgld_lingbot.presets import PRESETS, V1_REPOS, V2_REPOS

PIPELINE: Final = "lingbot-world"
CLASS_NAME: Final = "LingBotWorldCausalDMDPipeline"
FEATURES: Final = frozenset(
    {
        features.COMPONENT_OFFLOAD,
        features.LAYERWISE_OFFLOAD,
        features.DUMMY_WEIGHTS,
        features.ORIGINAL_LAYOUT,
    }
)


@hookimpl
def sgld_plugin() -> Plugin:
    """Name and contracts."""
    return Plugin(
        "lingbot",
        contracts={"pipeline": 1, "realtime": 1},
        summary="LingBot World v1 and v2, causal: worlds that are steered while they are made",
        needs=("wan",),
    )


@hookimpl
def sgld_pipelines() -> Iterable[PipelineSpec]:
    """One pipeline for both generations: they differ in numbers only."""
    yield PipelineSpec(
        id=PIPELINE,
        target="sgld_lingbot.pipelines.world:LingBotWorldCausalDMDPipeline",
        params="sgld_lingbot.params:LingBotParams",
        tasks=("image-to-video",),
        claims=Claims(
            repos=(*V1_REPOS, *V2_REPOS),
            rules=(
                (Where("model_index.json", "_class_name", "==", CLASS_NAME),),
                (Where("transformers/config.json", "num_layers"),),
            ),
        ),
        components={"text_encoder": "text_encoder", "transformer": "dit", "vae": "vae"},
        layout="sgld_lingbot.layout:locate",
        features=FEATURES,
        caches=("rolling", "*"),
        presets=PRESETS,
        blueprints={
            "tiny": "sgld_lingbot.testing:tiny",
            "lingbot-world-fast": "sgld_lingbot.blueprints:world_fast",
            "lingbot-world-v2-14b": "sgld_lingbot.blueprints:world_v2_14b",
            "lingbot-world-v2-1.3b": "sgld_lingbot.blueprints:world_v2_1_3b",
        },
        summary="LingBot World v1 (fast) and v2 (14B and 1.3B causal-fast), steered by a camera",
    )


@hookimpl
def sgld_realtime() -> Iterable[RealtimeSpec]:
    """Keys and prompts."""
    yield RealtimeSpec(
        id=PIPELINE,
        pipeline=PIPELINE,
        target="sgld_lingbot.realtime:LingBotAdapter",
        events=("camera_actions", "prompt", "composite_input"),
        outputs=("rgb24", "webp", "jpeg", "h264"),
    )
