"""Configuration files of LingBot World checkpoints as plain data. No torch here.

Sizes are those of the published models, which are Wan 2.1's with channels for a picture.
"""

from __future__ import annotations

from typing import Any, Final

from sgld_lingbot.plugin import CLASS_NAME
from sgld_wan import configs
from sgld_wan.configs import Config

TRANSFORMER_CLASS: Final = "CausalLingBotWorldTransformer3DModel"
LATENT_CHANNELS: Final = 16
MASK_CHANNELS: Final = 4


def transformer_config(**fields: Any) -> Config:
    """`transformer/config.json` in diffusers' words; `fields` override the 1.3B sizes."""
    channels = 2 * LATENT_CHANNELS + MASK_CHANNELS
    return {
        **configs.transformer_config(in_channels=channels),
        "_class_name": TRANSFORMER_CLASS,
        **fields,
    }


def model_index() -> Config:
    """`model_index.json`; the boundary is left over from the model with two experts."""
    return {
        **configs.model_index(CLASS_NAME, boundary_ratio=0.9),
        "image_encoder": [None, None],
        "transformer": ["diffusers", TRANSFORMER_CLASS],
    }
