"""Few-step variants, bfloat16 end to end, and every residency, against the reference."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
import torch

import sgld
from sgld.testing.parity import ParityTable, relative_l2

LATENTS, FRAMES = 1e-4, 1e-3
TABLE = ParityTable("wan depth")
PROMPT = "a red kite over the sea"
Folder = Callable[[str], Path]


def load(folder: Path, **options: Any) -> sgld.Model:
    return sgld.load(str(folder), **{"device": "cpu", "dtype": "float32", **options})


def one(result: Any) -> sgld.Result:
    assert isinstance(result, sgld.Result)
    return result


def latents_of(result: sgld.Result) -> Any:
    found = result.outputs[0].latents
    assert found is not None
    return found


FEW: list[tuple[str, bool, tuple[int, ...], float, tuple[int, int]]] = [
    ("dmd", False, (988, 932, 852, 608), 8.0, (48, 32)),
    ("dmd", False, (1000,), 5.0, (32, 48)),
    ("dmd_ti2v_5b", False, (1000, 757, 522), 8.0, (96, 64)),
    ("dmd_ti2v_5b", True, (1000, 757, 522), 8.0, (96, 64)),
    ("dmd_ti2v_5b", True, (1000, 757, 522), 5.0, (64, 64)),
    ("dmd_i2v_a14b", True, (996, 932, 852, 608), 8.0, (48, 32)),
    ("dmd_i2v_a14b", True, (850, 608), 5.0, (80, 48)),
]


@pytest.mark.parity
@pytest.mark.parametrize(("variant", "pictured", "steps", "shift", "size"), FEW)
def test_few_steps(
    tiny: Folder, variant: str, pictured: bool, steps: Any, shift: float, size: tuple[int, int]
) -> None:
    width, height = size
    picture = oracle.picture(width, height) if pictured else None
    shared: Any = {"width": width, "height": height, "num_frames": 9, "seed": 4}
    reference = oracle.run_dmd(
        tiny(variant), prompt=PROMPT, image=picture, steps=steps, shift=shift, **shared
    )
    with load(tiny(variant)) as model:
        result = one(
            model.generate(
                prompt=PROMPT,
                images=[] if picture is None else [np.asarray(picture)],
                dmd_denoising_steps=list(steps),
                flow_shift=shift,
                want_latents=True,
                **shared,
            )
        )
    name = f"{variant} {'with' if pictured else 'without'} picture, {steps}, shift {shift}"
    TABLE.check(f"{name}, latents", result.outputs[0].latents, reference.latents, LATENTS)
    TABLE.check(f"{name}, frames", result.frames, np.round(reference.frames * 255), FRAMES)
    assert result.parameters["num_inference_steps"] == len(steps)


def test_both_few_step_experts_and_the_boundary_are_used(tiny: Folder) -> None:
    """A boundary above or below all steps takes one expert only, and gives another video."""
    picture = [np.asarray(oracle.picture(48, 32))]
    with load(tiny("dmd_i2v_a14b")) as model:
        found = [
            one(
                model.generate(
                    prompt=PROMPT, images=picture, width=48, height=32, num_frames=5, seed=1,
                    boundary_ratio=boundary, want_latents=True,
                )
            )
            for boundary in (None, 0.9, 0.0, 1.0)
        ]  # fmt: skip
    own, same, high, low = (latents_of(result) for result in found)
    assert np.array_equal(own, same)
    assert found[0].parameters["boundary_ratio"] == 0.9
    for first, second in ((own, high), (own, low), (high, low)):
        assert relative_l2(first, second) > 0.01


@pytest.mark.parity
@pytest.mark.parametrize("variant", ["t2v", "i2v"])
def test_bfloat16_is_no_further_from_float32_than_diffusers(tiny: Folder, variant: str) -> None:
    picture = oracle.picture(48, 32) if variant == "i2v" else None
    images = [] if picture is None else [np.asarray(picture)]
    shared: Any = {"prompt": PROMPT, "negative_prompt": "blurry", "width": 48, "height": 32}
    more: Any = {"num_frames": 9, "seed": 3}
    exact = oracle.run(tiny(variant), image=picture, steps=10, guidance=5.0, **shared, **more)
    half = oracle.halve(oracle.pipeline(tiny(variant), picture is not None))
    theirs = oracle.run(
        tiny(variant), image=picture, steps=10, guidance=5.0, pipe=half, **shared, **more
    )
    precisions = {"transformer": "bfloat16", "text_encoder": "bfloat16"}
    with load(tiny(variant), component_precisions=precisions) as model:
        ours = one(
            model.generate(
                images=images, num_inference_steps=10, guidance_scale=5.0, want_latents=True,
                **shared, **more,
            )
        )  # fmt: skip
    found = latents_of(ours)
    assert np.isfinite(found).all()
    reference = relative_l2(theirs.latents.float(), exact.latents)
    error = relative_l2(found, exact.latents)
    print(f"{variant} bf16 to fp32: ours {error:.3e}, diffusers {reference:.3e}")
    assert 1e-4 < reference < 0.2
    assert error <= 1.1 * reference


@pytest.mark.parametrize("variant", ["t2v", "i2v", "i2v_a14b", "ti2v_5b"])
def test_everything_in_bfloat16_is_finite(tiny: Folder, variant: str) -> None:
    images = [np.asarray(oracle.picture(64, 64))] if "i2v" in variant else []
    with load(tiny(variant), dtype="bfloat16") as model:
        result = one(
            model.generate(
                prompt=PROMPT, images=images, width=64, height=64, num_frames=5, seed=1,
                num_inference_steps=4, want_latents=True,
            )
        )  # fmt: skip
    assert np.isfinite(latents_of(result)).all()
    assert result.frames.std() > 1


MODES = ["resident", "component-offload", "layerwise-offload"]
SELECTORS: list[dict[str, str]] = [
    *({"all": mode} for mode in MODES[1:]),
    *({group: mode} for group in ("dit", "text_encoder", "image_encoder", "vae")
      for mode in MODES[1:]),
    {"all": "layerwise-offload", "dit": "component-offload", "vae": "resident"},
    {"all": "component-offload", "transformer": "layerwise-offload"},
    {"dit": "layerwise-offload", "transformer_2": "resident"},
]  # fmt: skip


@pytest.fixture(scope="module")
def resident(tiny: Folder) -> dict[str, Any]:
    return {variant: sampled(tiny(variant), {}) for variant in ("i2v", "i2v_a14b", "ti2v_5b")}


def sampled(folder: Path, residency: dict[str, str]) -> Any:
    with load(folder, residency=residency, batching="off") as model:
        result = one(
            model.generate(
                prompt=PROMPT, images=[np.asarray(oracle.picture(64, 64))], width=64, height=64,
                num_frames=9, seed=2, num_inference_steps=3, want_latents=True, negative_prompt="x",
            )
        )  # fmt: skip
    return result.outputs[0].latents, result.frames


PAIRS = [
    (variant, selectors)
    for variant in ("i2v", "i2v_a14b", "ti2v_5b")
    for selectors in SELECTORS
    if variant == "i2v_a14b" or "transformer_2" not in selectors
]


@pytest.mark.parametrize(
    ("variant", "selectors"),
    PAIRS,
    ids=[f"{variant} {','.join(f'{k}={v}' for k, v in s.items())}" for variant, s in PAIRS],
)
def test_every_residency_gives_the_same(
    tiny: Folder, variant: str, selectors: dict[str, str], resident: dict[str, Any]
) -> None:
    latents, frames = sampled(tiny(variant), selectors)
    assert np.array_equal(latents, resident[variant][0])
    assert np.array_equal(frames, resident[variant][1])


@pytest.mark.parametrize("mode", ["component-offload", "layerwise-offload"])
@pytest.mark.parametrize("variant", ["i2v", "ti2v_5b"])
def test_real_components_never_compute_with_what_is_not_on_the_device(
    tiny: Folder, variant: str, mode: Any, resident: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a second device whose host copies are NaN, the frames of every component must be right."""
    from sgld.engine import build
    from sgld.testing.second_device import FakeDeviceMover

    mover = FakeDeviceMover()
    monkeypatch.setattr(build, "TorchMover", lambda device: mover)
    latents, frames = sampled(tiny(variant), {"all": mode})
    assert np.array_equal(latents, resident[variant][0])
    assert np.array_equal(frames, resident[variant][1])
    assert mover.uploads > 3
    assert mover.bytes_now == 0
    assert torch.isfinite(torch.from_numpy(latents)).all()
