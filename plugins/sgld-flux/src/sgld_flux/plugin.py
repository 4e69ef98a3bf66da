"""What sgld-flux brings. Strings only; nothing here imports torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sgld.api import Claims, PipelineSpec, Plugin, Where, features, hookimpl
from sgld_flux.presets import PRESETS
from sgld_flux.specs2 import flux2_pipelines

INDEX: Final = "model_index.json"
TRANSFORMER: Final = "transformer/config.json"
CLASSES: Final = ("FluxPipeline", "FluxImg2ImgPipeline")

FEATURES: Final = frozenset(
    {
        features.STEP_BATCHING,
        features.COMPONENT_OFFLOAD,
        features.LAYERWISE_OFFLOAD,
        features.CFG,
        features.DUMMY_WEIGHTS,
        features.ORIGINAL_LAYOUT,
        features.VAE_TILING,
    }
)
COMPONENTS: Final = {
    "text_encoder": "text_encoder",
    "text_encoder_2": "text_encoder",
    "transformer": "dit",
    "vae": "vae",
}


@hookimpl
def sgld_plugin() -> Plugin:
    """Name and contracts."""
    return Plugin("flux", contracts={"pipeline": 1}, summary="FLUX.1 and FLUX.2")


@hookimpl
def sgld_pipelines() -> Iterable[PipelineSpec]:
    """Every variant, each with how its checkpoints are recognised."""
    yield _flux1(
        "flux.1-dev",
        "FluxDevParams",
        "FLUX.1 [dev] and its relatives with embedded guidance; text- and image-to-image",
        guided=True,
        blueprints={
            "tiny": "sgld_flux.testing:tiny_dev",
            "flux.1-dev": "sgld_flux.blueprints:flux1_dev",
        },
    )
    yield _flux1(
        "flux.1-schnell",
        "FluxSchnellParams",
        "FLUX.1 [schnell]: a few steps without embedded guidance; text- and image-to-image",
        guided=False,
        blueprints={
            "tiny": "sgld_flux.testing:tiny_schnell",
            "flux.1-schnell": "sgld_flux.blueprints:flux1_schnell",
        },
    )
    yield from flux2_pipelines()


def _flux1(
    id: str, params: str, summary: str, *, guided: bool, blueprints: dict[str, str]
) -> PipelineSpec:
    name = id.rpartition("-")[2]
    test = Where(TRANSFORMER, "guidance_embeds", "set" if guided else "unset")
    return PipelineSpec(
        id=id,
        target=f"sgld_flux.pipelines.flux1:Flux{name.capitalize()}Pipeline",
        params=f"sgld_flux.params:{params}",
        tasks=("text-to-image", "image-to-image"),
        claims=Claims(
            repos=(f"black-forest-labs/FLUX.1-{name}",),
            rules=((Where(INDEX, "_class_name", "in", CLASSES), test),),
            files=(f"flux1-{name}.safetensors",),
            detect=f"sgld_flux.layout:detect_{name}",
        ),
        components=COMPONENTS,
        layout="sgld_flux.layout:locate",
        features=FEATURES,
        presets=PRESETS[id],
        blueprints=blueprints,
        summary=summary,
    )
