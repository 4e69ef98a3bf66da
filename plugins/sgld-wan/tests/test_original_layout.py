"""Original Wan names and layout: round trips, diffusers' converters, and re-derived encoders."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from sgld.api.errors import ModelError
from sgld.ops import Ops
from sgld.testing.parity import ParityTable
from sgld.weights.checkpoint import Checkpoint
from sgld.weights.loading import load_module
from sgld_wan import originals, weights
from sgld_wan.models.config import WanConfig
from sgld_wan.models.dit import WanTransformer

Folder = Callable[[str], Path]
VARIANTS = ("t2v", "i2v", "t2v_a14b", "i2v_a14b", "ti2v_5b")
Tensors = dict[str, torch.Tensor]


class Root:
    """The part of `ModelFiles` that `read_layout` asks for."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def exists(self, relative: str) -> bool:
        return (self.root / relative).exists()

    def read_json(self, relative: str) -> dict[str, Any] | None:
        path = self.root / relative
        return json.loads(path.read_text()) if path.exists() else None


def stored(path: Path) -> Tensors:
    """Tensors of a safetensors file, an index, or a pickle."""
    if path.suffix == ".pth":
        return torch.load(path, weights_only=True)
    if path.suffix == ".json":
        files = set(json.loads(path.read_text())["weight_map"].values())
        return {k: v for file in sorted(files) for k, v in load_file(path.parent / file).items()}
    return load_file(path)


def ours(folder: Path) -> Tensors:
    return {k: v for file in folder.glob("*.safetensors") for k, v in load_file(file).items()}


def layout_of(root: Path) -> originals.OriginalLayout:
    layout = originals.read_layout(Root(root))
    assert layout is not None
    return layout


def assert_same(left: Tensors, right: Tensors) -> None:
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_component_comes_back_exactly(tiny: Folder, original: Folder, variant: str) -> None:
    root = original(variant)
    layout = layout_of(root)
    assert not list(root.rglob("model_index.json"))
    for component, file in layout.weights.items():
        converted = weights.convert_state_dict(component, stored(root / file))
        assert_same(converted, ours(tiny(variant) / component))


@pytest.mark.parametrize("variant", VARIANTS)
def test_configuration_is_recovered_from_shapes(
    tiny: Folder, original: Folder, variant: str
) -> None:
    layout = layout_of(original(variant))
    for component, file in layout.weights.items():
        shapes = {k: tuple(v.shape) for k, v in stored(original(variant) / file).items()}
        found = originals.component_config(component, layout, shapes)
        wanted = json.loads((tiny(variant) / component / "config.json").read_text())
        # Names that only say who wrote the file, or that an encoder does not read.
        skipped = {"_diffusers_version", "transformers_version", "dtype", "projection_dim"}
        assert {k: v for k, v in found.items() if k in wanted and k not in skipped} == {
            k: v for k, v in wanted.items() if k in found and k not in skipped
        }
        assert wanted.keys() - found.keys() <= {
            *skipped,
            *("is_decoder", "tie_word_embeddings", "use_cache", "scale_decoder_outputs"),
            *("initializer_factor", "initializer_range"),
            *("decoder_base_dim", "is_residual", "in_channels", "out_channels", "patch_size"),
            *("scale_factor_spatial", "scale_factor_temporal"),
        }


@pytest.mark.parametrize("variant", VARIANTS)
def test_index_says_what_the_diffusers_folder_says(
    tiny: Folder, original: Folder, variant: str
) -> None:
    wanted = json.loads((tiny(variant) / "model_index.json").read_text())
    index = layout_of(original(variant)).index
    keys = {k for k, v in wanted.items() if v is not None} - {"_diffusers_version"}
    assert {k: index.get(k) for k in keys} == {k: wanted[k] for k in keys}
    assert (original(variant) / originals.TOKENIZER_FOLDER / "tokenizer.json").exists()


def test_shards_have_an_index(original: Folder) -> None:
    layout = layout_of(original("i2v"))
    assert layout.weights["transformer"] == "diffusion_pytorch_model.safetensors.index.json"
    assert len(list(original("i2v").glob("diffusion_pytorch_model-*-of-00002.safetensors"))) == 2
    assert (
        layout_of(original("t2v")).weights["transformer"] == "diffusion_pytorch_model.safetensors"
    )


