"""Loading: every variant recognised, every damage named, any mix of layouts read right."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
import structlog
import torch
from safetensors.torch import load_file, save_file

import sgld
import sgld.model
from sgld.api.errors import FeatureError, ModelError, ParameterError
from sgld.engine.build import weigh
from sgld.memory import device_bytes, memory_plan
from sgld.params.merge import Layer, build
from sgld.params.serving import ServingOptions
from sgld.plan import make_plan
from sgld.testing.engine_rig import EngineRig
from sgld.testing.parity import relative_l2
from sgld_wan import originals, weights
from sgld_wan.layout import locate
from sgld_wan.models.vae import Vae
from sgld_wan.pipelines import loading

Folder = Callable[[str], Path]
WEIGHTS = "diffusion_pytorch_model.safetensors"
QUICK: dict[str, Any] = {
    "prompt": "a kite", "width": 48, "height": 32, "num_frames": 5, "num_inference_steps": 2,
    "seed": 1, "flow_shift": 5.0,
}  # fmt: skip


def options(path: Path | str, **more: Any) -> ServingOptions:
    made = build(ServingOptions, [Layer("call", {"model_path": str(path), **more})])
    assert isinstance(made.params, ServingOptions)
    return made.params


def latents(path: Path, images: Any = (), **more: Any) -> Any:
    with sgld.load(str(path), device="cpu", dtype="float32", **more) as model:
        return of(model.generate(images=images, want_latents=True, **QUICK))


def of(result: Any) -> Any:
    """Latents of the first output."""
    assert isinstance(result, sgld.Result)
    return result.outputs[0].latents


def copied(source: Path, target: Path) -> Path:
    shutil.copytree(source, target)
    return target


def edit(path: Path, **changes: Any) -> None:
    data = json.loads(path.read_text())
    data.update(changes)
    path.write_text(json.dumps({k: v for k, v in data.items() if v is not ...}))


# --- recognition ---------------------------------------------------------------------------------

DIFFUSERS = [
    ("t2v", "wan-t2v"),
    ("i2v", "wan-i2v"),
    ("t2v_a14b", "wan2.2-t2v-a14b"),
    ("i2v_a14b", "wan2.2-i2v-a14b"),
    ("ti2v_5b", "wan2.2-ti2v-5b"),
    ("dmd", "wan-dmd-t2v"),
    ("dmd_ti2v_5b", "wan-dmd-ti2v-5b"),
    ("dmd_i2v_a14b", "wan-dmd-i2v-a14b"),
]


@pytest.mark.parametrize(("variant", "pipeline"), DIFFUSERS)
def test_diffusers_folders_are_recognised(tiny: Folder, variant: str, pipeline: str) -> None:
    plan = make_plan(options(tiny(variant)))
    assert plan.spec.id == pipeline
    assert plan.preset_defaults["width"] == 96
    wanted = {"text_encoder", "vae", "transformer"}
    wanted |= {"transformer_2"} if "a14b" in variant else set()
    wanted |= {"image_encoder"} if variant == "i2v" else set()
    assert set(plan.located) == wanted


@pytest.mark.parametrize(("variant", "pipeline"), DIFFUSERS[:5])
def test_original_folders_are_recognised(original: Folder, variant: str, pipeline: str) -> None:
    plan = make_plan(options(original(variant), allow_pickle=True))
    assert plan.spec.id == pipeline
    assert {where.naming for where in plan.located.values()} == {"original"}


REPOS = [
    ("t2v", "Wan-AI/Wan2.1-T2V-1.3B-Diffusers", "wan-t2v", (832, 480, 81)),
    ("t2v", "Wan-AI/Wan2.1-T2V-14B", "wan-t2v", (1280, 720, 81)),
    ("i2v", "Wan-AI/Wan2.1-I2V-14B-480P-Diffusers", "wan-i2v", (832, 480, 81)),
    ("i2v", "Wan-AI/Wan2.1-I2V-14B-720P-Diffusers", "wan-i2v", (1280, 720, 81)),
    ("t2v_a14b", "Wan-AI/Wan2.2-T2V-A14B-Diffusers", "wan2.2-t2v-a14b", (1280, 720, 81)),
    ("i2v_a14b", "Wan-AI/Wan2.2-I2V-A14B-Diffusers", "wan2.2-i2v-a14b", (1280, 720, 81)),
    ("ti2v_5b", "Wan-AI/Wan2.2-TI2V-5B-Diffusers", "wan2.2-ti2v-5b", (1280, 704, 121)),
    ("dmd", "FastVideo/FastWan2.1-T2V-1.3B-Diffusers", "wan-dmd-t2v", (832, 480, 61)),
    ("dmd", "IPostYellow/TurboWan2.1-T2V-14B-720P-Diffusers", "wan-dmd-t2v", (1280, 720, 81)),
    ("ti2v_5b", "FastVideo/FastWan2.2-TI2V-5B-FullAttn-Diffusers", "wan-dmd-ti2v-5b",
     (1280, 704, 121)),
    ("i2v_a14b", "IPostYellow/TurboWan2.2-I2V-A14B-Diffusers", "wan-dmd-i2v-a14b",
     (1280, 720, 81)),
]  # fmt: skip


@pytest.mark.parametrize(("variant", "repo", "pipeline", "size"), REPOS)
def test_a_hub_id_beats_what_the_files_say(
    tiny: Folder, tmp_path: Path, variant: str, repo: str, pipeline: str, size: Any
) -> None:
    folder = copied(tiny(variant), tmp_path / "models" / "m")
    # Released sizes: nothing of the tiny preset may take part.
    layers = 40 if "14B" in repo else 30
    edit(folder / "transformer/config.json", text_dim=4096, num_layers=layers)
    for hint in (repo, repo.lower()):
        plan = make_plan(options(folder, model_id=hint))
        assert plan.spec.id == pipeline
        found = plan.preset_defaults
        assert (found["width"], found["height"], found["num_frames"]) == size


@pytest.mark.parametrize(
    ("variant", "changes", "words"),
    [
        ("t2v", {"_class_name": "WanVACEPipeline"}, ["WanVACEPipeline", "Tried", "sgld-wan"]),
        ("t2v", {"_class_name": ...}, ["no plugin serves", "Tried"]),
    ],
)
def test_no_match_lists_what_was_tried(
    tiny: Folder, tmp_path: Path, variant: str, changes: Any, words: list[str]
) -> None:
    folder = copied(tiny(variant), tmp_path / "strange")
    edit(folder / "model_index.json", **changes)
    with pytest.raises(ModelError) as caught:  # whatever fallback is installed
        make_plan(options(folder, backend="native"))
    assert caught.value.code == "model_not_recognised"
    assert all(word in str(caught.value) for word in words)


def test_two_equal_claims_are_named(tiny: Folder, tmp_path: Path) -> None:
    folder = copied(tiny("dmd"), tmp_path / "both")
    edit(folder / "model_index.json", expand_timesteps=True, boundary_ratio=0.9)
    with pytest.raises(ModelError) as caught:
        make_plan(options(folder))
    assert caught.value.code == "model_ambiguous"
    assert "wan-dmd-ti2v-5b" in str(caught.value)
    assert "wan-dmd-i2v-a14b" in str(caught.value)
    pinned = make_plan(options(folder, pipeline_class_name="wan-dmd-ti2v-5b"))
    assert pinned.spec.id == "wan-dmd-ti2v-5b"


def test_first_and_last_frame_checkpoints_are_refused_by_name(
    tiny: Folder, original: Folder, tmp_path: Path
) -> None:
    folder = copied(tiny("i2v"), tmp_path / "flf")
    edit(folder / "transformer/config.json", pos_embed_seq_len=514)
    with pytest.raises(FeatureError, match=r"first and a last frame.*pos_embed_seq_len=514"):
        make_plan(options(folder))
    theirs = copied(original("i2v"), tmp_path / "flf-original")
    edit(theirs / "config.json", model_type="flf2v")
    with pytest.raises(FeatureError, match=r"first and a last frame.*model_type='flf2v'"):
        make_plan(options(theirs, allow_pickle=True))


# --- damage --------------------------------------------------------------------------------------

COMPONENTS = ["text_encoder", "image_encoder", "transformer", "vae"]


def weight_file(folder: Path) -> Path:
    return next(iter(folder.glob("*.safetensors")))


def damage(path: Path, how: str) -> str:
    """Damage a weight file; the word that the error must contain."""
    if how == "truncated":
        path.write_bytes(path.read_bytes()[:-100])
        return path.name
    tensors = load_file(path)
    name = sorted(tensors)[len(tensors) // 2]
    if how == "missing":
        del tensors[name]
    elif how == "extra":
        tensors["not.of.this.model"] = torch.ones(2)
        name = "not.of.this.model"
    else:
        tensors[name] = torch.ones(3, 1, 2)
    save_file(tensors, path, metadata={"format": "pt"})
    return name


@pytest.mark.parametrize("component", COMPONENTS)
@pytest.mark.parametrize("how", ["truncated", "missing", "extra", "reshaped"])
def test_damage_is_named_with_its_component(
    tiny: Folder, tmp_path: Path, component: str, how: str
) -> None:
    folder = copied(tiny("i2v"), tmp_path / "m")
    word = damage(weight_file(folder / component), how)
    with pytest.raises(ModelError) as caught:
        sgld.load(str(folder), device="cpu")
    assert caught.value.code == "checkpoint_incomplete"
    assert component in str(caught.value)
    assert word.removeprefix("vision_model.") in str(caught.value)


def test_all_truncated_files_are_named_before_any_is_loaded(tiny: Folder, tmp_path: Path) -> None:
    folder = copied(tiny("t2v_a14b"), tmp_path / "m")
    for component in ("transformer_2", "vae"):
        damage(weight_file(folder / component), "truncated")
    seen: list[str] = []
    with pytest.raises(ModelError) as caught:
        sgld.load(str(folder), device="cpu", progress=lambda name, done, total: seen.append(name))
    assert "transformer_2" in str(caught.value)
    assert "vae" in str(caught.value)
    assert seen == []


@pytest.mark.parametrize(
    ("variant", "file", "changes", "words"),
    [
        ("t2v", "scheduler/scheduler_config.json", {"_class_name": "DDIMScheduler"},
         "DDIMScheduler.*UniPCMultistepScheduler"),
        ("t2v", "transformer/config.json", {"image_dim": 160, "added_kv_proj_dim": 64},
         "image_dim=160 but no 'image_encoder'"),
        ("i2v", "transformer/config.json", {"image_dim": None, "added_kv_proj_dim": None},
         "takes no image tokens"),
        ("t2v_a14b", "model_index.json", {"transformer_2": [None, None]},
         "boundary_ratio=0.875 needs a second expert"),
        ("t2v_a14b", "model_index.json", {"boundary_ratio": None}, "without a boundary_ratio"),
    ],
)  # fmt: skip
def test_components_that_do_not_fit_are_refused_before_weights_are_read(
    tiny: Folder, tmp_path: Path, variant: str, file: str, changes: Any, words: str
) -> None:
    folder = copied(tiny(variant), tmp_path / "m")
    edit(folder / file, **changes)
    read: list[str] = []
    with pytest.raises(ModelError, match=words):
        sgld.load(str(folder), device="cpu", progress=lambda name, *_: read.append(name))
    assert read == []


def test_a_missing_tokenizer_is_named(original: Folder, tmp_path: Path) -> None:
    folder = copied(original("t2v"), tmp_path / "m")
    shutil.rmtree(folder / originals.TOKENIZER_FOLDER)
    with pytest.raises(ModelError, match=r"tokenizer.*google/umt5-xxl is missing"):
        sgld.load(str(folder), device="cpu", allow_pickle=True)


@pytest.mark.parametrize(
    ("changes", "shift", "wanted"),
    [
        ({"flow_shift": ...}, None, 1.0),
        ({"flow_shift": ...}, 7.0, 7.0),
        ({"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 4.0}, None, 4.0),
        ({"_class_name": "FlowMatchEulerDiscreteScheduler"}, 7.0, 7.0),
    ],
)
def test_the_shift_reaches_either_scheduler(
    tiny: Folder, tmp_path: Path, changes: Any, shift: float | None, wanted: float
) -> None:
    folder = copied(tiny("t2v"), tmp_path / "m")
    edit(folder / "scheduler/scheduler_config.json", **changes)
    given = {**QUICK, "flow_shift": shift, "num_inference_steps": 4}
    with sgld.load(str(folder), device="cpu") as model:
        result = model.generate(want_latents=True, **given)
        other = model.generate(want_latents=True, **{**given, "flow_shift": wanted})
        third = model.generate(want_latents=True, **{**given, "flow_shift": 2.5})
    found, same, different = (of(each) for each in (result, other, third))
    assert isinstance(result, sgld.Result)
    assert result.parameters["flow_shift"] == wanted
    assert np.array_equal(found, same)
    assert relative_l2(found, different) > 0.01


def test_a_load_that_fails_removes_its_temporary_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def build_fails(plan: Any, emit: Any, progress: Any) -> Any:
        seen.append(plan.files.root.exists())
        raise KeyboardInterrupt

    seen: list[bool] = []
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(sgld.model, "build_engine", build_fails)
    with pytest.raises(KeyboardInterrupt):
        sgld.load("tiny:wan-t2v", device="cpu")
    assert seen == [True]
    assert not list(tmp_path.glob("sgld-*"))


# --- mixed layouts -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plain(tiny: Folder) -> Any:
    return latents(tiny("t2v"))


def pack(original: Path, target: Path) -> Path:
    """A single-file pack: the transformer behind its prefix, beside other components' tensors."""
    tensors = {
        weights.PACK_PREFIX + name: tensor
        for name, tensor in load_file(original / originals.TRANSFORMER_FILE).items()
    }
    tensors["first_stage_model.encoder.conv1.weight"] = torch.ones(2)
    tensors["cond_stage_model.shared.weight"] = torch.ones(2)
    save_file(tensors, target)
    return target


