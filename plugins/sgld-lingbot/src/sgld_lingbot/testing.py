"""A tiny random LingBot World checkpoint: the real layout and every code path, under 5 MB.

`tiny(folder)` writes it. As in the released folders the transformer's tensors have the names of the
original code and its configuration that code's words. The widths are small, but strides, channels,
512 text tokens and the camera are real, and no tensor is zero, so that an error anywhere changes
the frames. The bytes do not depend on the machine or the run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from sgld.testing.encoders import save, tiny_text_encoder
from sgld.testing.randomness import reinitialise
from sgld_lingbot import blueprints
from sgld_lingbot.configs import LATENT_CHANNELS, MASK_CHANNELS, TRANSFORMER_CLASS
from sgld_wan import configs, weights

WIDTH: Final = 64
HEADS: Final = 2
LAYERS: Final = 2
TEXT_WIDTH: Final = 32
CHUNK: Final = 3
WINDOW: Final = 9
SINK: Final = 3
SEED: Final = 7


def tiny(folder: Path) -> None:
    """Chunks of three latent frames, a window of nine with a sink of three, shift 5."""
    blueprints.write(
        folder, original_config(), flow_shift=5.0, vae=configs.vae_21_config(base_dim=4)
    )
    save(tiny_text_encoder(seed=10 + SEED), folder / "text_encoder")
    save(_vae(), folder / "vae")
    _save_transformer(folder / "transformer")


def original_config(**fields: Any) -> configs.Config:
    """`transformer/config.json` in the words of the original code."""
    return {
        "_class_name": TRANSFORMER_CLASS,
        "dim": WIDTH,
        "eps": 1e-6,
        "ffn_dim": 48,
        "freq_dim": 32,
        "in_dim": 2 * LATENT_CHANNELS + MASK_CHANNELS,
        "local_attn_size": WINDOW,
        "model_type": "i2v",
        "num_frames_per_block": CHUNK,
        "num_heads": HEADS,
        "num_layers": LAYERS,
        "out_dim": LATENT_CHANNELS,
        "sink_size": SINK,
        "text_dim": TEXT_WIDTH,
        "text_len": 512,
        **fields,
    }


def _save_transformer(folder: Path) -> None:
    from safetensors.torch import save_file  # noqa: PLC0415

    from sgld.ops import Ops  # noqa: PLC0415
    from sgld_lingbot.models.config import LingBotConfig  # noqa: PLC0415
    from sgld_lingbot.models.dit import LingBotTransformer  # noqa: PLC0415

    config = LingBotConfig.from_json(original_config())
    model = reinitialise(LingBotTransformer(config.wan, Ops.torch()), seed=20 + SEED)
    for block in model.blocks:
        # A prompt fills few of the 512 text rows; sharper attention lets it move the result.
        block.attn2.norm_k.weight.mul_(2)  # pyright: ignore
    tensors = {weights.original_dit(name): value for name, value in model.state_dict().items()}
    save_file(tensors, folder / "diffusion_pytorch_model.safetensors")


def _vae() -> Any:
    from diffusers.models.autoencoders.autoencoder_kl_wan import (  # noqa: PLC0415
        AutoencoderKLWan,
    )

    config = configs.vae_21_config(base_dim=4)
    fields = {name: value for name, value in config.items() if not name.startswith("_")}
    vae: Any = reinitialise(AutoencoderKLWan(**fields), seed=40 + SEED)
    # The last convolution follows a norm: half weights keep pixels well inside [-1, 1].
    vae.decoder.conv_out.weight.mul_(0.5)
    return vae