def test_a_folder_of_another_layout_is_not_taken(tiny: Folder, tmp_path: Path) -> None:
    assert originals.read_layout(Root(tiny("t2v"))) is None
    (tmp_path / "config.json").write_text('{"model_type": "umt5"}')
    (tmp_path / originals.TEXT_ENCODER_FILE).touch()
    assert originals.read_layout(Root(tmp_path)) is None
    (tmp_path / "config.json").write_text('{"_class_name": "WanModel", "model_type": "t2v"}')
    with pytest.raises(ModelError, match=r"Wan2\.1_VAE\.pth"):
        originals.read_layout(Root(tmp_path))
    (tmp_path / originals.VAE_FILES[0]).touch()
    (tmp_path / "config.json").write_text('{"_class_name": "WanModel", "model_type": "vace"}')
    with pytest.raises(ModelError, match="vace"):
        originals.read_layout(Root(tmp_path))


# Pairs read off the public sources, one of each kind.
NAMES = [
    (weights.rename_dit, "patch_embedding.weight", "patch_embedding.weight"),
    (weights.rename_dit, "time_projection.1.bias", "condition_embedder.time_proj.bias"),
    (
        weights.rename_dit,
        "model.diffusion_model.text_embedding.2.weight",
        "condition_embedder.text_embedder.linear_2.weight",
    ),
    (weights.rename_dit, "img_emb.emb_pos", "condition_embedder.image_embedder.pos_embed"),
    (weights.rename_dit, "blocks.11.modulation", "blocks.11.scale_shift_table"),
    (weights.rename_dit, "blocks.1.norm3.weight", "blocks.1.norm2.weight"),
    (weights.rename_dit, "blocks.1.norm2.weight", "blocks.1.norm3.weight"),
    (weights.rename_dit, "blocks.0.cross_attn.k_img.bias", "blocks.0.attn2.add_k_proj.bias"),
    (weights.rename_dit, "blocks.0.cross_attn.norm_k.weight", "blocks.0.attn2.norm_k.weight"),
    (weights.rename_dit, "blocks.0.cross_attn.norm_added_q.weight", None),
    (weights.rename_dit, "head.modulation", "scale_shift_table"),
    (weights.rename_dit, "no_such_tensor", "no_such_tensor"),
    (weights.rename_vae, "conv1.weight", "quant_conv.weight"),
    (
        weights.rename_vae,
        "encoder.middle.2.residual.6.bias",
        "encoder.mid_block.resnets.1.conv2.bias",
    ),
    (
        weights.rename_vae,
        "encoder.downsamples.5.time_conv.weight",
        "encoder.down_blocks.5.time_conv.weight",
    ),
    (
        weights.rename_vae,
        "decoder.upsamples.14.residual.3.gamma",
        "decoder.up_blocks.3.resnets.2.norm2.gamma",
    ),
    (
        weights.rename_vae,
        "decoder.upsamples.7.resample.1.weight",
        "decoder.up_blocks.1.upsamplers.0.resample.1.weight",
    ),
    (
        weights.rename_vae,
        "decoder.upsamples.1.upsamples.3.time_conv.bias",
        "decoder.up_blocks.1.upsampler.time_conv.bias",
    ),
    (
        weights.rename_vae,
        "encoder.downsamples.2.downsamples.0.shortcut.weight",
        "encoder.down_blocks.2.resnets.0.conv_shortcut.weight",
    ),
    (
        weights.rename_text_encoder,
        "blocks.23.ffn.gate.0.weight",
        "encoder.block.23.layer.1.DenseReluDense.wi_0.weight",
    ),
    (weights.rename_text_encoder, "norm.weight", "encoder.final_layer_norm.weight"),
    (weights.rename_image_encoder, "textual.head.0.weight", None),
    (weights.rename_image_encoder, "log_scale", None),
    (
        weights.rename_image_encoder,
        "visual.transformer.31.mlp.2.weight",
        "encoder.layers.31.mlp.fc2.weight",
    ),
]


@pytest.mark.parametrize(("rename", "name", "wanted"), NAMES)
def test_name(rename: Callable[[str], str | None], name: str, wanted: str | None) -> None:
    assert rename(name) == wanted


@pytest.mark.parametrize("module_prefix", ["", "vision_model."])
def test_saved_image_encoder_names_fit_either_spelling(module_prefix: str) -> None:
    rename = weights.rename_saved_image_encoder([f"{module_prefix}pre_layrnorm.weight"])
    for file_prefix in ("", "vision_model."):
        assert rename(f"{file_prefix}post_layernorm.bias") == f"{module_prefix}post_layernorm.bias"
        assert rename(f"{file_prefix}embeddings.position_ids") is None


@pytest.mark.parametrize("variant", ["t2v", "i2v", "i2v_a14b", "ti2v_5b"])
def test_transformer_names_agree_with_diffusers(original: Folder, variant: str) -> None:
    from diffusers.loaders.single_file_utils import convert_wan_transformer_to_diffusers

    layout = layout_of(original(variant))
    tensors = stored(original(variant) / layout.weights["transformer"])
    packed = {f"model.diffusion_model.{name}": tensor for name, tensor in tensors.items()}
    wanted = convert_wan_transformer_to_diffusers(dict(tensors))
    assert_same(weights.convert_state_dict("transformer", tensors), wanted)
    assert_same(weights.convert_state_dict("transformer", packed), wanted)


