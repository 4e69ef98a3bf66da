"""Configuration files of Wan checkpoints as plain data: what the released folders say.

Used to write checkpoints (`blueprints`, `testing`) and to stand in for the files that the original
layout does not have (`originals`). No torch here. Numbers are those of the public repositories
Wan-Video/Wan2.1 and Wan-Video/Wan2.2 and of diffusers' `AutoencoderKLWan`.
"""

from __future__ import annotations

from typing import Any, Final

Config = dict[str, Any]

DIFFUSERS_VERSION: Final = "0.42.1"

# Per latent channel, used as (z - mean) / std before the transformer.
LATENT_MEAN_21: Final = (
    *(-0.7571, -0.7089, -0.9113, 0.1075, -0.1745, 0.9653, -0.1517, 1.5508),
    *(0.4134, -0.0715, 0.5517, -0.3632, -0.1922, -0.9497, 0.2503, -0.2921),
)
LATENT_STD_21: Final = (
    *(2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743),
    *(3.2687, 2.1526, 2.8652, 1.5579, 1.6382, 1.1253, 2.8251, 1.9160),
)
LATENT_MEAN_22: Final = (
    *(-0.2289, -0.0052, -0.1323, -0.2339, -0.2799, 0.0174, 0.1838, 0.1557),
    *(-0.1382, 0.0542, 0.2813, 0.0891, 0.1570, -0.0098, 0.0375, -0.1825),
    *(-0.2246, -0.1207, -0.0698, 0.5109, 0.2665, -0.2108, -0.2158, 0.2502),
    *(-0.2055, -0.0322, 0.1109, 0.1567, -0.0729, 0.0899, -0.2799, -0.1230),
    *(-0.0313, -0.1649, 0.0117, 0.0723, -0.2839, -0.2083, -0.0520, 0.3748),
    *(0.0152, 0.1957, 0.1433, -0.2944, 0.3573, -0.0548, -0.1681, -0.0667),
)
LATENT_STD_22: Final = (
    *(0.4765, 1.0364, 0.4514, 1.1677, 0.5313, 0.4990, 0.4818, 0.5013),
    *(0.8158, 1.0344, 0.5894, 1.0901, 0.6885, 0.6165, 0.8454, 0.4978),
    *(0.5759, 0.3523, 0.7135, 0.6804, 0.5833, 1.4146, 0.8986, 0.5659),
    *(0.7069, 0.5338, 0.4889, 0.4917, 0.4069, 0.4999, 0.6866, 0.4093),
    *(0.5709, 0.6065, 0.6415, 0.4944, 0.5726, 1.2042, 0.5458, 1.6887),
    *(0.3971, 1.0600, 0.3943, 0.5537, 0.5444, 0.4089, 0.7468, 0.7744),
)


def transformer_config(**fields: Any) -> Config:
    """`transformer/config.json`; `fields` override the Wan 2.1 T2V-1.3B sizes."""
    return {
        "_class_name": "WanTransformer3DModel",
        "_diffusers_version": DIFFUSERS_VERSION,
        "added_kv_proj_dim": None,
        "attention_head_dim": 128,
        "cross_attn_norm": True,
        "eps": 1e-6,
        "ffn_dim": 8960,
        "freq_dim": 256,
        "image_dim": None,
        "in_channels": 16,
        "num_attention_heads": 12,
        "num_layers": 30,
        "out_channels": 16,
        "patch_size": [1, 2, 2],
        "pos_embed_seq_len": None,
        "qk_norm": "rms_norm_across_heads",
        "rope_max_seq_len": 1024,
        "text_dim": 4096,
        **fields,
    }


def causal_config(chunk: int, window: int, sink: int, **fields: Any) -> Config:
    """`transformer/config.json` of a causal model: chunk, window (-1: all) and sink in latent
    frames; `fields` as for `transformer_config`."""
    causal: Config = {
        "_class_name": "CausalWanTransformer3DModel",
        "local_attn_size": window,
        "num_frames_per_block": chunk,
        "sink_size": sink,
    }
    return transformer_config(**{**causal, **fields})


def vae_21_config(**fields: Any) -> Config:
    """`vae/config.json` of the 16-channel VAE (stride 4×8×8)."""
    return {
        "_class_name": "AutoencoderKLWan",
        "_diffusers_version": DIFFUSERS_VERSION,
        "attn_scales": [],
        "base_dim": 96,
        "dim_mult": [1, 2, 4, 4],
        "dropout": 0.0,
        "latents_mean": list(LATENT_MEAN_21),
        "latents_std": list(LATENT_STD_21),
        "num_res_blocks": 2,
        "temperal_downsample": [False, True, True],
        "z_dim": 16,
        **fields,
    }


