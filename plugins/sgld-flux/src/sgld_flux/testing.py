"""Tiny random FLUX.1 checkpoints: the real folder layout and every code path, under 5 MB each.

- `tiny_dev(folder)`, `tiny_schnell(folder)` write a complete checkpoint in diffusers layout.
- `original_layout(source, target)` rewrites one of them as original files, `flux1-….safetensors`
  and `ae.safetensors`, beside the folders of the text encoders and tokenizers.

The widths are small but nothing else is: 64 packed channels, the real latent statistics, stride and
text lengths, and no tensor at zero, so that an error anywhere changes the picture. The bytes do not
depend on the machine or the run.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from sgld.testing.encoders import save
from sgld.testing.randomness import reinitialise
from sgld_flux import blueprints, weights
from sgld_flux.layout import NAMES, VAE_FILE

TEXT_WIDTH = 32
POOLED_WIDTH = 24
HEAD = 32
HEADS = 2


def tiny_dev(folder: Path) -> None:
    """FLUX.1 [dev]: embedded guidance, dynamic shift."""
    write(folder, guided=True, seed=1)


def tiny_schnell(folder: Path) -> None:
    """FLUX.1 [schnell]: no guidance input, no shift."""
    write(folder, guided=False, seed=2)


def write(folder: Path, *, guided: bool, seed: int) -> None:
    """Write a checkpoint into `folder`, which is created if it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    blueprints.write_common(folder, guided=guided)
    save(_clip(10 + seed), folder / "text_encoder")
    save(_t5(20 + seed), folder / "text_encoder_2")
    save(tiny_transformer(30 + seed, guided=guided), folder / "transformer")
    save(_vae(40 + seed), folder / "vae")


def tiny_transformer(seed: int, *, guided: bool) -> Any:
    """diffusers' transformer with two double and two single blocks of width 64, in float32."""
    from diffusers.models.transformers.transformer_flux import (  # noqa: PLC0415
        FluxTransformer2DModel,
    )

    model: Any = FluxTransformer2DModel(
        num_layers=2,
        num_single_layers=2,
        attention_head_dim=HEAD,
        num_attention_heads=HEADS,
        joint_attention_dim=TEXT_WIDTH,
        pooled_projection_dim=POOLED_WIDTH,
        guidance_embeds=guided,
        axes_dims_rope=(HEAD // 8, 7 * HEAD // 16, 7 * HEAD // 16),
    )
    reinitialise(model, seed)
    for block in model.transformer_blocks:
        # A prompt fills few of the text rows; sharper attention lets it move the result.
        block.attn.norm_added_k.weight.mul_(2)
    return model


def _clip(seed: int) -> Any:
    from transformers import CLIPTextConfig, CLIPTextModel  # noqa: PLC0415

    config = blueprints.clip_config(
        hidden_size=POOLED_WIDTH,
        intermediate_size=37,
        num_attention_heads=4,
        num_hidden_layers=2,
        projection_dim=POOLED_WIDTH,
        vocab_size=514,
    )
    return reinitialise(CLIPTextModel(CLIPTextConfig.from_dict(config)), seed)


def _t5(seed: int) -> Any:
    from transformers import T5Config, T5EncoderModel  # noqa: PLC0415

    config = blueprints.t5_config(
        d_ff=37, d_kv=8, d_model=TEXT_WIDTH, num_heads=4, num_layers=2, vocab_size=128
    )
    return reinitialise(T5EncoderModel(T5Config.from_dict(config)), seed)


def _vae(seed: int) -> Any:
    from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL  # noqa: PLC0415

    config = blueprints.vae_config(block_out_channels=[32, 32, 32, 32], layers_per_block=1)
    vae: Any = AutoencoderKL.from_config(config)
    reinitialise(vae, seed)
    # The last convolution follows a norm: half weights keep pixels well inside [-1, 1].
    vae.decoder.conv_out.weight.mul_(0.5)
    return vae


def original_layout(source: Path, target: Path, *, name: str = "") -> None:
    """Rewrite the checkpoint `source` (diffusers layout) in the original one.

    `name` is another name for the transformer's file.
    """
    target.mkdir(parents=True, exist_ok=True)
    config = json.loads((source / "transformer/config.json").read_text(encoding="utf-8"))
    name = name or NAMES[config["guidance_embeds"]]
    _save(weights.original_transformer(_load(source / "transformer")), target / name)
    _save(weights.original_vae(_load(source / "vae")), target / VAE_FILE)
    for folder in ("text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2"):
        shutil.copytree(source / folder, target / folder, dirs_exist_ok=True)


def _load(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file  # noqa: PLC0415

    tensors: dict[str, Any] = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors.update(load_file(path))
    return tensors


def _save(tensors: dict[str, Any], path: Path) -> None:
    from safetensors.torch import save_file  # noqa: PLC0415

    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
