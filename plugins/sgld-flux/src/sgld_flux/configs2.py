"""Configuration files of FLUX.2 checkpoints, as the released ones have them. Torch-free.

    index(class_name, ...)   scheduler()   transformer(...)   vae(...)   qwen3(...)   mistral3(...)

Each returns a plain dictionary; keyword arguments replace single values.
"""

from __future__ import annotations

from typing import Any

Config = dict[str, Any]


def index(class_name: str, text_encoder: str, tokenizer: str, **settings: Any) -> Config:
    """`model_index.json`; settings are further entries, such as `is_distilled`."""
    return {
        "_class_name": class_name,
        "_diffusers_version": "0.37.0.dev0",
        **settings,
        "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
        "text_encoder": ["transformers", text_encoder],
        "tokenizer": ["transformers", tokenizer],
        "transformer": ["diffusers", "Flux2Transformer2DModel"],
        "vae": ["diffusers", "AutoencoderKLFlux2"],
    }


def scheduler() -> Config:
    """`scheduler/scheduler_config.json`: exponential shift by a number given per picture."""
    return {
        "_class_name": "FlowMatchEulerDiscreteScheduler",
        "_diffusers_version": "0.37.0.dev0",
        "base_image_seq_len": 256,
        "base_shift": 0.5,
        "invert_sigmas": False,
        "max_image_seq_len": 4096,
        "max_shift": 1.15,
        "num_train_timesteps": 1000,
        "shift": 3.0,
        "shift_terminal": None,
        "stochastic_sampling": False,
        "time_shift_type": "exponential",
        "use_beta_sigmas": False,
        "use_dynamic_shifting": True,
        "use_exponential_sigmas": False,
        "use_karras_sigmas": False,
    }


def transformer(**changes: Any) -> Config:
    """`transformer/config.json`, of dev unless changed."""
    return {
        "_class_name": "Flux2Transformer2DModel",
        "_diffusers_version": "0.37.0.dev0",
        "attention_head_dim": 128,
        "axes_dims_rope": [32, 32, 32, 32],
        "eps": 1e-06,
        "guidance_embeds": True,
        "in_channels": 128,
        "joint_attention_dim": 15360,
        "mlp_ratio": 3.0,
        "num_attention_heads": 48,
        "num_layers": 8,
        "num_single_layers": 48,
        "out_channels": None,
        "patch_size": 1,
        "rope_theta": 2000,
        "timestep_guidance_channels": 256,
        **changes,
    }


def vae(**changes: Any) -> Config:
    """`vae/config.json`, the same in every released checkpoint."""
    return {
        "_class_name": "AutoencoderKLFlux2",
        "_diffusers_version": "0.37.0.dev0",
        "act_fn": "silu",
        "batch_norm_eps": 0.0001,
        "batch_norm_momentum": 0.1,
        "block_out_channels": [128, 256, 512, 512],
        "down_block_types": ["DownEncoderBlock2D"] * 4,
        "in_channels": 3,
        "latent_channels": 32,
        "layers_per_block": 2,
        "mid_block_add_attention": True,
        "norm_num_groups": 32,
        "out_channels": 3,
        "patch_size": [2, 2],
        "sample_size": 1024,
        "up_block_types": ["UpDecoderBlock2D"] * 4,
        "use_post_quant_conv": True,
        "use_quant_conv": True,
        **changes,
    }


def qwen3(**changes: Any) -> Config:
    """`text_encoder/config.json` of klein, Qwen3-4B unless changed."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 151643,
        "eos_token_id": 151645,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 2560,
        "initializer_range": 0.02,
        "intermediate_size": 9728,
        "max_position_embeddings": 40960,
        "max_window_layers": 36,
        "model_type": "qwen3",
        "num_attention_heads": 32,
        "num_hidden_layers": 36,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-06,
        "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"},
        "sliding_window": None,
        "tie_word_embeddings": True,
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": 151936,
        **changes,
    }


def mistral3(text: Config | None = None, vision: Config | None = None) -> Config:
    """`text_encoder/config.json` of dev, Mistral-Small-3.2-24B unless changed."""
    return {
        "architectures": ["Mistral3ForConditionalGeneration"],
        "image_token_id": 10,
        "model_type": "mistral3",
        "multimodal_projector_bias": False,
        "projector_hidden_act": "gelu",
        "spatial_merge_size": 2,
        "text_config": {
            "attention_dropout": 0.0,
            "head_dim": 128,
            "hidden_act": "silu",
            "hidden_size": 5120,
            "initializer_range": 0.02,
            "intermediate_size": 32768,
            "max_position_embeddings": 131072,
            "model_type": "mistral",
            "num_attention_heads": 32,
            "num_hidden_layers": 40,
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-05,
            "rope_parameters": {"rope_theta": 1000000000.0, "rope_type": "default"},
            "sliding_window": None,
            "use_cache": True,
            "vocab_size": 131072,
            **(text or {}),
        },
        "vision_config": {
            "attention_dropout": 0.0,
            "head_dim": 64,
            "hidden_act": "silu",
            "hidden_size": 1024,
            "image_size": 1540,
            "initializer_range": 0.02,
            "intermediate_size": 4096,
            "model_type": "pixtral",
            "num_attention_heads": 16,
            "num_channels": 3,
            "num_hidden_layers": 24,
            "patch_size": 14,
            "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
            **(vision or {}),
        },
        "vision_feature_layer": -1,
    }
