"""Defaults of the known Wan checkpoints, as plain data: hub ids, or what their files say.

Sizes, frames, steps and guidance are those of the public repositories' configurations; shifts those
of the published schedulers. A local copy is known by its sizes where these are unmistakable.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sgld.api import Preset, Where

TRANSFORMER: Final = "transformer/config.json"
DMD_STEPS: Final = (1000, 757, 522)
TURBO_STEPS: Final = (988, 932, 852, 608)
TURBO_IMAGE_STEPS: Final = (996, 932, 852, 608)

_480P: Final = {"width": 832, "height": 480, "num_frames": 81, "fps": 16}
_720P: Final = {"width": 1280, "height": 720, "num_frames": 81, "fps": 16}
_5B: Final = {"width": 1280, "height": 704, "num_frames": 121, "fps": 24}
_TINY: Final = {"width": 96, "height": 64, "num_frames": 9, "fps": 8}
_TINY_MODEL: Final = ((Where(TRANSFORMER, "text_dim", "==", 32),),)


def _of(id: str, defaults: Mapping[str, Any], *repos: str, layers: int = 0) -> Preset:
    rules: list[tuple[Where, ...]] = []
    if layers:
        rules.append((Where(TRANSFORMER, "num_layers", "==", layers),))
        rules.append((Where("config.json", "num_layers", "==", layers),))
    return Preset(id, defaults, repos=repos, rules=tuple(rules))


PRESETS: Final[Mapping[str, tuple[Preset, ...]]] = {
    "wan-t2v": (
        _of(
            "wan2.1-t2v-1.3b",
            {**_480P, "num_inference_steps": 50, "guidance_scale": 5.0},
            "Wan-AI/Wan2.1-T2V-1.3B-Diffusers",
            "Wan-AI/Wan2.1-T2V-1.3B",
            layers=30,
        ),
        _of(
            "wan2.1-t2v-14b",
            {**_720P, "num_inference_steps": 50, "guidance_scale": 5.0},
            "Wan-AI/Wan2.1-T2V-14B-Diffusers",
            "Wan-AI/Wan2.1-T2V-14B",
            layers=40,
        ),
        Preset("tiny", {**_TINY, "num_inference_steps": 8}, rules=_TINY_MODEL),
    ),
    "wan-i2v": (
        # Both sizes share their weights' shapes; a copy without a known id is taken for 480P.
        Preset("base", {**_480P, "num_inference_steps": 40, "guidance_scale": 5.0}),
        _of(
            "wan2.1-i2v-14b-720p",
            {**_720P, "num_inference_steps": 40, "guidance_scale": 5.0},
            "Wan-AI/Wan2.1-I2V-14B-720P-Diffusers",
            "Wan-AI/Wan2.1-I2V-14B-720P",
        ),
        Preset("tiny", {**_TINY, "num_inference_steps": 8}, rules=_TINY_MODEL),
    ),
    "wan2.2-t2v-a14b": (
        Preset(
            "base",
            {**_720P, "num_inference_steps": 40, "guidance_scale": 4.0, "guidance_scale_2": 3.0},
        ),
        Preset("tiny", {**_TINY, "num_inference_steps": 8}, rules=_TINY_MODEL),
    ),
    "wan2.2-i2v-a14b": (
        Preset(
            "base",
            {**_720P, "num_inference_steps": 40, "guidance_scale": 3.5, "guidance_scale_2": 3.5},
        ),
        Preset("tiny", {**_TINY, "num_inference_steps": 8}, rules=_TINY_MODEL),
    ),
    "wan2.2-ti2v-5b": (
        Preset("base", {**_5B, "num_inference_steps": 50, "guidance_scale": 5.0}),
        Preset("tiny", {**_TINY, "num_inference_steps": 8}, rules=_TINY_MODEL),
    ),
    "wan-dmd-t2v": (
        Preset("base", {**_480P, "num_frames": 61, "dmd_denoising_steps": DMD_STEPS}),
        _of(
            "turbowan2.1-t2v",
            {**_480P, "dmd_denoising_steps": TURBO_STEPS},
            "IPostYellow/TurboWan2.1-T2V-1.3B-Diffusers",
            "IPostYellow/TurboWan2.1-T2V-14B-Diffusers",
        ),
        _of(
            "turbowan2.1-t2v-720p",
            {**_720P, "dmd_denoising_steps": TURBO_STEPS},
            "IPostYellow/TurboWan2.1-T2V-14B-720P-Diffusers",
        ),
        Preset("tiny", _TINY, rules=_TINY_MODEL),
    ),
    "wan-dmd-ti2v-5b": (
        Preset("base", {**_5B, "dmd_denoising_steps": DMD_STEPS}),
        Preset("tiny", _TINY, rules=_TINY_MODEL),
    ),
    "wan-causal-t2v": (
        Preset("base", _480P),
        Preset("tiny", {**_TINY, "num_frames": 33}, rules=_TINY_MODEL),
    ),
    "longlive2": (
        Preset("base", {"width": 1280, "height": 704, "num_frames": 61, "fps": 24}),
        Preset(
            "tiny",
            {**_TINY, "num_frames": 29, "chunk_latents": 2, "window_latents": 6, "sink_latents": 2},
            rules=_TINY_MODEL,
        ),
    ),
    "wan-dmd-i2v-a14b": (
        Preset("base", {**_720P, "dmd_denoising_steps": TURBO_IMAGE_STEPS}),
        Preset("tiny", _TINY, rules=_TINY_MODEL),
    ),
}
"""Pipeline id → its presets."""
