"""Tiny random checkpoints of picture families, one function each: `(folder: Path) -> None`.

All are complete, in diffusers' layout, below 5 MB, and made without network. The widths are small;
strides, schedulers, text lengths and every code path are those of the family.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from sgld_diffusers.tiny import text, tokenizers, vaes
from sgld_diffusers.tiny.writing import euler, made, multistep, network, write

QWEN_SHIFT: Final[dict[str, Any]] = {
    "base_image_seq_len": 256,
    "base_shift": 0.5,
    "max_image_seq_len": 8192,
    "max_shift": 0.9,
    "shift_terminal": 0.02,
    "use_dynamic_shifting": True,
}


def qwen_image(folder: Path) -> None:
    """Qwen-Image."""
    write(folder, "QwenImagePipeline", **_qwen(seed=100))


def qwen_image_edit(folder: Path) -> None:
    """Qwen-Image-Edit: one picture, seen by the language model and by the transformer."""
    _qwen_edit(folder, "QwenImageEditPipeline", seed=110)


def qwen_image_edit_plus(folder: Path) -> None:
    """Qwen-Image-Edit-2509 and later: several pictures."""
    _qwen_edit(folder, "QwenImageEditPlusPipeline", seed=120)


def z_image(folder: Path) -> None:
    """Z-Image."""
    transformer = network(
        "ZImageTransformer2DModel",
        133,
        axes_dims=[8, 4, 4],
        axes_lens=[1024, 64, 64],
        cap_feat_dim=text.WIDTH,
        dim=32,
        n_heads=2,
        n_kv_heads=2,
        n_layers=2,
        n_refiner_layers=1,
    )
    write(
        folder,
        "ZImagePipeline",
        scheduler=euler(shift=6.0, use_dynamic_shifting=False),
        vae=vaes.flow_kl(131),
        text_encoder=text.qwen3(132),
        tokenizer=tokenizers.qwen(),
        transformer=transformer,
    )


def sd3(folder: Path) -> None:
    """Stable Diffusion 3.5: two CLIPs and T5."""
    transformer = network(
        "SD3Transformer2DModel",
        141,
        attention_head_dim=8,
        caption_projection_dim=32,
        dual_attention_layers=(0,),
        joint_attention_dim=2 * text.WIDTH,
        num_attention_heads=4,
        num_layers=2,
        pooled_projection_dim=2 * text.WIDTH,
        pos_embed_max_size=24,
        qk_norm="rms_norm",
        sample_size=8,
    )
    write(
        folder,
        "StableDiffusion3Pipeline",
        transformer=transformer,
        scheduler=euler(shift=3.0),
        vae=vaes.flow_kl(142, scaling_factor=1.5305, shift_factor=0.0609),
        text_encoder=text.clip(143, projection=text.WIDTH),
        tokenizer=tokenizers.clip(),
        text_encoder_2=text.clip(144, projection=text.WIDTH),
        tokenizer_2=tokenizers.clip(pad="!"),
        text_encoder_3=text.t5(145, width=2 * text.WIDTH),
        tokenizer_3=tokenizers.t5(),
    )


def sdxl(folder: Path) -> None:
    """Stable Diffusion XL's base model."""
    unet = network(
        "UNet2DConditionModel",
        154,
        addition_embed_type="text_time",
        addition_time_embed_dim=8,
        attention_head_dim=(2, 4),
        block_out_channels=(16, 32),
        cross_attention_dim=2 * text.WIDTH,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        layers_per_block=1,
        norm_num_groups=8,
        projection_class_embeddings_input_dim=6 * 8 + text.WIDTH,
        sample_size=8,
        transformer_layers_per_block=(1, 2),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        use_linear_projection=True,
    )
    scheduler = made("EulerDiscreteScheduler", 
        beta_end=0.012, beta_schedule="scaled_linear", beta_start=0.00085, steps_offset=1,
        timestep_spacing="leading",
    )  # fmt: skip
    write(
        folder,
        "StableDiffusionXLPipeline",
        vae=vaes.kl(151, scaling_factor=0.13025),
        text_encoder=text.clip(152),
        text_encoder_2=text.clip(153, projection=text.WIDTH),
        tokenizer=tokenizers.clip(),
        tokenizer_2=tokenizers.clip(pad="!"),
        unet=unet,
        scheduler=scheduler,
        add_watermarker=False,
    )


