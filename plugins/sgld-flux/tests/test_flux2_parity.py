"""Whole FLUX.2 pipelines against diffusers on the same tiny checkpoint, noise and pictures.

`pytest -m parity -rA` prints one row per comparison: relative L2 of final latents and of pictures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import oracle2
import pytest

import sgld
from sgld.testing.parity import ParityTable, relative_l2

pytestmark = pytest.mark.parity

LATENTS, PIXELS = 1e-4, 1e-3
TABLE = ParityTable("flux.2")
PROMPT = "a red kite over the sea"
VARIANTS = ("klein", "klein_base", "klein_kv", "dev")
Folder = Callable[[str], Path]
Models = Callable[[str], sgld.Model]


@pytest.fixture(scope="module")
def folder(tiny: Callable[..., Path]) -> Folder:
    """`(variant) -> Path` of a tiny checkpoint."""
    return lambda variant: tiny(variant, "testing2")


@pytest.fixture(scope="module")
def model(folder: Folder) -> Iterator[Models]:
    """One loaded model per variant."""
    held: dict[str, sgld.Model] = {}

    def get(variant: str) -> sgld.Model:
        if variant not in held:
            held[variant] = load(folder(variant))
        return held[variant]

    yield get
    for loaded in held.values():
        loaded.close()


def load(path: Path, **options: Any) -> sgld.Model:
    return sgld.load(str(path), **{"device": "cpu", "dtype": "float32", **options})


def one(result: Any) -> sgld.Result:
    assert isinstance(result, sgld.Result)
    return result


def latents_of(result: sgld.Result) -> Any:
    found = result.outputs[0].latents
    assert found is not None
    return found


def pixels(images: Sequence[Any]) -> list[Any]:
    return [np.asarray(image) for image in images]


def compare(
    name: str, ours: sgld.Model, path: Path, images: Sequence[Any] = (), **params: Any
) -> sgld.Result:
    """Run both and check latents and picture."""
    names = {
        "num_inference_steps": "steps",
        "guidance_scale": "guidance",
        "max_sequence_length": "length",
    }
    theirs = {names.get(key, key): value for key, value in params.items()}
    reference = oracle2.run(path, images=images, **theirs)
    result = one(ours.generate(images=pixels(images), want_latents=True, **params))
    TABLE.check(f"{name}, latents", latents_of(result), reference.latents, LATENTS)
    # Ours leave the engine as 8-bit pixels, so the reference is rounded in the same way.
    rounded = np.round(reference.picture * 255)
    TABLE.check(f"{name}, picture", result.frames[0], rounded, PIXELS)
    return result


def base(**changes: Any) -> dict[str, Any]:
    """Parameters that every run states, so that no preset takes part."""
    return {"prompt": PROMPT, "width": 64, "height": 64, "num_inference_steps": 4, "seed": 3} | (
        changes
    )


LONG = "a bird and a wave, " * 60
CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("klein", "4 steps", {}),
    ("klein", "odd size 80x48, 7 steps", {"width": 80, "height": 48, "num_inference_steps": 7}),
    ("klein", "tall 16x112", {"width": 16, "height": 112}),
    ("klein", "one step", {"num_inference_steps": 1}),
    ("klein", "empty prompt", {"prompt": ""}),
    ("klein", "long prompt", {"prompt": LONG}),
    ("klein", "unicode, short text", {"prompt": "l’été 猫 \n x", "max_sequence_length": 64}),
    ("klein_base", "20 steps, CFG 4", {"num_inference_steps": 20, "guidance_scale": 4.0}),
    ("klein_base", "guidance off", {"guidance_scale": 1.0}),
    ("klein_base", "negative prompt", {"guidance_scale": 2.5, "negative_prompt": "blurry"}),
    ("klein_base", "long prompt", {"guidance_scale": 4.0, "prompt": LONG}),
    ("klein_kv", "no pictures", {}),
    ("dev", "20 steps, guidance 4", {"num_inference_steps": 20, "guidance_scale": 4.0}),
    ("dev", "guidance 0", {"guidance_scale": 0.0}),
    ("dev", "guidance 1.7, 48x96", {"guidance_scale": 1.7, "width": 48, "height": 96}),
    ("dev", "empty prompt", {"guidance_scale": 4.0, "prompt": ""}),
    ("dev", "long prompt", {"guidance_scale": 4.0, "prompt": LONG}),
    ("dev", "picture mark in the prompt", {"guidance_scale": 4.0, "prompt": "a [IMG] cat"}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("variant", "name", "changes"), CASES, ids=lambda v: v if isinstance(v, str) else ""
)
def test_text_to_picture(
    variant: str, name: str, changes: dict[str, Any], model: Models, folder: Folder
) -> None:
    compare(f"{variant} {name}", model(variant), folder(variant), **base(**changes))


Sizes = tuple[tuple[int, int], ...]
EDITS: list[tuple[str, str, Sizes, dict[str, Any]]] = [
    ("klein", "one picture", ((64, 64),), {}),
    ("klein", "three sizes", ((64, 80), (150, 70), (64, 64)), {"width": 80, "height": 48}),
    ("klein", "ten pictures", ((64, 64),) * 10, {"num_inference_steps": 2}),
    ("klein_base", "two pictures, CFG", ((64, 96), (80, 64)), {"guidance_scale": 4.0}),
    ("klein_kv", "one picture", ((64, 64),), {}),
    ("klein_kv", "three sizes", ((64, 80), (150, 70), (64, 64)), {"width": 80, "height": 48}),
    ("klein_kv", "one step", ((96, 64),), {"num_inference_steps": 1}),
    ("dev", "one picture", ((64, 64),), {"guidance_scale": 4.0}),
    ("dev", "two pictures", ((65, 79), (130, 64)), {"guidance_scale": 2.0, "width": 96}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("variant", "name", "sizes", "changes"), EDITS, ids=lambda v: v if isinstance(v, str) else ""
)
def test_edits(
    variant: str, name: str, sizes: Sizes, changes: dict[str, Any], model: Models, folder: Folder
) -> None:
    images = [oracle2.picture(*size, seed=index) for index, size in enumerate(sizes)]
    compare(f"{variant} edit, {name}", model(variant), folder(variant), images, **base(**changes))


@pytest.mark.parametrize("variant", ["klein", "klein_kv", "dev"])
def test_the_first_picture_gives_the_size(variant: str, model: Models, folder: Folder) -> None:
    images = [oracle2.picture(71, 100), oracle2.picture(64, 64, seed=2)]
    params = {"prompt": PROMPT, "num_inference_steps": 3, "seed": 1}
    reference = oracle2.run(
        folder(variant), images=images, prompt=PROMPT, steps=3, seed=1,
        width=64, height=96, explicit_size=False,
    )  # fmt: skip
    ours = sgld_without_preset(model(variant), images, params)
    assert ours.frames.shape == (1, 96, 64, 3)
    TABLE.check(f"{variant} size of the picture", latents_of(ours), reference.latents, LATENTS)


def sgld_without_preset(ours: sgld.Model, images: Any, params: dict[str, Any]) -> sgld.Result:
    """Run with the area that real checkpoints have: the tiny preset's is smaller than pictures."""
    from dataclasses import replace

    preset = {**ours.plan.preset_defaults, "width": 1024, "height": 1024}
    kept, ours.plan = ours.plan, replace(ours.plan, preset_defaults=preset)
    try:
        return one(ours.generate(images=pixels(images), want_latents=True, **params))
    finally:
        ours.plan = kept


