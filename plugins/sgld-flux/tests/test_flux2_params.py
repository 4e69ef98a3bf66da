"""What FLUX.2 takes and refuses, which checkpoint is which, and its checkpoints made in code."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import oracle2
import pytest
import torch
from safetensors.torch import load_file, save_file

import sgld
from sgld.api import features
from sgld.api.errors import ModelError, ParameterError
from sgld.engine.build import weigh
from sgld.params.merge import Layer
from sgld.params.requests import fit_to_images, prepare
from sgld.params.serving import ServingOptions
from sgld.plan import make_plan
from sgld.plugins.catalog import load_catalog
from sgld.testing.parity import relative_l2
from sgld_flux import params2, testing2
from sgld_flux.specs2 import flux2_pipelines

Tiny = Callable[..., Path]
SPECS = {spec.id: spec for spec in flux2_pipelines()}
VARIANTS = {
    "dev": "flux.2-dev",
    "klein": "flux.2-klein",
    "klein_base": "flux.2-klein-base",
    "klein_kv": "flux.2-klein-kv",
}
PARAMS: dict[str, Any] = {
    "dev": params2.Flux2DevParams,
    "klein": params2.Flux2KleinParams,
    "klein_base": params2.Flux2KleinBaseParams,
}


def asked(variant: str, **values: Any) -> Any:
    return prepare(PARAMS[variant], [Layer("call", {"prompt": "x", **values})])[0]


@pytest.mark.parametrize(
    ("variant", "steps", "scale", "guided", "kind"),
    [
        ("dev", 50, 4.0, False, "embedded"),
        ("klein", 4, 1.0, False, "none"),
        ("klein_base", 50, 4.0, True, "cfg"),
    ],
)
def test_defaults(variant: str, steps: int, scale: float, guided: bool, kind: str) -> None:
    params = asked(variant).params
    assert (params.num_inference_steps, params.guidance_scale) == (steps, scale)
    assert (params.width, params.height, params.max_sequence_length) == (1024, 1024, 512)
    assert params.uses_cfg is guided
    assert PARAMS[variant].guidance == kind
    assert PARAMS[variant].max_images == 10
    assert PARAMS[variant].tasks == ("text-to-image", "image-to-image")


@pytest.mark.parametrize(
    ("variant", "values", "said"),
    [
        ("klein", {"guidance_scale": 4.0}, "guidance_scale=4.0: this model is distilled"),
        ("klein", {"negative_prompt": "x"}, "negative_prompt"),
        ("dev", {"negative_prompt": "x"}, "negative_prompt"),
        ("dev", {"width": 1000, "height": 1024}, "multiples of 16"),
        ("dev", {"strength": 0.5}, "strength"),
        ("dev", {"num_frames": 5}, "makes pictures, not clips"),
        ("klein", {"max_sequence_length": 513}, "max_sequence_length=513"),
        ("klein_base", {"guidance_scale": -1.0}, "guidance_scale=-1.0"),
        ("dev", {"image_path": ["a.png"] * 11}, "11 pictures for one prompt; this model takes 10"),
    ],
)
def test_bad_input_is_refused_by_name(variant: str, values: dict[str, Any], said: str) -> None:
    with pytest.raises(ParameterError) as caught:
        asked(variant, **values)
    assert said in str(caught.value)


def test_guidance_one_and_an_empty_prompt_are_fine() -> None:
    assert asked("klein", guidance_scale=1.0).params.guidance_scale == 1.0
    assert asked("dev", prompt="").params.prompt == ""


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((1024, 1024), (1024, 1024)),
        ((500, 300), (496, 288)),
        ((2000, 1000), (1440, 720)),
        ((1400, 1100), (1152, 896)),
        ((64, 512), (64, 512)),
        ((1024, 1025), (1008, 1024)),
    ],
)
def test_the_first_picture_gives_the_size(size: tuple[int, int], expected: tuple[int, int]) -> None:
    prepared = asked("dev", image_path="a.png")
    fitted = fit_to_images(prepared, [size, (64, 64)]).params
    assert (fitted.width, fitted.height) == expected
    assert params2.reference_size(*size)[1] == expected
    fixed = asked("dev", image_path="a.png", width=512, height=256)
    assert fit_to_images(fixed, [size]).params.width == 512


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ([(63, 100)], "picture 1 is 63x100; this model takes pictures of at least 64 pixels"),
        ([(64, 64), (64, 513)], "picture 2 is 64x513"),
        ([(513, 64)], "at most 8 times"),
        ([(10, 10), (64, 64), (1000, 64)], "picture 3 is 1000x64"),
    ],
)
def test_pictures_of_a_wrong_shape_are_refused(sizes: Any, said: str) -> None:
    with pytest.raises(ParameterError) as caught:
        fit_to_images(asked("klein", image_path=["a.png"] * len(sizes)), sizes)
    assert said in str(caught.value)
    assert "image_path" in str(caught.value)


def test_eleven_pictures_are_refused_before_any_work(tiny: Tiny) -> None:
    with sgld.load(str(tiny("klein", "testing2")), device="cpu") as model:
        picture = np.asarray(oracle2.picture())
        with pytest.raises(ParameterError, match="11 pictures"):
            model.generate(prompt="x", images=[picture] * 11)
        with pytest.raises(ParameterError, match="picture 2 is 20x64"):
            model.generate(prompt="x", images=[picture, picture[:, :20]])


@pytest.mark.parametrize(("variant", "id"), VARIANTS.items())
def test_checkpoints_are_recognised(tiny: Tiny, variant: str, id: str) -> None:
    plan = make_plan(ServingOptions(model_path=str(tiny(variant, "testing2"))))
    try:
        assert plan.spec.id == id
        assert plan.preset_defaults["width"] == 64
        assert set(plan.located) == {"text_encoder", "transformer", "vae"}
    finally:
        plan.close()


@pytest.mark.parametrize("id", SPECS)
def test_records(id: str) -> None:
    catalog = load_catalog({}, strict=True)
    assert not catalog.failures
    assert catalog.pipelines[id].spec == SPECS[id]
    assert (features.CFG in SPECS[id].features) == (id == "flux.2-klein-base")


@pytest.mark.parametrize(
    ("name", "id", "steps", "text", "transformer"),
    [
        ("flux.2-klein-4b", "flux.2-klein", 4, 3.11e9, 3.88e9),
        ("flux.2-klein-9b", "flux.2-klein", 4, 5.83e9, 9.08e9),
        ("flux.2-klein-base-4b", "flux.2-klein-base", 50, 3.11e9, 3.88e9),
        ("flux.2-klein-base-9b", "flux.2-klein-base", 50, 5.83e9, 9.08e9),
        ("flux.2-klein-kv-9b", "flux.2-klein-kv", 4, 5.83e9, 9.08e9),
        ("flux.2-dev", "flux.2-dev", 50, 17.35e9, 32.2e9),
    ],
)
def test_full_sizes_are_planned_without_weights(
    name: str, id: str, steps: int, text: float, transformer: float
) -> None:
    """Parameters that would be loaded: the language model ends with the last layer that is read."""
    plan = make_plan(ServingOptions(model_path=f"config:{name}", load_format="dummy"))
    try:
        assert plan.spec.id == id
        assert plan.preset_defaults["num_inference_steps"] == steps
        assert plan.preset_defaults["width"] == 1024
        weights = {name: weight.parameters for name, weight in weigh(plan).items()}
    finally:
        plan.close()
    assert weights == {
        "text_encoder": pytest.approx(text, rel=0.01),
        "transformer": pytest.approx(transformer, rel=0.02),
        "vae": pytest.approx(84e6, rel=0.01),
    }


def fingerprints(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("variant", VARIANTS)
def test_tiny_checkpoints_are_small_alive_and_the_same_every_time(
    tiny: Tiny, variant: str, tmp_path: Path
) -> None:
    folder = tiny(variant, "testing2")
    getattr(testing2, f"tiny_{variant}")(tmp_path / "again")
    assert fingerprints(folder) == fingerprints(tmp_path / "again")
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < 5_000_000
    for file in folder.rglob("*.safetensors"):
        for name, tensor in load_file(file).items():
            assert torch.isfinite(tensor).all(), name
            assert tensor.numel() == 1 or tensor.float().std() > 0, f"{file}: {name}"


@pytest.mark.parametrize("variant", VARIANTS)
def test_prompt_picture_and_order_change_the_result(tiny: Tiny, variant: str) -> None:
    """No path of the tiny checkpoints is dead."""
    one, two = (np.asarray(oracle2.picture(seed=seed)) for seed in (1, 2))
    cases: list[tuple[str, list[Any]]] = [
        ("a cat", []), ("a dog", []), ("a cat", [one]), ("a cat", [two]), ("a cat", [one, two]),
        ("a cat", [two, one]),
    ]  # fmt: skip
    with sgld.load(str(tiny(variant, "testing2")), device="cpu", dtype="float32") as model:
        found: list[Any] = []
        for prompt, images in cases:
            result = model.generate(
                prompt=prompt, images=images, seed=1, width=64, height=64, want_latents=True
            )
            assert isinstance(result, sgld.Result)
            found.append(result.outputs[0].latents)
    for first in range(len(found)):
        for second in range(first):
            assert relative_l2(found[first], found[second]) > 1e-3, (first, second)


@pytest.mark.parametrize(
    ("component", "changes", "said"),
    [
        ("transformer", {"joint_attention_dim": 64}, "the text encoder gives 48"),
        ("transformer", {"in_channels": 12}, "patches of the VAE's latents have 16"),
        ("vae", {"block_out_channels": [8, 8, 16]}, "8x8 pixels instead of 16"),
        ("text_encoder", {"num_hidden_layers": 12}, "num_hidden_layers=12"),
        ("text_encoder", {"model_type": "llama"}, "model_type='llama'"),
    ],
)
def test_parts_that_do_not_fit_are_refused(
    tiny: Tiny, tmp_path: Path, component: str, changes: dict[str, Any], said: str
) -> None:
    folder = copied(tiny("klein", "testing2"), tmp_path)
    change(folder / component / "config.json", **changes)
    with pytest.raises(ModelError, match=said):
        sgld.load(str(folder), device="cpu")


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("tokenizer/chat_template.jinja", "no chat template"),
        ("scheduler/scheduler_config.json", "scheduler_config.json is missing"),
        ("vae/diffusion_pytorch_model.safetensors", "vae"),
    ],
)
def test_missing_files_are_named(tiny: Tiny, tmp_path: Path, file: str, said: str) -> None:
    folder = copied(tiny("klein", "testing2"), tmp_path)
    (folder / file).unlink()
    with pytest.raises(ModelError, match=said):
        sgld.load(str(folder), device="cpu")


def test_a_wrong_tensor_in_an_original_file_is_named(tiny: Tiny, tmp_path: Path) -> None:
    file = tmp_path / "flux2.safetensors"
    testing2.original_transformer_file(tiny("klein", "testing2"), file)
    tensors = load_file(file)
    tensors["double_blocks.0.img_attn.strange.weight"] = torch.ones(2)
    tensors["single_blocks.1.linear2.weight"] = torch.ones(3, 3)
    del tensors["img_in.weight"]
    save_file(tensors, file)
    with pytest.raises(ModelError) as caught:
        sgld.load(
            str(tiny("klein", "testing2")), device="cpu",
            component_weights_paths={"transformer": str(file)},
        )  # fmt: skip
    for name in ("img_attn.strange", "x_embedder.weight", "single_transformer_blocks.1"):
        assert name in str(caught.value)


def copied(source: Path, target: Path) -> Path:
    import shutil

    return shutil.copytree(source, target / source.name)


def change(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
