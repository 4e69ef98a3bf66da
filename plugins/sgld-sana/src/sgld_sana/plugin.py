"""What sgld-sana brings. Strings only; nothing here imports torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from sgld.api import Claims, PipelineSpec, Plugin, Where, features, hookimpl
from sgld_sana.presets import PRESETS

INDEX: Final = "model_index.json"
OWNER: Final = "Efficient-Large-Model/"

FEW: Final = frozenset(
    {
        features.STEP_BATCHING,
        features.COMPONENT_OFFLOAD,
        features.LAYERWISE_OFFLOAD,
        features.DUMMY_WEIGHTS,
        features.VAE_TILING,
    }
)
ALL: Final = FEW | {features.CFG}
COMPONENTS: Final = {"text_encoder": "text_encoder", "transformer": "dit", "vae": "vae"}


@hookimpl
def sgld_plugin() -> Plugin:
    """Name and contracts."""
    return Plugin(
        "sana", contracts={"pipeline": 1}, summary="SANA 1.0 and 1.5, SANA-Sprint and SANA-Video"
    )


@hookimpl
def sgld_pipelines() -> Iterable[PipelineSpec]:
    """Every variant, each with how its checkpoints are recognised."""
    yield _spec(
        "sana",
        "Sana",
        "SANA 1.0 and 1.5 text-to-image, 0.6B, 1.6B and 4.8B",
        tasks=("text-to-image",),
        repos=(
            "Sana_600M_512px_diffusers",
            "Sana_600M_1024px_diffusers",
            "Sana_1600M_512px_diffusers",
            "Sana_1600M_512px_MultiLing_diffusers",
            "Sana_1600M_1024px_diffusers",
            "Sana_1600M_1024px_BF16_diffusers",
            "Sana_1600M_1024px_MultiLing_diffusers",
            "Sana_1600M_2Kpx_BF16_diffusers",
            "Sana_1600M_4Kpx_BF16_diffusers",
            "SANA1.5_1.6B_1024px_diffusers",
            "SANA1.5_4.8B_1024px_diffusers",
        ),
        blueprints={
            "tiny": "testing:tiny_sana",
            "sana-0.6b": "blueprints:sana_0_6b",
            "sana-1.6b": "blueprints:sana_1_6b",
            "sana1.5-4.8b": "blueprints:sana15_4_8b",
        },
    )
    yield _spec(
        "sana-sprint",
        "SanaSprint",
        "SANA-Sprint text-to-image in one to four steps, 0.6B and 1.6B",
        tasks=("text-to-image",),
        repos=("Sana_Sprint_0.6B_1024px_diffusers", "Sana_Sprint_1.6B_1024px_diffusers"),
        blueprints={
            "tiny": "testing:tiny_sprint",
            "sana-sprint-1.6b": "blueprints:sana_sprint_1_6b",
        },
    )
    yield _spec(
        "sana-video",
        "SanaVideo",
        "SANA-Video 2B text-to-video, or image-to-video with a first frame",
        tasks=("text-to-video", "image-to-video"),
        repos=("SANA-Video_2B_480p_diffusers", "SANA-Video_2B_720p_diffusers"),
        blueprints={
            "tiny": "testing:tiny_video",
            "sana-video-2b": "blueprints:sana_video_2b",
        },
    )
    yield _spec(
        "sana-video-i2v",
        "SanaImageToVideo",
        "SANA-Video 2B checkpoints for image-to-video",
        tasks=("image-to-video",),
        repos=(),
        blueprints={"tiny": "testing:tiny_video_i2v"},
    )


def _spec(
    id: str,
    name: str,
    summary: str,
    *,
    tasks: tuple[str, ...],
    repos: tuple[str, ...],
    blueprints: Mapping[str, str],
) -> PipelineSpec:
    return PipelineSpec(
        id=id,
        target=f"sgld_sana.pipelines.sana:{name}Pipeline",
        params=f"sgld_sana.params:{name}Params",
        tasks=tasks,
        claims=Claims(
            repos=tuple(OWNER + repo for repo in repos),
            rules=((Where(INDEX, "_class_name", "==", f"{name}Pipeline"),),),
        ),
        components=COMPONENTS,
        features=FEW if id == "sana-sprint" else ALL,
        presets=PRESETS[id],
        blueprints={key: f"sgld_sana.{target}" for key, target in blueprints.items()},
        summary=summary,
    )
