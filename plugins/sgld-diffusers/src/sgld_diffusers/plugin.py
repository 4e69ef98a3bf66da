"""What sgld-diffusers brings. Strings only; nothing here imports torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sgld.api import Claims, PipelineSpec, Plugin, features, hookimpl
from sgld_diffusers.presets import PRESETS
from sgld_diffusers.tiny import BLUEPRINTS

TASKS: Final = ("text-to-image", "image-to-image", "text-to-video", "image-to-video")


@hookimpl
def sgld_plugin() -> Plugin:
    """Name and contracts."""
    return Plugin(
        "diffusers",
        contracts={"pipeline": 1},
        summary="Diffusers pipelines that no other plugin claims",
    )


@hookimpl
def sgld_pipelines() -> Iterable[PipelineSpec]:
    """One fallback for every class; what a class takes is found out when a checkpoint names it."""
    yield PipelineSpec(
        id="diffusers",
        target="sgld_diffusers.pipeline:DiffusersPipeline",
        params="sgld_diffusers.params:AnyParams",
        tasks=TASKS,
        claims=Claims(files=("model_index.json",)),
        layout="sgld_diffusers.layout:layout",
        inspect="sgld_diffusers.inspecting:inspect",
        backend="diffusers",
        max_running=1,
        features=frozenset(
            {
                features.CFG,
                features.COMPONENT_OFFLOAD,
                features.DUMMY_WEIGHTS,
                features.LAYERWISE_OFFLOAD,
                features.REMOTE_CODE,
                features.VAE_TILING,
            }
        ),
        presets=PRESETS,
        blueprints={"tiny": BLUEPRINTS["sd3"], **BLUEPRINTS},
        summary="Any diffusers pipeline, one request at a time",
    )
