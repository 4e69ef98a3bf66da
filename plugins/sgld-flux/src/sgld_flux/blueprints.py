"""FLUX.1 checkpoints as plain data: what the released folders say, and full-size ones as
configuration only, for `--load-format dummy`.

Each blueprint `(folder: Path) -> None` writes `model_index.json`, a `config.json` per component,
the scheduler, and two small character tokenizers; no weights and no network, well under a second.
Sizes are those of the released models, so memory and speed are real. No torch here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from sgld.testing.encoders import write_character_tokenizer

Config = dict[str, Any]

DIFFUSERS_VERSION: Final = "0.30.0"
CLIP_START, CLIP_END = "<|startoftext|>", "<|endoftext|>"


def flux1_dev(folder: Path) -> None:
    """FLUX.1 [dev]: 19 double and 38 single blocks of width 3072, embedded guidance."""
    write_configs(folder, guided=True)


def flux1_schnell(folder: Path) -> None:
    """FLUX.1 [schnell]: the same network without the guidance input."""
    write_configs(folder, guided=False)


def write_configs(folder: Path, *, guided: bool) -> None:
    """Write the configurations of a full-size checkpoint into `folder`."""
    write_common(folder, guided=guided)
    write_json(folder / "transformer/config.json", transformer_config(guidance_embeds=guided))
    write_json(folder / "vae/config.json", vae_config())
    write_json(folder / "text_encoder/config.json", clip_config())
    write_json(folder / "text_encoder_2/config.json", t5_config())


def write_common(folder: Path, *, guided: bool) -> None:
    """Write what does not depend on sizes: the index, the scheduler and two tokenizers."""
    write_json(folder / "model_index.json", model_index())
    write_json(folder / "scheduler/scheduler_config.json", scheduler_config(guided=guided))
    write_clip_tokenizer(folder / "tokenizer")
    write_character_tokenizer(folder / "tokenizer_2")


def model_index() -> Config:
    """`model_index.json`."""
    return {
        "_class_name": "FluxPipeline",
        "_diffusers_version": DIFFUSERS_VERSION,
        "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
        "text_encoder": ["transformers", "CLIPTextModel"],
        "text_encoder_2": ["transformers", "T5EncoderModel"],
        "tokenizer": ["transformers", "CLIPTokenizer"],
        "tokenizer_2": ["transformers", "T5TokenizerFast"],
        "transformer": ["diffusers", "FluxTransformer2DModel"],
        "vae": ["diffusers", "AutoencoderKL"],
    }


def transformer_config(**fields: Any) -> Config:
    """`transformer/config.json`; `fields` override the released sizes."""
    return {
        "_class_name": "FluxTransformer2DModel",
        "_diffusers_version": DIFFUSERS_VERSION,
        "attention_head_dim": 128,
        "axes_dims_rope": [16, 56, 56],
        "guidance_embeds": False,
        "in_channels": 64,
        "joint_attention_dim": 4096,
        "num_attention_heads": 24,
        "num_layers": 19,
        "num_single_layers": 38,
        "out_channels": None,
        "patch_size": 1,
        "pooled_projection_dim": 768,
        **fields,
    }


def vae_config(**fields: Any) -> Config:
    """`vae/config.json`; `fields` override the released sizes."""
    config: Config = {
        "_class_name": "AutoencoderKL",
        "_diffusers_version": DIFFUSERS_VERSION,
        "act_fn": "silu",
        "block_out_channels": [128, 256, 512, 512],
        "force_upcast": True,
        "in_channels": 3,
        "latent_channels": 16,
        "latents_mean": None,
        "latents_std": None,
        "layers_per_block": 2,
        "mid_block_add_attention": True,
        "norm_num_groups": 32,
        "out_channels": 3,
        "sample_size": 1024,
        "scaling_factor": 0.3611,
        "shift_factor": 0.1159,
        "use_post_quant_conv": False,
        "use_quant_conv": False,
        **fields,
    }
    levels = len(config["block_out_channels"])
    config["down_block_types"] = ["DownEncoderBlock2D"] * levels
    config["up_block_types"] = ["UpDecoderBlock2D"] * levels
    return config


def clip_config(**fields: Any) -> Config:
    """`text_encoder/config.json`; `fields` override the sizes of CLIP ViT-L/14's text tower."""
    return {
        "architectures": ["CLIPTextModel"],
        "attention_dropout": 0.0,
        "bos_token_id": 0,
        "dropout": 0.0,
        # As released: not the tokenizer's end token, which transformers takes as "the largest id".
        "eos_token_id": 2,
        "hidden_act": "quick_gelu",
        "hidden_size": 768,
        "intermediate_size": 3072,
        "layer_norm_eps": 1e-5,
        "max_position_embeddings": 77,
        "model_type": "clip_text_model",
        "num_attention_heads": 12,
        "num_hidden_layers": 12,
        "pad_token_id": 1,
        "projection_dim": 768,
        "vocab_size": 49408,
        **fields,
    }


def t5_config(**fields: Any) -> Config:
    """`text_encoder_2/config.json`; `fields` override the sizes of T5 v1.1 XXL."""
    return {
        "architectures": ["T5EncoderModel"],
        "d_ff": 10240,
        "d_kv": 64,
        "d_model": 4096,
        "decoder_start_token_id": 0,
        "dense_act_fn": "gelu_new",
        "dropout_rate": 0.1,
        "eos_token_id": 1,
        "feed_forward_proj": "gated-gelu",
        "is_encoder_decoder": True,
        "is_gated_act": True,
        "layer_norm_epsilon": 1e-6,
        "model_type": "t5",
        "num_decoder_layers": 24,
        "num_heads": 64,
        "num_layers": 24,
        "pad_token_id": 0,
        "relative_attention_max_distance": 128,
        "relative_attention_num_buckets": 32,
        "tie_word_embeddings": False,
        "vocab_size": 32128,
        **fields,
    }


def scheduler_config(*, guided: bool) -> Config:
    """`scheduler/scheduler_config.json`: dynamic shift for dev, none for schnell."""
    return {
        "_class_name": "FlowMatchEulerDiscreteScheduler",
        "_diffusers_version": DIFFUSERS_VERSION,
        "base_image_seq_len": 256,
        "base_shift": 0.5,
        "max_image_seq_len": 4096,
        "max_shift": 1.15,
        "num_train_timesteps": 1000,
        "shift": 3.0 if guided else 1.0,
        "use_dynamic_shifting": guided,
    }


def write_clip_tokenizer(folder: Path) -> None:
    """Write a CLIP tokenizer with one token per byte, alone and at the end of a word.

    514 tokens: 256 bytes, the same with `</w>`, start 512, and 513, which ends and pads.
    """
    letters = _byte_letters()
    names = [*letters, *(f"{letter}</w>" for letter in letters), CLIP_START, CLIP_END]
    write_json(folder / "vocab.json", {name: index for index, name in enumerate(names)})
    (folder / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")
    settings = {
        "bos_token": CLIP_START,
        "do_lower_case": True,
        "eos_token": CLIP_END,
        "errors": "replace",
        "model_max_length": 77,
        "pad_token": CLIP_END,
        "tokenizer_class": "CLIPTokenizer",
        "unk_token": CLIP_END,
    }
    write_json(folder / "tokenizer_config.json", settings)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented UTF-8 JSON, creating the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _byte_letters() -> list[str]:
    """A printable letter for every byte, as byte-level tokenizers write them: printable Latin-1 as
    it is, the other bytes from U+0100 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return [*map(chr, printable), *(chr(256 + index) for index in range(len(others)))]
