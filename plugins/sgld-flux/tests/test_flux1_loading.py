"""Loading FLUX.1: every layout recognised, any mix read right, every damage named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

import sgld
from sgld.api.errors import ModelError, ParameterError
from sgld.params.merge import Layer, build
from sgld.params.serving import ServingOptions
from sgld.plan import make_plan
from sgld_flux import weights
from sgld_flux.testing import original_layout, tiny_dev, write

Folder = Callable[[str], Path]
WEIGHTS = "diffusion_pytorch_model.safetensors"
QUICK: dict[str, Any] = {
    "prompt": "a kite", "width": 32, "height": 48, "num_inference_steps": 2, "seed": 1,
    "max_sequence_length": 64,
}  # fmt: skip
TEXTS = ("text_encoder", "text_encoder_2")


def options(path: Path | str, **more: Any) -> Any:
    return build(ServingOptions, [Layer("call", {"model_path": str(path), **more})]).params


def latents(path: Path, **more: Any) -> Any:
    with sgld.load(str(path), device="cpu", dtype="float32", **more) as model:
        result: Any = model.generate(want_latents=True, **QUICK)
    return result.outputs[0].latents


def copied(source: Path, target: Path) -> Path:
    shutil.copytree(source, target)
    return target


def edit(path: Path, **changes: Any) -> None:
    data = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in data.items() if value is not ...}))


@pytest.fixture(scope="module")
def wanted(tiny: Folder) -> Any:
    """Latents of the untouched dev checkpoint."""
    return latents(tiny("dev"))


@pytest.mark.parametrize("variant", ["dev", "schnell"])
def test_both_layouts_are_recognised(variant: str, tiny: Folder, original: Folder) -> None:
    for folder, why in ((tiny(variant), "guidance_embeds"), (original(variant), "file flux1-")):
        plan = make_plan(options(folder))
        assert plan.spec.id == f"flux.1-{variant}"
        assert why in plan.recognition.evidence
        assert list(plan.located) == [*TEXTS, "transformer", "vae"]
        assert {plan.components[name] for name in TEXTS} == {"text_encoder"}
    assert plan.preset_defaults["num_inference_steps"] == (28 if variant == "dev" else 4)


@pytest.mark.parametrize("variant", ["dev", "schnell"])
def test_an_original_file_of_any_name_is_recognised(
    variant: str, tiny: Folder, tmp_path: Path
) -> None:
    original_layout(tiny(variant), tmp_path, name="my model.safetensors")
    plan = make_plan(options(tmp_path))
    assert plan.spec.id == f"flux.1-{variant}"
    assert "detected" in plan.recognition.evidence
    assert Path(str(plan.located["transformer"].weights)).name == "my model.safetensors"


def test_the_image_to_image_class_is_the_same_model(tiny: Folder, tmp_path: Path) -> None:
    folder = copied(tiny("dev"), tmp_path / "model")
    edit(folder / "model_index.json", _class_name="FluxImg2ImgPipeline")
    assert make_plan(options(folder)).spec.id == "flux.1-dev"
    edit(folder / "model_index.json", _class_name="FluxFillPipeline")
    with pytest.raises(ModelError):
        make_plan(options(folder, backend="native"))


@pytest.mark.parametrize("name", ["transformer", "vae"])
@pytest.mark.parametrize("pack", [False, True])
def test_an_original_file_over_a_diffusers_folder(
    name: str, pack: bool, tiny: Folder, original: Folder, tmp_path: Path, wanted: Any
) -> None:
    folder = copied(tiny("dev"), tmp_path / "model")
    zeroed = load_file(folder / name / WEIGHTS)
    save_file({key: tensor * 0 for key, tensor in zeroed.items()}, folder / name / WEIGHTS)
    file = original("dev") / (
        "flux1-dev.safetensors" if name == "transformer" else "ae.safetensors"
    )
    if pack and name == "transformer":
        tensors = {weights.PACK_PREFIX + key: value for key, value in load_file(file).items()}
        file = tmp_path / "pack.safetensors"
        save_file({**tensors, "first_stage_model.x": zeroed["proj_out.bias"]}, file)
    found = latents(folder, component_weights_paths={name: str(file)})
    assert np.array_equal(found, wanted)


@pytest.mark.parametrize("single", [False, True])
def test_the_original_file_with_components_from_elsewhere(
    single: bool, tiny: Folder, original: Folder, tmp_path: Path, wanted: Any
) -> None:
    """Only the transformer is in the folder; the tokenizers lie beside the encoders' folders."""
    shutil.copy(original("dev") / "flux1-dev.safetensors", tmp_path)
    paths = {name: str(tiny("dev") / name) for name in (*TEXTS, "vae")}
    where = tmp_path / "flux1-dev.safetensors" if single else tmp_path
    assert np.array_equal(latents(where, component_paths=paths), wanted)


def test_a_diffusers_vae_file_in_the_original_layout(
    tiny: Folder, original: Folder, tmp_path: Path, wanted: Any
) -> None:
    folder = copied(original("dev"), tmp_path / "model")
    (folder / "ae.safetensors").unlink()
    shutil.copytree(tiny("dev") / "vae", folder / "vae")
    assert np.array_equal(latents(folder), wanted)