def vae_22_config(**fields: Any) -> Config:
    """`vae/config.json` of the 48-channel residual VAE of TI2V-5B (stride 4×16×16)."""
    residual: Config = {
        "base_dim": 160,
        "decoder_base_dim": 256,
        "in_channels": 12,
        "is_residual": True,
        "latents_mean": list(LATENT_MEAN_22),
        "latents_std": list(LATENT_STD_22),
        "out_channels": 12,
        "patch_size": 2,
        "scale_factor_spatial": 16,
        "scale_factor_temporal": 4,
        "z_dim": 48,
    }
    return vae_21_config(**{**residual, **fields})


def text_encoder_config(**fields: Any) -> Config:
    """`text_encoder/config.json`; `fields` override the UMT5-XXL sizes."""
    return {
        "architectures": ["UMT5EncoderModel"],
        "classifier_dropout": 0.0,
        "d_ff": 10240,
        "d_kv": 64,
        "d_model": 4096,
        "decoder_start_token_id": 0,
        "dense_act_fn": "gelu_new",
        "dropout_rate": 0.1,
        "eos_token_id": 1,
        "feed_forward_proj": "gated-gelu",
        "initializer_factor": 1.0,
        "is_encoder_decoder": False,
        "is_gated_act": True,
        "layer_norm_epsilon": 1e-6,
        "model_type": "umt5",
        "num_decoder_layers": 24,
        "num_heads": 64,
        "num_layers": 24,
        "pad_token_id": 0,
        "relative_attention_max_distance": 128,
        "relative_attention_num_buckets": 32,
        "scalable_attention": True,
        "vocab_size": 256384,
        **fields,
    }


def image_encoder_config(**fields: Any) -> Config:
    """`image_encoder/config.json`; `fields` override the CLIP ViT-H/14 sizes."""
    return {
        "architectures": ["CLIPVisionModel"],
        "attention_dropout": 0.0,
        "hidden_act": "gelu",
        "hidden_size": 1280,
        "image_size": 224,
        "intermediate_size": 5120,
        "layer_norm_eps": 1e-5,
        "model_type": "clip_vision_model",
        "num_attention_heads": 16,
        "num_channels": 3,
        "num_hidden_layers": 32,
        "patch_size": 14,
        "projection_dim": 1024,
        **fields,
    }


def scheduler_config(flow_shift: float) -> Config:
    """`scheduler/scheduler_config.json`: UniPC of order 2 on flow sigmas with a static shift."""
    return {
        "_class_name": "UniPCMultistepScheduler",
        "_diffusers_version": DIFFUSERS_VERSION,
        "disable_corrector": [],
        "final_sigmas_type": "zero",
        "flow_shift": flow_shift,
        "lower_order_final": True,
        "num_train_timesteps": 1000,
        "predict_x0": True,
        "prediction_type": "flow_prediction",
        "solver_order": 2,
        "solver_type": "bh2",
        "timestep_spacing": "linspace",
        "use_flow_sigmas": True,
    }


def model_index(
    class_name: str, *, experts: int = 1, image_encoder: bool = False, **scalars: Any
) -> Config:
    """`model_index.json` for a pipeline class.

    `experts` 2 names `transformer_2`; `scalars` are further entries (`boundary_ratio`,
    `expand_timesteps`). Image-to-video classes list the image encoder even when they have none.
    """
    index: Config = {
        "_class_name": class_name,
        "_diffusers_version": DIFFUSERS_VERSION,
        "scheduler": ["diffusers", "UniPCMultistepScheduler"],
        "text_encoder": ["transformers", "UMT5EncoderModel"],
        "tokenizer": ["transformers", "T5TokenizerFast"],
        "transformer": ["diffusers", "WanTransformer3DModel"],
        "vae": ["diffusers", "AutoencoderKLWan"],
    }
    if image_encoder:
        index["image_encoder"] = ["transformers", "CLIPVisionModel"]
        index["image_processor"] = ["transformers", "CLIPImageProcessor"]
    elif class_name == "WanImageToVideoPipeline":
        index["image_encoder"] = [None, None]
        index["image_processor"] = [None, None]
    if experts == 2:
        index["transformer_2"] = ["diffusers", "WanTransformer3DModel"]
    return {**index, **scalars}
