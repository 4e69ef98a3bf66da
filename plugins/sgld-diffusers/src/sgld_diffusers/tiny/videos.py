"""Tiny random checkpoints of video families, one function each: `(folder: Path) -> None`.

All are complete, in diffusers' layout, below 5 MB, and made without network. The widths are small;
strides, schedulers, text lengths and every code path are those of the family.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from sgld_diffusers.tiny import text, tokenizers, vaes
from sgld_diffusers.tiny.writing import euler, made, multistep, network, write

LTX_CHANNELS: Final = 16


def hunyuan_video(folder: Path) -> None:
    """HunyuanVideo: Llama inside a long instruction, and CLIP."""
    from diffusers.pipelines.hunyuan_video.pipeline_hunyuan_video import (  # noqa: PLC0415
        DEFAULT_PROMPT_TEMPLATE,
    )

    transformer = network(
        "HunyuanVideoTransformer3DModel",
        212,
        attention_head_dim=16,
        num_attention_heads=2,
        num_layers=1,
        num_refiner_layers=1,
        num_single_layers=1,
        pooled_projection_dim=text.WIDTH,
        rope_axes_dim=(4, 6, 6),
        text_embed_dim=text.WIDTH,
    )
    write(
        folder,
        "HunyuanVideoPipeline",
        text_encoder=text.llama(211),
        tokenizer=tokenizers.llama(str(DEFAULT_PROMPT_TEMPLATE["template"])),
        transformer=transformer,
        vae=vaes.hunyuan_video(213),
        scheduler=euler(shift=7.0),
        text_encoder_2=text.clip(214),
        tokenizer_2=tokenizers.clip(),
    )


def ltx_video(folder: Path) -> None:
    """LTX-Video."""
    write(folder, "LTXPipeline", **_ltx(seed=220))


def ltx_image_to_video(folder: Path) -> None:
    """LTX-Video from a picture."""
    write(folder, "LTXImageToVideoPipeline", **_ltx(seed=230))


def kandinsky5(folder: Path) -> None:
    """Kandinsky 5 Lite, text to video."""
    transformer = network(
        "Kandinsky5Transformer3DModel",
        241,
        axes_dims=(4, 6, 6),
        ff_dim=48,
        in_text_dim=text.WIDTH,
        in_text_dim2=text.WIDTH,
        in_visual_dim=16,
        model_dim=32,
        num_text_blocks=1,
        num_visual_blocks=2,
        out_visual_dim=16,
        time_dim=32,
    )
    parts: dict[str, Any] = {
        "transformer": transformer,
        "vae": vaes.hunyuan_video(242),
        "text_encoder": text.qwen_vl(243),
        "text_encoder_2": text.clip(244),
        "tokenizer_2": tokenizers.clip(),
        "scheduler": euler(shift=5.0),
    }
    template = made("Kandinsky5T2VPipeline", **parts, tokenizer=None).prompt_template
    processor = text.qwen_vl_processor(tokenizers.qwen(template))
    write(folder, "Kandinsky5T2VPipeline", **parts, tokenizer=processor)


def wan_vace(folder: Path) -> None:
    """Wan 2.1 VACE: a video, a mask and reference pictures beside the prompt."""
    transformer = network(
        "WanVACETransformer3DModel",
        253,
        attention_head_dim=12,
        ffn_dim=32,
        freq_dim=32,
        num_attention_heads=2,
        num_layers=2,
        text_dim=text.WIDTH,
        vace_layers=[0, 1],
    )
    write(
        folder,
        "WanVACEPipeline",
        tokenizer=tokenizers.t5(),
        text_encoder=text.umt5(251),
        vae=vaes.wan(252),
        scheduler=multistep("UniPCMultistepScheduler"),
        transformer=transformer,
    )


def cogvideox(folder: Path) -> None:
    """CogVideoX 2B: text to video."""
    transformer = network(
        "CogVideoXTransformer3DModel",
        263,
        attention_head_dim=8,
        in_channels=4,
        num_attention_heads=4,
        num_layers=2,
        out_channels=4,
        sample_frames=9,
        sample_height=8,
        sample_width=8,
        text_embed_dim=text.WIDTH,
        time_embed_dim=8,
    )
    scheduler = made("CogVideoXDDIMScheduler", 
        prediction_type="v_prediction", rescale_betas_zero_snr=True, snr_shift_scale=3.0,
        timestep_spacing="trailing",
    )  # fmt: skip
    write(
        folder,
        "CogVideoXPipeline",
        tokenizer=tokenizers.t5(),
        text_encoder=text.t5(261),
        vae=vaes.cogvideox(262),
        transformer=transformer,
        scheduler=scheduler,
    )


def mochi(folder: Path) -> None:
    """Mochi 1."""
    transformer = network(
        "MochiTransformer3DModel",
        273,
        attention_head_dim=8,
        num_attention_heads=4,
        num_layers=2,
        pooled_projection_dim=16,
        text_embed_dim=text.WIDTH,
        time_embed_dim=16,
    )
    write(
        folder,
        "MochiPipeline",
        scheduler=euler(invert_sigmas=True),
        vae=vaes.mochi(271),
        text_encoder=text.t5(272),
        tokenizer=tokenizers.t5(),
        transformer=transformer,
    )


def _ltx(seed: int) -> dict[str, Any]:
    transformer = network(
        "LTXVideoTransformer3DModel",
        seed + 3,
        attention_head_dim=16,
        caption_channels=text.WIDTH,
        cross_attention_dim=32,
        in_channels=LTX_CHANNELS,
        num_attention_heads=2,
        num_layers=2,
        out_channels=LTX_CHANNELS,
    )
    scheduler = euler(
        base_image_seq_len=1024, base_shift=0.95, max_image_seq_len=4096, max_shift=2.05,
        shift_terminal=0.1, use_dynamic_shifting=True,
    )  # fmt: skip
    return {
        "scheduler": scheduler,
        "vae": vaes.ltx(seed + 1, LTX_CHANNELS),
        "text_encoder": text.t5(seed + 2),
        "tokenizer": tokenizers.t5(),
        "transformer": transformer,
    }
