"""Name maps of the original FLUX.1 files: against diffusers' converters, and there and back."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers.loaders import single_file_utils
from safetensors.torch import load_file

from sgld.weights.mapping import make_plan
from sgld_flux import weights
from sgld_flux.models.config1 import transformer_config, vae_config

WIDTH = 3072
Folder = Callable[[str], Path]


def converted(component: str, stored: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A whole file under our names."""
    names = weights.name_map(component, stored)
    renamed = {new: tensor for name, tensor in stored.items() if (new := names.rename(name))}
    targets = names.convert(frozenset(renamed))
    used = {source for target in targets for source in target.sources}
    result = {name: tensor for name, tensor in renamed.items() if name not in used}
    for target in targets:
        assert target.combine is not None
        result[target.name] = target.combine([renamed[source] for source in target.sources])
    return result


def assert_same(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    assert set(found) == set(wanted)
    for name, tensor in wanted.items():
        assert torch.equal(found[name], tensor), name


def tall(guided: bool) -> dict[str, torch.Tensor]:
    """An original transformer with the released heights, which diffusers' converter wants, and
    matrices 2 wide: every row is known, at 3 MB."""
    streams = ("img", "txt")
    rows = {"final_layer.linear": 64, "final_layer.adaLN_modulation.1": 2 * WIDTH}
    rows |= {"img_in": WIDTH, "txt_in": WIDTH}
    for name in ("time_in", "vector_in", *(("guidance_in",) if guided else ())):
        rows |= {f"{name}.in_layer": WIDTH, f"{name}.out_layer": WIDTH}
    for stream in streams:
        rows |= {
            f"double_blocks.0.{stream}_mod.lin": 6 * WIDTH,
            f"double_blocks.0.{stream}_attn.qkv": 3 * WIDTH,
            f"double_blocks.0.{stream}_attn.proj": WIDTH,
            f"double_blocks.0.{stream}_mlp.0": 4 * WIDTH,
            f"double_blocks.0.{stream}_mlp.2": WIDTH,
        }
    rows |= {
        "single_blocks.0.modulation.lin": 3 * WIDTH,
        "single_blocks.0.linear1": 7 * WIDTH,
        "single_blocks.0.linear2": WIDTH,
    }
    draw = torch.Generator().manual_seed(int(guided))
    made: dict[str, torch.Tensor] = {}
    for name, height in rows.items():
        made[f"{name}.weight"] = torch.randn(height, 2, generator=draw)
        made[f"{name}.bias"] = torch.randn(height, generator=draw)
    norms = [f"double_blocks.0.{stream}_attn.norm" for stream in streams]
    for name in (*norms, "single_blocks.0.norm"):
        for part in ("query_norm", "key_norm"):
            made[f"{name}.{part}.scale"] = torch.randn(128, generator=draw)
    return made


@pytest.mark.parametrize("guided", [True, False])
@pytest.mark.parametrize("prefix", ["", weights.PACK_PREFIX])
def test_transformer_names_as_diffusers_converts_them(guided: bool, prefix: str) -> None:
    stored = {prefix + name: tensor for name, tensor in tall(guided).items()}
    wanted = single_file_utils.convert_flux_transformer_checkpoint_to_diffusers(dict(stored))
    if prefix:
        stored["first_stage_model.decoder.conv_in.weight"] = torch.zeros(1)
    assert_same(converted("transformer", stored), wanted)


def test_vae_names_as_diffusers_converts_them(original: Folder, tiny: Folder) -> None:
    stored = load_file(original("dev") / "ae.safetensors")
    config = json.loads((tiny("dev") / "vae/config.json").read_text())
    wanted = single_file_utils.convert_ldm_vae_checkpoint(dict(stored), config)
    assert_same(converted("vae", stored), wanted)


@pytest.mark.parametrize("variant", ["dev", "schnell"])
def test_there_and_back(variant: str, tiny: Folder) -> None:
    for component, back in (
        ("transformer", weights.original_transformer),
        ("vae", weights.original_vae),
    ):
        ours = load_file(tiny(variant) / component / "diffusion_pytorch_model.safetensors")
        stored = back(ours)
        assert set(stored).isdisjoint(ours) or component == "vae"
        assert weights.is_original(component, stored)
        assert not weights.is_original(component, ours)
        assert_same(converted(component, stored), ours)


@pytest.mark.parametrize("variant", ["dev", "schnell"])
def test_sizes_are_read_off_the_shapes(variant: str, tiny: Folder, original: Folder) -> None:
    name = f"flux1-{variant}.safetensors"
    for component, file, read in (
        ("transformer", name, transformer_config),
        ("vae", "ae.safetensors", vae_config),
    ):
        shapes = {k: tuple(v.shape) for k, v in load_file(original(variant) / file).items()}
        written = json.loads((tiny(variant) / component / "config.json").read_text())
        found = read(shapes)
        if written.get("out_channels", 0) is None:  # null means: as many as go in
            written["out_channels"] = written["in_channels"]
        assert found == {key: written[key] for key in found}


def test_the_released_sizes_are_read_right() -> None:
    """19 and 38 blocks of width 3072, from names and shapes as the released file has them."""
    one = {name: tuple(tensor.shape) for name, tensor in tall(True).items()}
    shapes = dict(one)
    for name, shape in one.items():
        count = 19 if name.startswith("double_blocks") else 38
        if "_blocks.0." in name:
            shapes |= {name.replace(".0.", f".{i}.", 1): shape for i in range(count)}
    shapes["img_in.weight"] = (3072, 64)
    shapes["txt_in.weight"] = (3072, 4096)
    shapes["vector_in.in_layer.weight"] = (3072, 768)
    assert transformer_config(shapes) == {
        "_class_name": "FluxTransformer2DModel", "attention_head_dim": 128,
        "axes_dims_rope": [16, 56, 56], "guidance_embeds": True, "in_channels": 64,
        "joint_attention_dim": 4096, "num_attention_heads": 24, "num_layers": 19,
        "num_single_layers": 38, "out_channels": 64, "patch_size": 1, "pooled_projection_dim": 768,
    }  # fmt: skip


@pytest.mark.parametrize(
    "name",
    ["double_blocks.0.img_attn.unheard.weight", "lora.down", "single_blocks.x.linear1.weight"],
)
def test_unknown_names_stay_and_are_reported(name: str) -> None:
    names = weights.name_map("transformer", [name])
    plan = make_plan({}, {name: (2, 2)}, rename=names.rename, convert=names.convert)
    assert plan.problems.unexpected == (name,)


def test_a_fused_tensor_of_another_height_is_a_wrong_shape() -> None:
    with pytest.raises(ValueError, match="not 7 equal parts"):
        weights.rows(7, 0, 1)([torch.zeros(15, 2)])