def sd15(folder: Path) -> None:
    """Stable Diffusion 1.5 without its safety checker."""
    unet = network(
        "UNet2DConditionModel",
        163,
        attention_head_dim=4,
        block_out_channels=(16, 32),
        cross_attention_dim=text.WIDTH,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        layers_per_block=1,
        norm_num_groups=8,
        sample_size=8,
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    )
    scheduler = made("PNDMScheduler", 
        beta_end=0.012, beta_schedule="scaled_linear", beta_start=0.00085, skip_prk_steps=True,
        steps_offset=1,
    )  # fmt: skip
    write(
        folder,
        "StableDiffusionPipeline",
        vae=vaes.kl(161),
        text_encoder=text.clip(162),
        tokenizer=tokenizers.clip(),
        unet=unet,
        scheduler=scheduler,
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


def cogview4(folder: Path) -> None:
    """CogView 4."""
    transformer = network(
        "CogView4Transformer2DModel",
        173,
        attention_head_dim=16,
        condition_dim=8,
        num_attention_heads=2,
        num_layers=2,
        rope_axes_dim=(32, 32),
        sample_size=8,
        text_embed_dim=text.WIDTH,
        time_embed_dim=32,
    )
    scheduler = euler(
        base_shift=0.25, max_shift=0.75, base_image_seq_len=256, max_image_seq_len=4096,
        time_shift_type="linear", use_dynamic_shifting=True,
    )  # fmt: skip
    write(
        folder,
        "CogView4Pipeline",
        tokenizer=tokenizers.glm(),
        text_encoder=text.glm(171),
        vae=vaes.flow_kl(172, scaling_factor=1.0, shift_factor=0.0),
        transformer=transformer,
        scheduler=scheduler,
    )


def lumina2(folder: Path) -> None:
    """Lumina-Image 2.0."""
    transformer = network(
        "Lumina2Transformer2DModel",
        181,
        axes_dim_rope=(8, 4, 4),
        axes_lens=(300, 64, 64),
        cap_feat_dim=text.WIDTH,
        hidden_size=32,
        multiple_of=16,
        num_attention_heads=2,
        num_kv_heads=1,
        num_layers=2,
        num_refiner_layers=1,
        sample_size=8,
    )
    write(
        folder,
        "Lumina2Pipeline",
        transformer=transformer,
        scheduler=euler(shift=6.0),
        vae=vaes.flow_kl(182),
        text_encoder=text.gemma2(183),
        tokenizer=tokenizers.gemma(),
    )


def sana(folder: Path) -> None:
    """SANA 1.5."""
    transformer = network(
        "SanaTransformer2DModel",
        193,
        attention_head_dim=8,
        caption_channels=text.WIDTH,
        cross_attention_dim=32,
        cross_attention_head_dim=16,
        in_channels=8,
        num_attention_heads=4,
        num_cross_attention_heads=2,
        num_layers=2,
        out_channels=8,
        qk_norm="rms_norm_across_heads",
    )
    write(
        folder,
        "SanaPipeline",
        tokenizer=tokenizers.gemma(),
        text_encoder=text.gemma2(191),
        vae=vaes.deep_compression(192, 8),
        transformer=transformer,
        scheduler=multistep("DPMSolverMultistepScheduler"),
    )


def _qwen_edit(folder: Path, class_name: str, *, seed: int) -> None:
    """A Qwen-Image that sees the pictures to be edited."""
    parts = _qwen(seed, blocks=0)
    processor = text.qwen_vl_processor(parts["tokenizer"])
    write(folder, class_name, **parts, processor=processor)


def _qwen(seed: int, blocks: int = 1) -> dict[str, Any]:
    # Pictures to edit are a million pixels and 4096 tokens each: `blocks` 0 spares what it can.
    transformer = network(
        "QwenImageTransformer2DModel",
        seed + 3,
        attention_head_dim=16,
        axes_dims_rope=(8, 4, 4),
        joint_attention_dim=text.WIDTH,
        num_attention_heads=2,
        num_layers=1 if blocks == 0 else 2,
    )
    return {
        "scheduler": euler(**QWEN_SHIFT),
        "vae": vaes.qwen_image(seed + 1, blocks),
        "text_encoder": text.qwen_vl(seed + 2),
        "tokenizer": tokenizers.qwen(),
        "transformer": transformer,
    }