def test_a_single_file_pack_serves_as_transformer_weights(
    tiny: Folder, original: Folder, tmp_path: Path, plain: Any
) -> None:
    folder = copied(tiny("t2v"), tmp_path / "m")
    (folder / "transformer" / WEIGHTS).unlink()
    packed = pack(original("t2v"), tmp_path / "wan_t2v.safetensors")
    assert np.array_equal(
        latents(folder, component_weights_paths={"transformer": str(packed)}), plain
    )


@pytest.mark.parametrize("component", ["text_encoder", "vae", "transformer"])
def test_original_files_serve_in_a_diffusers_folder(
    tiny: Folder, original: Folder, component: str, plain: Any
) -> None:
    file = {
        "text_encoder": originals.TEXT_ENCODER_FILE,
        "vae": originals.VAE_FILES[0],
        "transformer": originals.TRANSFORMER_FILE,
    }[component]
    replaced = latents(
        tiny("t2v"), component_weights_paths={component: str(original("t2v") / file)},
        allow_pickle=True,
    )  # fmt: skip
    assert np.array_equal(replaced, plain)


def test_a_pack_serves_in_an_original_folder(
    tiny: Folder, original: Folder, tmp_path: Path, plain: Any
) -> None:
    packed = pack(original("t2v"), tmp_path / "pack.safetensors")
    given = {"transformer": str(packed)}
    ours = latents(original("t2v"), component_weights_paths=given, allow_pickle=True)
    assert relative_l2(ours, plain) < 1e-6


