"""Configuration files of SANA checkpoints as plain data: what the released folders say.

Used to write checkpoints (`blueprints`, `testing`). No torch here. Numbers are those of NVlabs/Sana
and of diffusers' conversion scripts for it, of Gemma-2-2b, and of the Wan 2.1 VAE.
"""

from __future__ import annotations

from typing import Any, Final

Config = dict[str, Any]

DIFFUSERS_VERSION: Final = "0.42.1"
RMS: Final = "rms_norm_across_heads"

# Per latent channel of the Wan 2.1 VAE, used as (z - mean) / std before the transformer.
LATENT_MEAN: Final = (
    *(-0.7571, -0.7089, -0.9113, 0.1075, -0.1745, 0.9653, -0.1517, 1.5508),
    *(0.4134, -0.0715, 0.5517, -0.3632, -0.1922, -0.9497, 0.2503, -0.2921),
)
LATENT_STD: Final = (
    *(2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743),
    *(3.2687, 2.1526, 2.8652, 1.5579, 1.6382, 1.1253, 2.8251, 1.9160),
)


def transformer_config(**fields: Any) -> Config:
    """`transformer/config.json` of a picture network; `fields` override the 1.6B sizes."""
    return {
        "_class_name": "SanaTransformer2DModel",
        "_diffusers_version": DIFFUSERS_VERSION,
        "attention_bias": False,
        "attention_head_dim": 32,
        "caption_channels": 2304,
        "cross_attention_dim": 2240,
        "cross_attention_head_dim": 112,
        "dropout": 0.0,
        "guidance_embeds": False,
        "guidance_embeds_scale": 0.1,
        "in_channels": 32,
        "interpolation_scale": None,
        "mlp_ratio": 2.5,
        "norm_elementwise_affine": False,
        "norm_eps": 1e-6,
        "num_attention_heads": 70,
        "num_cross_attention_heads": 20,
        "num_layers": 20,
        "out_channels": 32,
        "patch_size": 1,
        "qk_norm": None,
        "sample_size": 32,
        "timestep_scale": 1.0,
        **fields,
    }


def video_transformer_config(**fields: Any) -> Config:
    """`transformer/config.json` of the video network; `fields` override the 2B 480p sizes."""
    config = transformer_config(
        _class_name="SanaVideoTransformer3DModel",
        attention_head_dim=112,
        in_channels=16,
        mlp_ratio=3.0,
        num_attention_heads=20,
        out_channels=16,
        patch_size=[1, 2, 2],
        qk_norm=RMS,
        rope_max_seq_len=1024,
        sample_size=30,
    )
    del config["timestep_scale"]
    return {**config, **fields}


def vae_config(**fields: Any) -> Config:
    """`vae/config.json` of the deep-compression autoencoder f32c32; `fields` override its sizes."""
    blocks = ["ResBlock"] * 3 + ["EfficientViTBlock"] * 3
    scales: list[list[int]] = [[], [], [], [5], [5], [5]]
    return {
        "_class_name": "AutoencoderDC",
        "_diffusers_version": DIFFUSERS_VERSION,
        "attention_head_dim": 32,
        "decoder_act_fns": "silu",
        "decoder_block_out_channels": [128, 256, 512, 512, 1024, 1024],
        "decoder_block_types": blocks,
        "decoder_layers_per_block": [3, 3, 3, 3, 3, 3],
        "decoder_norm_types": "rms_norm",
        "decoder_qkv_multiscales": scales,
        "downsample_block_type": "conv",
        "encoder_block_out_channels": [128, 256, 512, 512, 1024, 1024],
        "encoder_block_types": blocks,
        "encoder_layers_per_block": [2, 2, 2, 3, 3, 3],
        "encoder_qkv_multiscales": scales,
        "in_channels": 3,
        "latent_channels": 32,
        "scaling_factor": 0.41407,
        "upsample_block_type": "interpolate",
        **fields,
    }


def video_vae_config(**fields: Any) -> Config:
    """`vae/config.json` of the Wan 2.1 VAE (16 channels, stride 4×8×8)."""
    return {
        "_class_name": "AutoencoderKLWan",
        "_diffusers_version": DIFFUSERS_VERSION,
        "attn_scales": [],
        "base_dim": 96,
        "dim_mult": [1, 2, 4, 4],
        "dropout": 0.0,
        "latents_mean": list(LATENT_MEAN),
        "latents_std": list(LATENT_STD),
        "num_res_blocks": 2,
        "temperal_downsample": [False, True, True],
        "z_dim": 16,
        **fields,
    }


def text_encoder_config(**fields: Any) -> Config:
    """`text_encoder/config.json`; `fields` override the Gemma-2-2b sizes."""
    return {
        "architectures": ["Gemma2Model"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_logit_softcapping": 50.0,
        "bos_token_id": 2,
        "eos_token_id": 1,
        "final_logit_softcapping": 30.0,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "max_position_embeddings": 8192,
        "model_type": "gemma2",
        "num_attention_heads": 8,
        "num_hidden_layers": 26,
        "num_key_value_heads": 4,
        "pad_token_id": 0,
        "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "sliding_window": 4096,
        "vocab_size": 256000,
        **fields,
    }


def flow_scheduler_config(flow_shift: float) -> Config:
    """`scheduler/scheduler_config.json`: DPM-Solver++ of order 2 on flow sigmas."""
    return {
        "_class_name": "DPMSolverMultistepScheduler",
        "_diffusers_version": DIFFUSERS_VERSION,
        "algorithm_type": "dpmsolver++",
        "final_sigmas_type": "zero",
        "flow_shift": flow_shift,
        "lower_order_final": True,
        "num_train_timesteps": 1000,
        "prediction_type": "flow_prediction",
        "solver_order": 2,
        "solver_type": "midpoint",
        "timestep_spacing": "linspace",
        "use_flow_sigmas": True,
    }


def euler_scheduler_config(shift: float) -> Config:
    """`scheduler/scheduler_config.json`: Euler on flow sigmas."""
    return {
        "_class_name": "FlowMatchEulerDiscreteScheduler",
        "_diffusers_version": DIFFUSERS_VERSION,
        "num_train_timesteps": 1000,
        "shift": shift,
    }


def trigflow_scheduler_config() -> Config:
    """`scheduler/scheduler_config.json` of SANA-Sprint."""
    return {
        "_class_name": "SCMScheduler",
        "_diffusers_version": DIFFUSERS_VERSION,
        "num_train_timesteps": 1000,
        "prediction_type": "trigflow",
        "sigma_data": 0.5,
    }


def model_index(class_name: str, *, scheduler: str, transformer: str, vae: str) -> Config:
    """`model_index.json` for a pipeline class and the classes of its parts."""
    return {
        "_class_name": class_name,
        "_diffusers_version": DIFFUSERS_VERSION,
        "scheduler": ["diffusers", scheduler],
        "text_encoder": ["transformers", "Gemma2Model"],
        "tokenizer": ["transformers", "GemmaTokenizerFast"],
        "transformer": ["diffusers", transformer],
        "vae": ["diffusers", vae],
    }
