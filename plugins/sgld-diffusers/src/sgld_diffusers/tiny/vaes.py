"""Small random autoencoders with the real strides, in float32.

The last convolution of each follows a norm; its weights are made smaller, which keeps pixels
inside [-1, 1], where no difference is cut off.
"""

from __future__ import annotations

from typing import Any

from sgld_diffusers.tiny.writing import network


def kl(seed: int, channels: int = 4, **fields: Any) -> Any:
    """`AutoencoderKL` with four levels, 8 pixels per latent; `fields` override its settings."""
    settings: dict[str, Any] = {
        "block_out_channels": (8, 8, 8, 8),
        "down_block_types": ("DownEncoderBlock2D",) * 4,
        "up_block_types": ("UpDecoderBlock2D",) * 4,
        "latent_channels": channels,
        "layers_per_block": 1,
        "norm_num_groups": 4,
        "sample_size": 64,
        **fields,
    }
    return _soft(network("AutoencoderKL", seed, **settings))


def flow_kl(seed: int, **fields: Any) -> Any:
    """`AutoencoderKL` as flow-matching models have it: 16 channels, shifted, no `quant` layers."""
    settings: dict[str, Any] = {
        "force_upcast": True,
        "scaling_factor": 0.3611,
        "shift_factor": 0.1159,
        "use_post_quant_conv": False,
        "use_quant_conv": False,
        **fields,
    }
    return kl(seed, 16, **settings)


def qwen_image(seed: int, blocks: int = 1) -> Any:
    """`AutoencoderKLQwenImage`: a video autoencoder that is given one frame, 8 pixels a latent.

    Editing encodes every picture at a million pixels; with `blocks` 0 that takes a second.
    """
    widths = [1, 1, 1, 1] if blocks == 0 else [1, 1, 2, 2]
    made = network(
        "AutoencoderKLQwenImage", seed, base_dim=4, dim_mult=widths, num_res_blocks=blocks
    )
    return _soft(made)


def wan(seed: int) -> Any:
    """`AutoencoderKLWan`: 4 frames and 8 pixels a latent."""
    made = network("AutoencoderKLWan", seed, base_dim=4, dim_mult=[1, 1, 2, 2], num_res_blocks=1)
    return _soft(made)


def hunyuan_video(seed: int) -> Any:
    """`AutoencoderKLHunyuanVideo`: 4 frames and 8 pixels a latent."""
    made = network(
        "AutoencoderKLHunyuanVideo",
        seed,
        block_out_channels=(8, 8, 8, 8),
        layers_per_block=1,
        norm_num_groups=4,
    )
    return _soft(made)


def ltx(seed: int, channels: int) -> Any:
    """`AutoencoderKLLTXVideo`: 8 frames and 32 pixels a latent."""
    made = network(
        "AutoencoderKLLTXVideo",
        seed,
        block_out_channels=(8, 8, 8, 8),
        decoder_block_out_channels=(8, 8, 8, 8),
        decoder_layers_per_block=(1, 1, 1, 1, 1),
        latent_channels=channels,
        layers_per_block=(1, 1, 1, 1, 1),
    )
    # Statistics of the latents, which the released checkpoint has too; 0 and 1 would hide them.
    made.latents_mean.copy_(made.latents_mean + 0.1)
    made.latents_std.mul_(1.2)
    return _soft(made)


def deep_compression(seed: int, channels: int) -> Any:
    """`AutoencoderDC`: 32 pixels a latent."""
    made = network(
        "AutoencoderDC",
        seed,
        attention_head_dim=4,
        decoder_act_fns="silu",
        decoder_block_out_channels=(8,) * 6,
        decoder_block_types=("ResBlock",) * 3 + ("EfficientViTBlock",) * 3,
        decoder_layers_per_block=(1,) * 6,
        encoder_block_out_channels=(8,) * 6,
        encoder_block_types=("ResBlock",) * 3 + ("EfficientViTBlock",) * 3,
        encoder_layers_per_block=(1,) * 6,
        latent_channels=channels,
        scaling_factor=0.41407,
        upsample_block_type="interpolate",
    )
    return _soft(made)


def cogvideox(seed: int) -> Any:
    """`AutoencoderKLCogVideoX`: 4 frames and 8 pixels a latent."""
    made = network(
        "AutoencoderKLCogVideoX",
        seed,
        block_out_channels=(8, 8, 8, 8),
        latent_channels=4,
        layers_per_block=1,
        norm_num_groups=4,
        sample_height=64,
        sample_width=64,
    )
    return _soft(made, 0.25)


def mochi(seed: int) -> Any:
    """`AutoencoderKLMochi`: 6 frames and 8 pixels a latent."""
    made = network(
        "AutoencoderKLMochi",
        seed,
        decoder_block_out_channels=(32, 32, 32, 32),
        encoder_block_out_channels=(32, 32, 32, 32),
        layers_per_block=(1, 1, 1, 1, 1),
    )
    return _soft(made, 0.25)


def _soft(vae: Any, by: float = 0.5) -> Any:
    decoder = vae.decoder
    last = getattr(decoder, "conv_out", None)
    last = decoder.proj_out if last is None else last
    getattr(last, "conv", last).weight.mul_(by)
    return vae
