"""The FLUX.2 pipelines' records. Strings only; nothing here imports torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from sgld.api import Claims, PipelineSpec, Where, features
from sgld_flux.presets2 import PRESETS2

INDEX: Final = "model_index.json"
COMPONENTS: Final = {"text_encoder": "text_encoder", "transformer": "dit", "vae": "vae"}
FEATURES: Final = frozenset(
    {
        features.STEP_BATCHING,
        features.COMPONENT_OFFLOAD,
        features.LAYERWISE_OFFLOAD,
        features.DUMMY_WEIGHTS,
        features.ORIGINAL_LAYOUT,
        features.VAE_TILING,
    }
)


def flux2_pipelines() -> Iterable[PipelineSpec]:
    """Every FLUX.2 variant, each with how its checkpoints are recognised."""
    yield _spec(
        "flux.2-dev",
        "Flux2Pipeline",
        "Flux2DevParams",
        "FLUX.2 dev: text, or text and up to 10 pictures, to picture; embedded guidance",
        repos=("black-forest-labs/FLUX.2-dev",),
        rules=((Where(INDEX, "_class_name", "==", "Flux2Pipeline"),),),
        tiny="tiny_dev",
        sizes=("flux.2-dev",),
    )
    yield _spec(
        "flux.2-klein",
        "Flux2Pipeline",
        "Flux2KleinParams",
        "FLUX.2 klein 4B and 9B: as dev, in 4 steps without guidance",
        repos=("black-forest-labs/FLUX.2-klein-4B", "black-forest-labs/FLUX.2-klein-9B"),
        rules=(_klein(Where(INDEX, "is_distilled")),),
        tiny="tiny_klein",
        sizes=("flux.2-klein-4b", "flux.2-klein-9b"),
    )
    yield _spec(
        "flux.2-klein-base",
        "Flux2Pipeline",
        "Flux2KleinBaseParams",
        "FLUX.2 klein base 4B and 9B: not distilled, with classifier-free guidance",
        repos=("black-forest-labs/FLUX.2-klein-base-4B", "black-forest-labs/FLUX.2-klein-base-9B"),
        rules=(_klein(Where(INDEX, "is_distilled", "unset")),),
        tiny="tiny_klein_base",
        sizes=("flux.2-klein-base-4b", "flux.2-klein-base-9b"),
        more=frozenset({features.CFG}),
    )
    yield _spec(
        "flux.2-klein-kv",
        "Flux2KeptReferencesPipeline",
        "Flux2KleinParams",
        "FLUX.2 klein KV: reference pictures are computed once, not at every step",
        repos=("black-forest-labs/FLUX.2-klein-9b-kv",),
        rules=((Where(INDEX, "_class_name", "==", "Flux2KleinKVPipeline"),),),
        tiny="tiny_klein_kv",
        sizes=("flux.2-klein-kv-9b",),
    )


def _klein(distilled: Where) -> tuple[Where, ...]:
    return Where(INDEX, "_class_name", "==", "Flux2KleinPipeline"), distilled


def _spec(
    id: str,
    pipeline: str,
    params: str,
    summary: str,
    *,
    repos: tuple[str, ...],
    rules: tuple[tuple[Where, ...], ...],
    tiny: str,
    sizes: Sequence[str],
    more: frozenset[str] = frozenset(),
) -> PipelineSpec:
    targets = {"tiny": f"sgld_flux.testing2:{tiny}"}
    for size in sizes:
        function = size.replace("flux.2", "flux2").replace("-", "_")
        targets[size] = f"sgld_flux.blueprints2:{function}"
    return PipelineSpec(
        id=id,
        target=f"sgld_flux.pipelines.flux2:{pipeline}",
        params=f"sgld_flux.params2:{params}",
        tasks=("text-to-image", "image-to-image"),
        claims=Claims(repos=repos, rules=rules),
        components=COMPONENTS,
        features=FEATURES | more,
        presets=PRESETS2[id],
        blueprints=targets,
        summary=summary,
    )