@pytest.mark.slow
def test_large_pictures_are_shrunk_as_in_diffusers(model: Models, folder: Folder) -> None:
    images = [oracle2.picture(1400, 1100)]
    compare("klein large picture", model("klein"), folder("klein"), images,
            **base(num_inference_steps=1))  # fmt: skip


@pytest.mark.parametrize("variant", VARIANTS)
def test_bfloat16_is_no_further_from_float32_than_diffusers(variant: str, folder: Folder) -> None:
    path = folder(variant)
    images = [oracle2.picture(64, 64)]
    params: dict[str, Any] = base(num_inference_steps=8)
    if variant in ("dev", "klein_base"):
        params["guidance_scale"] = 4.0
    shared: dict[str, Any] = {
        "images": images, "prompt": PROMPT, "steps": 8, "seed": 3,
        "guidance": params.get("guidance_scale"),
    }  # fmt: skip
    exact = oracle2.run(path, **shared)
    theirs = oracle2.run(path, pipe=oracle2.halve(oracle2.pipeline(path)), **shared)
    precisions = {"transformer": "bfloat16", "text_encoder": "bfloat16"}
    with load(path, component_precisions=precisions) as half:
        found = latents_of(one(half.generate(images=pixels(images), want_latents=True, **params)))
    reference, error = relative_l2(theirs.latents, exact.latents), relative_l2(found, exact.latents)
    apart = relative_l2(found, theirs.latents)
    print(f"{variant} bf16 to fp32: ours {error:.2e}, diffusers {reference:.2e}; apart {apart:.2e}")
    assert 1e-4 < reference < 0.3
    assert error <= 1.1 * reference


