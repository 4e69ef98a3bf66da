"""Loads LingBot World's components: Wan's, and a denoiser with a camera."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from sgld.api.errors import ModelError
from sgld.engine.loading import Loader
from sgld.engine.pipeline import Loaded
from sgld.ops import Ops
from sgld_lingbot.layout import read_layout
from sgld_lingbot.models.config import LingBotConfig
from sgld_lingbot.models.dit import LingBotTransformer
from sgld_wan.pipelines.loading import load_wan


def load_lingbot(loader: Loader) -> Loaded:
    """Every component, and the light parts that stages use: Wan's, `network` (`LingBotConfig`) and
    `text_length`.

    What the transformer's file says is read before the first weight is.
    """
    original = read_layout(loader.files)
    if original is not None:
        stored = original.transformers["transformer"]
    elif "transformer" in loader.located:
        stored = loader.located["transformer"].config
    else:
        raise ModelError(
            "the components do not fit together: the checkpoint has no 'transformer'.",
            code="checkpoint_incomplete",
            remedy="Fetch the whole checkpoint again.",
        )
    config = LingBotConfig.from_json(stored)
    loaded = load_wan(loader, _transformer, read=read_layout, experts=False)
    if loaded.parts["latent_channels"] != config.wan.out_channels:
        raise ModelError(
            f"the components do not fit together: the VAE has {loaded.parts['latent_channels']} "
            f"latent channels, the transformer {config.wan.out_channels}.",
            remedy="Use the VAE that the checkpoint came with.",
        )
    loaded.parts |= {"network": config, "text_length": config.text_length}
    return loaded


def _transformer(values: Mapping[str, Any], ops: Ops) -> nn.Module:
    return LingBotTransformer(LingBotConfig.from_json(values).wan, ops)