@pytest.mark.parametrize(
    ("name", "text"),
    [("ae.safetensors", "component 'vae'.*no ae.safetensors"),
     ("text_encoder_2", "component 'text_encoder_2'.*--component-path.text_encoder_2"),
     ("tokenizer", "component 'tokenizer'.*tokenizer_config.json")],
)  # fmt: skip
def test_what_is_missing_in_the_original_layout_is_named(
    name: str, text: str, original: Folder, tmp_path: Path
) -> None:
    folder = copied(original("dev"), tmp_path / "model")
    path = folder / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(ModelError, match=f"(?s){text}"):
        latents(folder)


def test_a_truncated_original_file_is_named(original: Folder, tmp_path: Path) -> None:
    folder = copied(original("dev"), tmp_path / "model")
    path = folder / "flux1-dev.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ModelError, match=r"flux1-dev\.safetensors"):
        latents(folder)


def test_dev_by_name_without_guidance_is_refused(tiny: Folder, tmp_path: Path) -> None:
    original_layout(tiny("schnell"), tmp_path, name="flux1-dev.safetensors")
    with pytest.raises(ModelError, match="has no guidance input, so it is no"):
        latents(tmp_path)


def test_guidance_in_schnell_is_refused(tiny: Folder) -> None:
    with pytest.raises(ModelError, match="has a guidance input, so it is no"):
        latents(tiny("dev"), pipeline_class_name="flux.1-schnell")


@pytest.mark.parametrize(
    ("file", "changes", "text"),
    [("transformer/config.json", {"in_channels": 32}, "in_channels=32.*latent_channels=16"),
     ("transformer/config.json", {"out_channels": 16}, "differ"),
     ("scheduler/scheduler_config.json", {"_class_name": "DDIMScheduler"}, "DDIMScheduler"),
     ("model_index.json", {"vae": ...}, "has no vae"),
     ("model_index.json", {"text_encoder": [None, None]}, "has no text_encoder")],
)  # fmt: skip
def test_parts_that_do_not_fit_are_refused_before_weights_are_read(
    file: str, changes: dict[str, Any], text: str, tiny: Folder, tmp_path: Path
) -> None:
    folder = copied(tiny("dev"), tmp_path / "model")
    edit(folder / file, **changes)
    with pytest.raises(ModelError, match=text):
        latents(folder)


def test_missing_and_extra_tensors_are_listed(tiny: Folder, tmp_path: Path) -> None:
    folder = copied(tiny("dev"), tmp_path / "model")
    path = folder / "transformer" / WEIGHTS
    tensors = load_file(path)
    tensors["x_embedder.more"] = tensors.pop("x_embedder.bias")
    save_file(tensors, path)
    with pytest.raises(
        ModelError, match=r"(?s)missing.*x_embedder\.bias.*unexpected.*x_embedder\.m"
    ):
        latents(folder)


def test_unknown_components_are_refused(tiny: Folder) -> None:
    with pytest.raises(ParameterError, match="transformer_2"):
        make_plan(options(tiny("dev"), component_paths={"transformer_2": str(tiny("dev"))}))


def test_clip_files_of_older_versions_load(tiny: Folder, tmp_path: Path, wanted: Any) -> None:
    """With `text_model.` before the names and position ids among them, or without both."""
    for older in (True, False):
        folder = copied(tiny("dev"), tmp_path / str(older))
        path = folder / "text_encoder" / "model.safetensors"
        tensors = {k.removeprefix("text_model."): v for k, v in load_file(path).items()}
        if older:
            tensors = {f"text_model.{name}": tensor for name, tensor in tensors.items()}
            ids = tensors["text_model.embeddings.position_embedding.weight"][:, 0].long()
            tensors["text_model.embeddings.position_ids"] = ids[None]
        save_file(tensors, path)
        assert np.array_equal(latents(folder), wanted)


@pytest.mark.parametrize("variant", ["dev", "schnell"])
def test_full_sizes_without_weights(variant: str) -> None:
    from sgld.engine.build import weigh

    plan = make_plan(options(f"config:flux.1-{variant}", load_format="dummy"))
    assert plan.spec.id == f"flux.1-{variant}"
    counts = {name: weight.parameters for name, weight in weigh(plan).items()}
    plan.close()
    # As published: 11.9 billion, of which the guidance input has 10 million.
    assert counts["transformer"] == 11_901_408_320 - (0 if variant == "dev" else 10_229_760)
    assert counts["text_encoder_2"] == 4_762_310_656
    assert counts["text_encoder"] == 123_060_480
    assert counts["vae"] == 83_819_683


def test_tiny_checkpoints_are_small_whole_and_the_same_everywhere(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    tiny_dev(first)
    write(second, guided=True, seed=1)
    files = sorted(path.relative_to(first) for path in first.rglob("*") if path.is_file())
    assert sum((first / file).stat().st_size for file in files) < 5_000_000
    for file in files:
        assert (first / file).read_bytes() == (second / file).read_bytes(), file
    for name in ("transformer", "vae"):
        for key, tensor in load_file(first / name / WEIGHTS).items():
            assert tensor.std() > 0, key