def test_several_outputs_are_each_the_reference(model: Models, folder: Folder) -> None:
    images = [oracle2.picture(64, 64)]
    result = one(model("klein_kv").generate(
        images=pixels(images), want_latents=True, num_outputs_per_prompt=3, **base(seed=5)
    ))  # fmt: skip
    for output in result.outputs:
        reference = oracle2.run(folder("klein_kv"), images=images, prompt=PROMPT, seed=output.seed)
        TABLE.check(f"output {output.index}", output.latents, reference.latents, LATENTS)


MIXED: dict[str, list[dict[str, Any]]] = {
    "klein": [{"num_inference_steps": 3}, {"num_inference_steps": 6}, {"seed": 9}],
    "klein_base": [{"guidance_scale": 4.0}, {"guidance_scale": 1.0}, {"guidance_scale": 2.0}],
    "klein_kv": [{"num_inference_steps": 3}, {"num_inference_steps": 5}, {"seed": 9}],
    "dev": [{"guidance_scale": 4.0}, {"guidance_scale": 0.5, "num_inference_steps": 6},
            {"guidance_scale": 9.0}],
}  # fmt: skip
PICTURES: list[list[tuple[int, int, int]]] = [[], [(64, 64, 1)], [(64, 64, 2)]]


@pytest.mark.parametrize("variant", VARIANTS)
def test_mixed_jobs_share_forwards_and_equal_their_solo_runs(
    variant: str, model: Models, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts, seeds, steps, guidance and pictures differ; forwards are shared."""
    from sgld_flux.models.flux2 import Flux2Transformer

    rows: list[int] = []
    plain = Flux2Transformer.forward

    def counted(self: Any, hidden_states: Any, *args: Any, **inputs: Any) -> Any:
        rows.append(len(hidden_states))
        return plain(self, hidden_states, *args, **inputs)

    asked = [
        (pictures, base(prompt=f"thing {number}", **changes))
        for pictures in PICTURES
        for number, changes in enumerate(MIXED[variant])
    ]
    with load(folder(variant), batching=6) as shared:
        made: list[Any] = []
        for pictures, params in asked:
            images = pixels([oracle2.picture(w, h, seed=s) for w, h, s in pictures])
            made += [r for r, _ in shared.requests(images=images, want_latents=True, **params)]
        monkeypatch.setattr(Flux2Transformer, "forward", counted)
        found: dict[str, Any] = {}
        for event in shared.run(made):
            assert event.kind != "failed", event.message
            if event.output is not None:
                found[event.request_id] = event.output.latents
        monkeypatch.undo()
    assert max(rows) > 3
    for request, (pictures, params) in zip(made, asked, strict=True):
        images = pixels([oracle2.picture(w, h, seed=s) for w, h, s in pictures])
        solo = one(model(variant).generate(images=images, want_latents=True, **params))
        TABLE.check(f"{variant} batched", found[request.id], latents_of(solo), 1e-5)


@pytest.mark.parametrize("variant", ["klein_kv", "dev"])
@pytest.mark.parametrize("mode", ["component-offload", "layerwise-offload"])
def test_offload_gives_the_same(
    variant: str, mode: str, model: Models, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a second device whose host copies are NaN."""
    from sgld.engine import build
    from sgld.testing.second_device import FakeDeviceMover

    mover = FakeDeviceMover()
    monkeypatch.setattr(build, "TorchMover", lambda device: mover)
    images = pixels([oracle2.picture(64, 64)])
    params = base(num_inference_steps=3)
    with load(folder(variant), residency={"all": mode}) as held:
        ours = one(held.generate(images=images, want_latents=True, **params))
    monkeypatch.undo()
    same = one(model(variant).generate(images=images, want_latents=True, **params))
    assert np.array_equal(latents_of(ours), latents_of(same))
    assert np.array_equal(ours.frames, same.frames)
    assert mover.uploads > 3
    assert mover.bytes_now == 0


@pytest.mark.parametrize("variant", ["klein", "dev"])
def test_original_naming_gives_the_same(
    variant: str, model: Models, folder: Folder, tmp_path: Path
) -> None:
    """The transformer's weights from a single file under the original names."""
    from sgld_flux import testing2

    file = tmp_path / "flux2.safetensors"
    testing2.original_transformer_file(folder(variant), file)
    with load(folder(variant), component_weights_paths={"transformer": str(file)}) as loaded:
        ours = one(loaded.generate(want_latents=True, **base()))
    same = one(model(variant).generate(want_latents=True, **base()))
    assert np.array_equal(latents_of(ours), latents_of(same))