def test_diffusers_weights_in_an_original_folder_are_refused_with_the_way_out(
    tiny: Folder, original: Folder
) -> None:
    given = {"vae": str(tiny("t2v") / "vae" / WEIGHTS)}
    with pytest.raises(ModelError, match=r"'vae'.*diffusers' tensor names.*diffusers folder"):
        latents(original("t2v"), component_weights_paths=given, allow_pickle=True)


def test_weights_of_another_component_are_refused_by_tensor(tiny: Folder) -> None:
    given = {"transformer": str(tiny("t2v") / "vae" / WEIGHTS)}
    with pytest.raises(ModelError, match=r"(?s)transformer.*missing.*unexpected"):
        latents(tiny("t2v"), component_weights_paths=given)


def test_an_override_of_an_absent_component_is_refused(tiny: Folder, original: Folder) -> None:
    given = {"transformer_2": str(tiny("t2v") / "vae" / WEIGHTS)}
    with pytest.raises(ParameterError, match="transformer_2"):
        make_plan(options(tiny("t2v"), component_weights_paths=given))
    with pytest.raises(ModelError, match="component-weights-path"):
        make_plan(options(original("t2v"), component_paths={"vae": str(tiny("t2v") / "vae")}))


def test_sharded_original_weights_with_an_override(
    original: Folder, tiny: Folder, tmp_path: Path
) -> None:
    image = [np.asarray(oracle.picture(48, 32))]
    shards = load_shards(original("i2v"))
    whole = tmp_path / "whole.safetensors"
    save_file(shards, whole)
    given = {"transformer": str(whole)}
    one = latents(original("i2v"), image, allow_pickle=True)
    other = latents(original("i2v"), image, allow_pickle=True, component_weights_paths=given)
    assert np.array_equal(one, other)


