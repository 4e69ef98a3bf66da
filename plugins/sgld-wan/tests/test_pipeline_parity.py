"""Whole pipelines against diffusers on the same tiny checkpoint, the same noise and picture.

`pytest -m parity -rA` prints one row per comparison: relative L2 of final latents and of frames.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest

import sgld
from sgld.testing.parity import ParityTable

pytestmark = pytest.mark.parity

LATENTS, FRAMES = 1e-4, 1e-3
TABLE = ParityTable("wan")
PROMPT = "a red kite over the sea"


@pytest.fixture(scope="module")
def model(tiny: Callable[[str], Path]) -> Iterator[Callable[[str], sgld.Model]]:
    """One loaded model per variant."""
    held: dict[str, sgld.Model] = {}

    def get(variant: str) -> sgld.Model:
        if variant not in held:
            held[variant] = sgld.load(str(tiny(variant)), device="cpu", dtype="float32")
        return held[variant]

    yield get
    for loaded in held.values():
        loaded.close()


def latents_of(result: Any) -> Any:
    """Latents of the first output."""
    assert isinstance(result, sgld.Result)
    assert result.outputs[0].latents is not None
    return result.outputs[0].latents


def compare(name: str, ours: sgld.Model, folder: Path, *, image: Any = None, **params: Any) -> None:
    """Run both and check latents and frames."""
    names = {
        "num_inference_steps": "steps",
        "guidance_scale": "guidance",
        "guidance_scale_2": "guidance_2",
    }
    theirs = {names.get(key, key): value for key, value in params.items()}
    reference = oracle.run(folder, image=image, **theirs)
    images = [np.asarray(image)] if image is not None else []
    result = ours.generate(images=images, want_latents=True, **params)
    assert isinstance(result, sgld.Result)
    TABLE.check(f"{name}, latents", latents_of(result), reference.latents, LATENTS)
    # Ours leave the engine as 8-bit pixels, so the reference is rounded in the same way.
    rounded = np.round(reference.frames * 255)
    TABLE.check(f"{name}, frames", result.frames, rounded, FRAMES)


def base(**changes: Any) -> dict[str, Any]:
    """Parameters that every run states, so that no preset takes part."""
    return {
        "prompt": PROMPT,
        "negative_prompt": "blurry",
        "width": 48,
        "height": 32,
        "num_frames": 9,
        "num_inference_steps": 20,
        "guidance_scale": 5.0,
        "seed": 3,
        **changes,
    }


CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("t2v", "20 steps, CFG 5", {}),
    ("t2v", "no guidance", {"guidance_scale": 1.0}),
    ("t2v", "empty negative prompt", {"negative_prompt": ""}),
    ("t2v", "odd size 80x48, 5 frames", {"width": 80, "height": 48, "num_frames": 5}),
    ("t2v", "tall size 16x112, 1 frame", {"width": 16, "height": 112, "num_frames": 1}),
    ("t2v", "shift 9", {"flow_shift": 9.0}),
    ("t2v", "long prompt", {"prompt": "a bird and a wave, " * 60, "num_inference_steps": 4}),
    ("t2v", "messy prompt", {"prompt": "  caf&amp;eacute; \n\t l’été  ", "num_inference_steps": 4}),
    ("t2v_a14b", "20 steps, CFG 4 and 3", {"guidance_scale": 4.0, "guidance_scale_2": 3.0}),
    ("t2v_a14b", "one scale", {"guidance_scale": 4.0}),
    ("t2v_a14b", "no guidance", {"guidance_scale": 1.0, "num_inference_steps": 6}),
    ("ti2v_5b", "text only, CFG 5", {"width": 96, "height": 64}),
    ("ti2v_5b", "text only, no guidance, 5 frames",
     {"width": 64, "height": 96, "guidance_scale": 1.0, "num_frames": 5}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("variant", "name", "changes"), CASES, ids=lambda v: v if isinstance(v, str) else ""
)
def test_text_to_video(
    variant: str, name: str, changes: dict[str, Any], model: Any, tiny: Any
) -> None:
    compare(f"{variant} {name}", model(variant), tiny(variant), **base(**changes))


IMAGE_CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("i2v", "20 steps, CFG 5", {}),
    ("i2v", "no guidance, odd size", {"guidance_scale": 1.0, "width": 80, "height": 48}),
    ("i2v_a14b", "20 steps, CFG 3.5", {"guidance_scale": 3.5}),
    ("i2v_a14b", "two scales, 5 frames",
     {"guidance_scale": 3.5, "guidance_scale_2": 2.0, "num_frames": 5}),
    ("ti2v_5b", "pinned frame, CFG 5", {"width": 96, "height": 64}),
    ("ti2v_5b", "pinned frame, no guidance",
     {"width": 64, "height": 64, "guidance_scale": 1.0, "num_inference_steps": 6}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("variant", "name", "changes"), IMAGE_CASES, ids=lambda v: v if isinstance(v, str) else ""
)
def test_image_to_video(
    variant: str, name: str, changes: dict[str, Any], model: Any, tiny: Any
) -> None:
    params = base(**changes)
    picture = oracle.picture(params["width"], params["height"])
    compare(f"{variant} {name}", model(variant), tiny(variant), image=picture, **params)


@pytest.mark.parametrize("shift", [8.0, 5.0])
def test_few_steps(shift: float, model: Any, tiny: Any) -> None:
    reference = oracle.run_dmd(tiny("dmd"), prompt=PROMPT, shift=shift, seed=4)
    result = model("dmd").generate(
        prompt=PROMPT, width=48, height=32, num_frames=9, seed=4, flow_shift=shift, fps=16,
        dmd_denoising_steps=[1000, 757, 522], want_latents=True,
    )  # fmt: skip
    TABLE.check(f"dmd shift {shift}", latents_of(result), reference.latents, LATENTS)
    TABLE.check(
        f"dmd shift {shift} frames", result.frames, np.round(reference.frames * 255), FRAMES
    )


@pytest.mark.parametrize("variant", ["t2v", "ti2v_5b"])
def test_batched_jobs_equal_the_reference(variant: str, tiny: Any) -> None:
    """Several prompts and seeds at once, sharing forwards at different steps."""
    size: Any = {"width": 96, "height": 64, "num_frames": 5, "num_inference_steps": 6}
    folder = tiny(variant)
    with sgld.load(str(folder), device="cpu", dtype="float32", batching=8) as ours:
        results = ours.generate(
            prompt=["a cat", "a ship in a storm", "rain"],
            negative_prompt="blurry",
            seed=[11, 22, 33],
            guidance_scale=5.0,
            want_latents=True,
            **size,
        )
    assert isinstance(results, list)
    for prompt, seed, result in zip(
        ["a cat", "a ship in a storm", "rain"], [11, 22, 33], results, strict=True
    ):
        reference = oracle.run(
            folder, prompt=prompt, negative_prompt="blurry", seed=seed, guidance=5.0,
            width=96, height=64, num_frames=5, steps=6,
        )  # fmt: skip
        name = f"{variant} batched, seed {seed}"
        TABLE.check(name, latents_of(result), reference.latents, LATENTS)


@pytest.mark.parametrize("variant", ["t2v", "i2v", "t2v_a14b", "i2v_a14b", "ti2v_5b"])
def test_original_layout_gives_the_same(variant: str, model: Any, original: Any, tiny: Any) -> None:
    """The same weights under the original names, from pickles and safetensors."""
    size = (96, 64) if variant == "ti2v_5b" else (48, 32)
    params = base(width=size[0], height=size[1], num_inference_steps=4, flow_shift=5.0)
    images = (
        [np.asarray(oracle.picture(*size))] if "i2v" in variant and variant != "ti2v_5b" else []
    )
    with sgld.load(
        str(original(variant)), device="cpu", dtype="float32", allow_pickle=True
    ) as loaded:
        ours = loaded.generate(images=images, want_latents=True, **params)
    same = model(variant).generate(images=images, want_latents=True, **params)
    TABLE.check(f"{variant} original layout", latents_of(ours), latents_of(same), 1e-5)


@pytest.mark.parametrize("variant", ["t2v", "i2v_a14b"])
@pytest.mark.parametrize("mode", ["component-offload", "layerwise-offload"])
def test_offload_gives_the_same(variant: str, mode: str, model: Any, tiny: Any) -> None:
    params = base(num_inference_steps=3)
    images = [np.asarray(oracle.picture(48, 32))] if "i2v" in variant else []
    selectors = {"dit": mode, "text_encoder": mode, "vae": "component-offload"}
    with sgld.load(str(tiny(variant)), device="cpu", dtype="float32", residency=selectors) as held:
        ours = held.generate(images=images, want_latents=True, **params)
    same = model(variant).generate(images=images, want_latents=True, **params)
    assert np.array_equal(latents_of(ours), latents_of(same))
