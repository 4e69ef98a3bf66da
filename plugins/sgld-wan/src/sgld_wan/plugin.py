"""What sgld-wan brings. Strings only; nothing here imports torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from sgld.api import Claims, PipelineSpec, Plugin, Where, features, hookimpl
from sgld_wan.presets import PRESETS

INDEX: Final = "model_index.json"
ORIGINAL: Final = "config.json"
HIGH_NOISE: Final = "high_noise_model/config.json"

ALL: Final = frozenset(
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
CAUSAL: Final = ALL - {features.STEP_BATCHING, features.VAE_TILING}
"""Chunks are calls with caches of their own, so they share no forward; a stream has no tiles."""
COMPONENTS: Final = {
    "text_encoder": "text_encoder",
    "image_encoder": "image_encoder",
    "transformer": "dit",
    "transformer_2": "dit",
    "vae": "vae",
}


@hookimpl
def sgld_plugin() -> Plugin:
    """Name and contracts."""
    return Plugin(
        "wan",
        contracts={"pipeline": 1},
        summary="Wan 2.1, Wan 2.2, FastWan, TurboWan, causal Wan and LongLive 2.0",
    )


@hookimpl
def sgld_pipelines() -> Iterable[PipelineSpec]:
    """Every variant, each with how its checkpoints are recognised."""
    yield _spec(
        "wan-t2v",
        "WanPipeline",
        "WanT2VParams",
        "Wan 2.1 text-to-video, 1.3B and 14B",
        repos=(
            "Wan-AI/Wan2.1-T2V-1.3B-Diffusers",
            "Wan-AI/Wan2.1-T2V-14B-Diffusers",
            "Wan-AI/Wan2.1-T2V-1.3B",
            "Wan-AI/Wan2.1-T2V-14B",
        ),
        rules=(
            _index("WanPipeline", _unset("expand_timesteps"), _unset("boundary_ratio")),
            (_original("t2v"),),
        ),
        blueprints={"tiny": "tiny_t2v"},
        sizes=("wan2.1-t2v-1.3b", "wan2.1-t2v-14b"),
    )
    yield _spec(
        "wan-i2v",
        "WanImagePipeline",
        "WanI2VParams",
        "Wan 2.1 image-to-video 14B, 480P and 720P (CLIP image branch)",
        repos=(
            "Wan-AI/Wan2.1-I2V-14B-480P-Diffusers",
            "Wan-AI/Wan2.1-I2V-14B-720P-Diffusers",
            "Wan-AI/Wan2.1-I2V-14B-480P",
            "Wan-AI/Wan2.1-I2V-14B-720P",
        ),
        rules=(
            _index("WanImageToVideoPipeline", _unset("expand_timesteps"), _unset("boundary_ratio")),
            (_original("i2v"),),
            # Known, so that it can be refused by name (`sgld_wan.layout`).
            (_original("flf2v"),),
        ),
        blueprints={"tiny": "tiny_i2v"},
        sizes=("wan2.1-i2v-14b-480p",),
    )
    yield _spec(
        "wan2.2-t2v-a14b",
        "WanPipeline",
        "Wan22T2VA14BParams",
        "Wan 2.2 text-to-video A14B: two experts by noise level",
        repos=("Wan-AI/Wan2.2-T2V-A14B-Diffusers", "Wan-AI/Wan2.2-T2V-A14B"),
        rules=(
            _index("WanPipeline", Where(INDEX, "boundary_ratio"), _unset("expand_timesteps")),
            (Where(HIGH_NOISE, "model_type", "==", "t2v"),),
        ),
        blueprints={"tiny": "tiny_t2v_a14b"},
        sizes=("wan2.2-t2v-a14b",),
    )
    yield _spec(
        "wan2.2-i2v-a14b",
        "WanImagePipeline",
        "Wan22I2VA14BParams",
        "Wan 2.2 image-to-video A14B: two experts by noise level",
        repos=("Wan-AI/Wan2.2-I2V-A14B-Diffusers", "Wan-AI/Wan2.2-I2V-A14B"),
        rules=(
            _index(
                "WanImageToVideoPipeline",
                Where(INDEX, "boundary_ratio"),
                _unset("expand_timesteps"),
            ),
            (Where(HIGH_NOISE, "model_type", "==", "i2v"),),
        ),
        blueprints={"tiny": "tiny_i2v_a14b"},
        sizes=("wan2.2-i2v-a14b",),
    )
    yield _spec(
        "wan2.2-ti2v-5b",
        "WanPinnedFramePipeline",
        "Wan22TI2V5BParams",
        "Wan 2.2 TI2V-5B: text- or image-to-video with a 4×16×16 VAE",
        repos=("Wan-AI/Wan2.2-TI2V-5B-Diffusers", "Wan-AI/Wan2.2-TI2V-5B"),
        rules=(
            _index("WanPipeline", Where(INDEX, "expand_timesteps")),
            _index("WanImageToVideoPipeline", Where(INDEX, "expand_timesteps")),
            (_original("ti2v"),),
        ),
        blueprints={"tiny": "tiny_ti2v_5b"},
        sizes=("wan2.2-ti2v-5b",),
    )
    yield _spec(
        "wan-dmd-t2v",
        "WanDmdPipeline",
        "WanDMDParams",
        "FastWan 2.1 and TurboWan 2.1 text-to-video in a few steps",
        repos=(
            "FastVideo/FastWan2.1-T2V-1.3B-Diffusers",
            "FastVideo/FastWan2.1-T2V-14B-Diffusers",
            "FastVideo/FastWan2.1-T2V-14B-480P-Diffusers",
            "IPostYellow/TurboWan2.1-T2V-1.3B-Diffusers",
            "IPostYellow/TurboWan2.1-T2V-14B-Diffusers",
            "IPostYellow/TurboWan2.1-T2V-14B-720P-Diffusers",
        ),
        rules=(_index("WanDMDPipeline", _unset("expand_timesteps"), _unset("boundary_ratio")),),
        blueprints={"tiny": "tiny_dmd"},
    )
    yield _spec(
        "wan-dmd-ti2v-5b",
        "WanDmdPinnedFramePipeline",
        "WanDMD5BParams",
        "FastWan 2.2 TI2V-5B in a few steps",
        repos=(
            "FastVideo/FastWan2.2-TI2V-5B-FullAttn-Diffusers",
            "FastVideo/FastWan2.2-TI2V-5B-Diffusers",
        ),
        rules=(_index("WanDMDPipeline", Where(INDEX, "expand_timesteps")),),
        blueprints={"tiny": "tiny_dmd_ti2v_5b"},
    )
    yield _spec(
        "wan-dmd-i2v-a14b",
        "WanDmdImagePipeline",
        "WanDMDI2VA14BParams",
        "TurboWan 2.2 image-to-video A14B in a few steps",
        repos=("IPostYellow/TurboWan2.2-I2V-A14B-Diffusers",),
        rules=(_index("WanDMDPipeline", Where(INDEX, "boundary_ratio")),),
        blueprints={"tiny": "tiny_dmd_i2v_a14b"},
    )
    yield _spec(
        "wan-causal-t2v",
        "WanCausalDMDPipeline",
        "WanCausalParams",
        "Causal Wan 2.1 (Self-Forcing): chunk by chunk in a few steps",
        repos=("wlsaidhi/SFWan2.1-T2V-1.3B-Diffusers",),
        rules=(
            _index("WanCausalDMDPipeline", _unset("boundary_ratio")),
            _index("WanPipeline", _unset("boundary_ratio"), _unset("expand_timesteps"), _CHUNKED),
        ),
        blueprints={"tiny": "tiny_causal_t2v"},
        sizes=("wan2.1-causal-t2v-1.3b",),
        module="causal",
        caches=("rolling", "global-sink"),
    )
    yield _spec(
        "longlive2",
        "LongLive2Pipeline",
        "LongLive2Params",
        "LongLive 2.0 5B: long clips of several shots, chunk by chunk",
        repos=(
            "Rabinovich/LongLive-2.0-5B-Diffusers",
            "Efficient-Large-Model/LongLive-2.0-5B",
        ),
        rules=(_index("LongLive2Pipeline"),),
        blueprints={"tiny": "tiny_longlive2"},
        sizes=("longlive2-5b",),
        module="longlive",
        caches=("rolling", "global-sink", "pinned-sink"),
    )


_CHUNKED: Final = Where("transformer/config.json", "num_frames_per_block")


def _spec(
    id: str,
    pipeline: str,
    params: str,
    summary: str,
    *,
    repos: tuple[str, ...],
    rules: tuple[tuple[Where, ...], ...],
    blueprints: dict[str, str] | None = None,
    sizes: Sequence[str] = (),
    module: str = "wan",
    caches: tuple[str, ...] = (),
) -> PipelineSpec:
    targets = {name: f"sgld_wan.testing:{attr}" for name, attr in (blueprints or {}).items()}
    for size in sizes:
        family, _, rest = size.partition("-")
        function = f"{family.replace('.', '')}_{rest.replace('-', '_').replace('.', '_')}"
        targets[size] = f"sgld_wan.blueprints:{function}"
    image = "Image" in pipeline
    either = "PinnedFrame" in pipeline or module != "wan"
    tasks = (
        ("text-to-video", "image-to-video")
        if either
        else (("image-to-video",) if image else ("text-to-video",))
    )
    few = "Dmd" in pipeline or id == "wan-causal-t2v"
    options = "params" if module == "wan" else "causal_params"
    offered = ALL if module == "wan" else CAUSAL
    return PipelineSpec(
        id=id,
        target=f"sgld_wan.pipelines.{module}:{pipeline}",
        params=f"sgld_wan.{options}:{params}",
        tasks=tasks,
        claims=Claims(repos=repos, rules=rules),
        components=COMPONENTS,
        layout="sgld_wan.layout:locate",
        caches=caches,
        features=offered - {features.CFG} if few else offered,
        presets=PRESETS.get(id, ()),
        blueprints=targets,
        summary=summary,
    )


def _index(class_name: str, *more: Where) -> tuple[Where, ...]:
    return (Where(INDEX, "_class_name", "==", class_name), *more)


def _unset(key: str) -> Where:
    return Where(INDEX, key, "unset")


def _original(kind: str) -> Where:
    return Where(ORIGINAL, "model_type", "==", kind)