def test_vae_names_agree_with_diffusers(original: Folder) -> None:
    from diffusers.loaders.single_file_utils import convert_wan_vae_to_diffusers

    tensors = stored(original("t2v") / "Wan2.1_VAE.pth")
    assert_same(
        weights.convert_state_dict("vae", tensors), convert_wan_vae_to_diffusers(dict(tensors))
    )


def test_vae_22_names_follow_the_public_module_tree(original: Folder) -> None:
    """Module order of wan/modules/vae2_2.py: two blocks then the sampler going down, three up."""
    names = set(stored(original("ti2v_5b") / "Wan2.2_VAE.pth"))
    down = {n.removeprefix("encoder.downsamples.") for n in names if ".downsamples." in n}
    up = {n.removeprefix("decoder.upsamples.") for n in names if ".upsamples." in n}
    assert {".".join(n.split(".")[:3]) for n in down if "resample" in n} == {
        f"{stage}.downsamples.2" for stage in (0, 1, 2)
    }
    assert {".".join(n.split(".")[:3]) for n in up if "resample" in n} == {
        f"{stage}.upsamples.3" for stage in (0, 1, 2)
    }
    assert {n for n in down if "time_conv.weight" in n} == {
        "1.downsamples.2.time_conv.weight",
        "2.downsamples.2.time_conv.weight",
    }
    assert {n for n in up if "time_conv.weight" in n} == {
        "0.upsamples.3.time_conv.weight",
        "1.upsamples.3.time_conv.weight",
    }


@pytest.mark.parity
def test_text_encoder_names_mean_the_same(tiny: Folder, original: Folder) -> None:
    """The original T5 encoder, re-derived on original names, equals transformers' UMT5."""
    import oracle
    from rederived import t5_forward

    tensors = stored(original("t2v") / originals.TEXT_ENCODER_FILE)
    model = oracle.components(tiny("t2v"))["text_encoder"]
    ids = torch.tensor([[5, 9, 30, 2, 77, 41, 8, 8, 60, 1]])
    expected = model(ids).last_hidden_state
    ParityTable("umt5 on original names").check("hidden", t5_forward(tensors, ids), expected, 1e-5)


@pytest.mark.parity
def test_image_encoder_names_mean_the_same(tiny: Folder, original: Folder) -> None:
    """The original CLIP tower, re-derived on original names, equals transformers' penultimate."""
    import oracle
    from rederived import clip_forward

    tensors = stored(original("i2v") / originals.IMAGE_ENCODER_FILE)
    model = oracle.components(tiny("i2v"))["image_encoder"]
    pixels = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(3))
    expected = model(pixels, output_hidden_states=True).hidden_states[-2]
    found = clip_forward(tensors, pixels, layers=1, heads=2)
    ParityTable("clip on original names").check("penultimate", found, expected, 1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_loader_takes_the_maps(tiny: Folder, original: Folder, variant: str) -> None:
    """Original files, loaded by their maps and recovered configs, hold the diffusers weights."""
    from oracle import diffusers, transformers

    layout = layout_of(original(variant))
    for component, file in layout.weights.items():
        checkpoint = Checkpoint.open(original(variant) / file, allow_pickle=True, field=component)
        shapes = {name: tensor.shape for name, tensor in checkpoint.items()}
        config = originals.component_config(component, layout, shapes)
        names = weights.name_map(component)
        module = load_module(
            partial(build, diffusers, transformers, component, config),
            checkpoint,
            rename=names.rename,
            convert=names.convert,
            device="cpu",
            finish=number_positions,
        )
        state = module.state_dict()
        for name, tensor in ours(tiny(variant) / component).items():
            assert torch.equal(state[name], tensor), name


def number_positions(module: Any) -> None:
    """Make CLIP's position numbers, a buffer that no file holds."""
    if hasattr(module, "embeddings"):
        table = module.embeddings.position_embedding
        module.embeddings.position_ids = torch.arange(len(table.weight))[None]


def build(diffusers: Any, transformers: Any, component: str, config: dict[str, Any]) -> Any:
    if component == "text_encoder":
        return transformers.UMT5EncoderModel(transformers.UMT5Config(**config))
    if component == "image_encoder":
        return transformers.CLIPVisionModel(transformers.CLIPVisionConfig(**config))
    if component == "vae":
        return diffusers.AutoencoderKLWan.from_config(config)
    return WanTransformer(WanConfig.from_json(config), Ops.torch())
