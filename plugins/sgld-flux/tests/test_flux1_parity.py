"""Whole FLUX.1 pipelines against diffusers on the same tiny checkpoint, the same noise and picture.

`pytest -m parity -rA` prints one row per comparison: relative L2 of final latents and of pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import oracle1 as oracle
import pytest
import torch

import sgld
from sgld.testing.parity import ParityTable

pytestmark = pytest.mark.parity

LATENTS, FRAMES = 1e-4, 1e-3
TABLE = ParityTable("flux.1")


def load(folder: Path, **options: Any) -> Any:
    """A model on the CPU; not typed, because its results are one or a list."""
    return sgld.load(str(folder), **{"device": "cpu", "dtype": "float32", **options})


@pytest.fixture(scope="module")
def model(tiny: Callable[[str], Path]) -> Iterator[Callable[[str], Any]]:
    """One loaded model per variant."""
    held: dict[str, Any] = {}

    def get(variant: str) -> Any:
        if variant not in held:
            held[variant] = load(tiny(variant))
        return held[variant]

    yield get
    for loaded in held.values():
        loaded.close()


def base(variant: str, **changes: Any) -> dict[str, Any]:
    """Parameters that every run states, so that no preset takes part."""
    guided = {"guidance_scale": 3.5, "num_inference_steps": 12} if variant == "dev" else {}
    return {
        "prompt": "a red kite over the sea",
        "width": 64,
        "height": 48,
        "num_inference_steps": 4,
        "max_sequence_length": 512 if variant == "dev" else 256,
        "seed": 3,
        **guided,
        **changes,
    }


def compare(name: str, ours: Any, folder: Path, *, image: Any = None, **params: Any) -> None:
    """Run both and check latents and pixels."""
    reference = oracle.run(folder, image=image, **params)
    images = [np.asarray(image)] if image is not None else []
    result = ours.generate(images=images, want_latents=True, **params)
    TABLE.check(f"{name}, latents", result.outputs[0].latents, reference.latents, LATENTS)
    # Ours leave the engine as 8-bit pixels, so the reference is rounded in the same way.
    TABLE.check(f"{name}, pixels", result.frames, np.round(reference.frames * 255), FRAMES)


CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("dev", "12 steps, guidance 3.5", {}),
    ("dev", "guidance 0", {"guidance_scale": 0.0}),
    ("dev", "guidance 1", {"guidance_scale": 1.0}),
    ("dev", "true CFG 4", {"true_cfg_scale": 4.0, "negative_prompt": "blurry, grey"}),
    ("dev", "true CFG 2, empty negative", {"true_cfg_scale": 2.0, "negative_prompt": ""}),
    ("dev", "wide 176x16", {"width": 176, "height": 16}),
    ("dev", "tall 16x112", {"width": 16, "height": 112}),
    ("dev", "square 256x256", {"width": 256, "height": 256, "num_inference_steps": 2}),
    ("dev", "long prompt", {"prompt": "a bird and a wave, " * 60, "num_inference_steps": 4}),
    ("dev", "one letter", {"prompt": "a", "num_inference_steps": 4}),
    ("dev", "two prompts", {"prompt_2": "a lighthouse at night", "num_inference_steps": 4}),
    ("dev", "messy prompt", {"prompt": "  Café \n\t L’ÉTÉ  ", "num_inference_steps": 4}),
    ("dev", "one step", {"num_inference_steps": 1}),
    ("dev", "text length 77", {"max_sequence_length": 77, "num_inference_steps": 4}),
    ("schnell", "4 steps", {}),
    ("schnell", "1 step, text length 512", {"num_inference_steps": 1, "max_sequence_length": 512}),
    ("schnell", "true CFG 3", {"true_cfg_scale": 3.0, "negative_prompt": "blurry"}),
    ("schnell", "odd size 80x112, 7 steps", {"width": 80, "height": 112, "num_inference_steps": 7}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("variant", "name", "changes"), CASES, ids=lambda v: v if isinstance(v, str) else ""
)
def test_text_to_image(
    variant: str, name: str, changes: dict[str, Any], model: Any, tiny: Any
) -> None:
    compare(f"{variant} {name}", model(variant), tiny(variant), **base(variant, **changes))


IMAGE_CASES: list[tuple[str, str, dict[str, Any], tuple[int, int]]] = [
    ("dev", "strength 0.6", {"strength": 0.6}, (64, 48)),
    ("dev", "strength 1", {"strength": 1.0}, (64, 48)),
    ("dev", "strength 0.05 is one step", {"strength": 0.05}, (64, 48)),
    ("dev", "strength 0.35 of 7 steps", {"strength": 0.35, "num_inference_steps": 7}, (64, 48)),
    ("dev", "another shape", {"strength": 0.8, "width": 48, "height": 80}, (101, 67)),
    ("dev", "true CFG", {"strength": 0.5, "true_cfg_scale": 3.0, "negative_prompt": "x"}, (64, 48)),
    ("schnell", "strength 0.5", {"strength": 0.5}, (64, 48)),
    ("schnell", "strength 0.9, 160x32", {"strength": 0.9, "width": 160, "height": 32}, (320, 60)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("variant", "name", "changes", "size"),
    IMAGE_CASES,
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_image_to_image(
    variant: str, name: str, changes: dict[str, Any], size: tuple[int, int], model: Any, tiny: Any
) -> None:
    params = base(variant, **changes)
    picture = oracle.picture(*size)
    compare(f"{variant} i2i {name}", model(variant), tiny(variant), image=picture, **params)


def test_several_outputs(model: Any, tiny: Any) -> None:
    """Output i of a request is the picture of seed + i."""
    params = base("dev", num_inference_steps=4)
    result = model("dev").generate(num_outputs_per_prompt=3, want_latents=True, **params)
    for index, output in enumerate(result.outputs):
        reference = oracle.run(tiny("dev"), **{**params, "seed": params["seed"] + index})
        TABLE.check(f"dev output {index} of 3", output.latents, reference.latents, LATENTS)


def test_batched_prompts_equal_the_reference(tiny: Any) -> None:
    """Several prompts and seeds at once, sharing forwards, with the second guidance pass."""
    prompts, seeds = ["a cat", "a ship in a storm", "rain"], [11, 22, 33]
    params = base("dev", num_inference_steps=5, true_cfg_scale=2.5, negative_prompt="grey")
    del params["prompt"], params["seed"]
    with load(tiny("dev"), batching=8) as ours:
        results = ours.generate(prompt=prompts, seed=seeds, want_latents=True, **params)
    for prompt, seed, result in zip(prompts, seeds, results, strict=True):
        reference = oracle.run(tiny("dev"), prompt=prompt, seed=seed, **params)
        TABLE.check(
            f"dev batched, seed {seed}", result.outputs[0].latents, reference.latents, LATENTS
        )


@pytest.mark.parametrize("variant", ["dev", "schnell"])
def test_bfloat16_rounds_as_the_reference(variant: str, tiny: Any) -> None:
    """In bfloat16 we are as near to float32 as the reference is, and nearer to it than that."""
    params = base(variant)
    exact = oracle.run(tiny(variant), **params).latents
    theirs = oracle.run(tiny(variant), pipe=oracle.halved(tiny(variant)), **params).latents
    with load(tiny(variant), dtype="bfloat16") as loaded:
        ours = torch.from_numpy(loaded.generate(want_latents=True, **params).outputs[0].latents)

    def distance(one: torch.Tensor, other: torch.Tensor) -> float:
        one, other = one.double(), other.double()
        return float((one - other).norm() / exact.double().norm())

    reference = distance(theirs, exact)
    print(
        f"bf16 {variant}: reference to float32 {reference:.2e}, ours to float32 "
        f"{distance(ours, exact):.2e}, ours to reference {distance(ours, theirs):.2e}"
    )
    assert distance(ours, exact) <= 1.1 * reference
    assert distance(ours, theirs) <= reference


@pytest.mark.parametrize("variant", ["dev", "schnell"])
def test_original_layout_gives_the_same(variant: str, model: Any, original: Any) -> None:
    params = base(variant, num_inference_steps=3)
    images = [np.asarray(oracle.picture())]
    with load(original(variant)) as loaded:
        ours = loaded.generate(images=images, want_latents=True, **params)
    same = model(variant).generate(images=images, want_latents=True, **params)
    TABLE.check(
        f"{variant} original layout", ours.outputs[0].latents, same.outputs[0].latents, 1e-5
    )


@pytest.mark.parametrize("mode", ["component-offload", "layerwise-offload"])
def test_offload_gives_the_same(mode: str, model: Any, tiny: Any) -> None:
    params = base("dev", num_inference_steps=3, true_cfg_scale=2.0, negative_prompt="grey")
    images = [np.asarray(oracle.picture())]
    selectors = {"dit": mode, "text_encoder": mode, "vae": "component-offload"}
    with load(tiny("dev"), residency=selectors) as held:
        ours = held.generate(images=images, want_latents=True, **params)
    same = model("dev").generate(images=images, want_latents=True, **params)
    assert np.array_equal(ours.outputs[0].latents, same.outputs[0].latents)