def load_shards(folder: Path) -> dict[str, torch.Tensor]:
    return {k: v for file in folder.glob("*-of-*.safetensors") for k, v in load_file(file).items()}


def test_sparse_gates_are_left_out_with_a_warning(tiny: Folder, tmp_path: Path, plain: Any) -> None:
    folder = copied(tiny("t2v"), tmp_path / "m")
    path = folder / "transformer" / WEIGHTS
    tensors = load_file(path)
    for block in range(2):
        tensors[f"blocks.{block}.to_gate_compress.weight"] = torch.ones(64, 64)
        tensors[f"blocks.{block}.to_gate_compress.bias"] = torch.ones(64)
    save_file(tensors, path)
    with structlog.testing.capture_logs() as logs:
        assert np.array_equal(latents(folder), plain)
    told = [row for row in logs if "dense attention" in row["event"]]
    assert [(row["log_level"], row["component"], row["tensors"]) for row in told] == [
        ("warning", "transformer", 4)
    ]
    with structlog.testing.capture_logs() as logs:
        latents(tiny("t2v"))
    assert not [row for row in logs if "dense attention" in row["event"]]


# --- sizes ---------------------------------------------------------------------------------------

BILLIONS = {
    "wan2.1-t2v-1.3b": {"transformer": 1.42},
    "wan2.1-t2v-14b": {"transformer": 14.29},
    "wan2.1-i2v-14b-480p": {"transformer": 16.40, "image_encoder": 0.631},
    "wan2.2-t2v-a14b": {"transformer": 14.29, "transformer_2": 14.29},
    "wan2.2-i2v-a14b": {"transformer": 14.29, "transformer_2": 14.29},
    "wan2.2-ti2v-5b": {"transformer": 5.00, "vae": 0.705},
}


@pytest.mark.parametrize("name", BILLIONS)
def test_every_blueprint_has_its_real_size_through_the_loader(name: str) -> None:
    plan = make_plan(options(f"config:{name}", load_format="dummy", device="cpu", dtype="bfloat16"))
    try:
        found = weigh(plan)
        rows = memory_plan(plan)
    finally:
        plan.close()
    wanted: dict[str, float] = {"text_encoder": 5.681, "vae": 0.127, **BILLIONS[name]}
    assert set(found) == set(wanted)
    for component, billions in wanted.items():
        assert found[component].parameters / 1e9 == pytest.approx(billions, abs=0.006), component
    transformer = found["transformer"]
    # Norms, time embedder and modulation stay float32; the rest has two bytes.
    assert 2.0 < transformer.bytes / transformer.parameters < 2.1
    assert transformer.streamed < transformer.bytes / 5
    assert {row["name"]: row["bytes"] for row in rows} == dict.fromkeys(wanted)
    assert device_bytes(rows) is None


def test_memory_of_a_checkpoint_under_each_residency(tiny: Folder, original: Folder) -> None:
    resident = memory_plan(make_plan(options(tiny("t2v_a14b"), dtype="float32")))
    sizes = {row["name"]: row["bytes"] for row in resident}
    for name, size in sizes.items():
        stored = load_file(weight_file(tiny("t2v_a14b") / name))
        assert size == sum(tensor.nbytes for tensor in stored.values())
    total = sum(sizes.values())
    assert device_bytes(resident) == {"resident": total, "visiting": 0, "total": total}
    modes = {"all": "component-offload", "vae": "resident"}
    moved = memory_plan(make_plan(options(tiny("t2v_a14b"), dtype="float32", residency=modes)))
    most = max(size for name, size in sizes.items() if name != "vae")
    assert device_bytes(moved) == {
        "resident": sizes["vae"], "visiting": most, "total": sizes["vae"] + most,
    }  # fmt: skip
    modes = {"dit": "layerwise-offload"}
    streamed = memory_plan(make_plan(options(tiny("t2v_a14b"), dtype="bfloat16", residency=modes)))
    row = next(row for row in streamed if row["name"] == "transformer")
    assert row["bytes"] == sizes["transformer"] // 2
    assert row["device_bytes"] == row["bytes"]  # the tiny model has just the two layers
    unread = memory_plan(make_plan(options(original("t2v"))))
    known = {row["name"]: row["bytes"] for row in unread}
    assert known == {"transformer": sizes_of(original("t2v")), "text_encoder": None, "vae": None}
    assert device_bytes(unread) is None


def sizes_of(folder: Path) -> int:
    return sum(t.nbytes for t in load_file(folder / originals.TRANSFORMER_FILE).values())


def test_layout_of_a_foreign_folder_names_both_layouts(tmp_path: Path) -> None:
    from sgld.weights.resolve import resolve

    (tmp_path / "config.json").write_text('{"model_type": "t2v"}')
    with pytest.raises(ModelError, match=r"(?s)model_index.json.*models_t5_umt5-xxl-enc-bf16.pth"):
        locate(resolve(str(tmp_path)))


@pytest.mark.parametrize("layout", ["tiny", "original"])
@pytest.mark.parametrize("streams", [True, False])
def test_channels_are_innermost_where_the_device_has_streams(
    layout: str, streams: bool, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Asked by what the device can do, so that a family nobody has thought of gets it too; and in
    either layout of a checkpoint."""
    laid_out: list[Vae] = []
    monkeypatch.setattr(loading, "torch_of", lambda _: torch.cpu if streams else None)
    monkeypatch.setattr(Vae, "lay_out", lambda vae: laid_out.append(vae))
    folder: Folder = request.getfixturevalue(layout)
    given = options(folder("t2v"), device="cpu", allow_pickle=True)
    with EngineRig(make_plan(given)):
        assert len(laid_out) == streams
