"""Loads SANA's components from the diffusers layout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from sgld.api.errors import ModelError
from sgld.engine.loading import Loader
from sgld.engine.pipeline import Loaded
from sgld.stages.latent_scale import ChannelScale
from sgld.weights.layout import Located
from sgld_sana.models.config import SanaConfig
from sgld_sana.models.dit import SanaTransformer
from sgld_sana.models.text import TextEncoder
from sgld_sana.models.vae import ImageVae, VideoVae
from sgld_sana.schedulers import check_scheduler
from sgld_sana.stages.decode import ImageScale

WRAPPED = "model."
"""Wrapped library modules carry this prefix in our module's state dict."""
NEEDED = ("text_encoder", "transformer", "vae")


def load_sana(loader: Loader, *, video: bool = False, trigflow: bool = False) -> Loaded:
    """Every component of a SANA checkpoint, and the light parts its stages use.

    The light parts come first, and what does not fit together is refused then: nobody should wait
    for the weights to hear of it.
    """
    located = loader.located
    missing = [name for name in NEEDED if name not in located]
    if missing:
        raise ModelError(
            f"the checkpoint has no {' and no '.join(map(repr, missing))}.",
            code="checkpoint_incomplete",
            remedy="Fetch the whole checkpoint again.",
        )
    config, vae = SanaConfig.from_json(located["transformer"].config), located["vae"].config
    stride = _stride(vae, video=video)
    _check(config, located, video=video, trigflow=trigflow)
    loaded = Loaded()
    loaded.parts = {
        "tokenizer": _tokenizer(loader),
        "scheduler": _scheduler(loader, trigflow=trigflow),
        "config": config,
        "latent_scale": _scale(vae, video=video),
        "vae_stride": stride,
        "vae_dtype": loader.dtypes["vae"],
        "text_dtype": loader.dtypes["text_encoder"],
        "compute_dtype": loader.dtypes["transformer"],
    }
    loaded.modules = {
        "text_encoder": _text_encoder(loader, located["text_encoder"]),
        "transformer": loader.module("transformer", lambda: SanaTransformer(config, loader.ops)),
        "vae": _vae(loader, vae, video=video),
    }
    return loaded


def _check(
    config: SanaConfig, located: Mapping[str, Located], *, video: bool, trigflow: bool
) -> None:
    """Refuse a checkpoint whose components do not belong together."""
    wrong: list[str] = []
    vae, text = located["vae"].config, located["text_encoder"].config
    if config.video != video:
        kinds = ("pictures", "videos") if video else ("videos", "pictures")
        wrong.append(f"the transformer is one for {kinds[0]}, the pipeline one for {kinds[1]}")
    if config.guidance_embeds != trigflow:
        state = "takes" if config.guidance_embeds else "does not take"
        wrong.append(f"the transformer {state} the guidance scale as an input")
    wanted = "AutoencoderKLWan" if video else "AutoencoderDC"
    if vae.get("_class_name", wanted) != wanted:
        wrong.append(f"vae/config.json has _class_name={vae['_class_name']!r}, not {wanted!r}")
    channels = vae.get("z_dim" if video else "latent_channels", 16 if video else 32)
    if channels != config.in_channels:
        wrong.append(f"the VAE has {channels} channels, the transformer {config.in_channels}")
    if text.get("hidden_size", 2304) != config.caption_channels:
        wrong.append(
            f"the text encoder is {text.get('hidden_size')} wide, caption_channels is "
            f"{config.caption_channels}"
        )
    if wrong:
        raise ModelError(
            "the components do not fit together: " + "; ".join(wrong) + ".",
            remedy="Use the components of one checkpoint that sgld-sana knows.",
        )


def _stride(vae: Mapping[str, Any], *, video: bool) -> tuple[int, int]:
    """Pixels of one latent: along time, and along both sides."""
    if video:
        return vae.get("scale_factor_temporal", 4), vae.get("scale_factor_spatial", 8)
    return 1, 2 ** (len(vae.get("encoder_block_out_channels", range(6))) - 1)


def _scale(vae: Mapping[str, Any], *, video: bool) -> ImageScale | ChannelScale:
    if video:
        return ChannelScale(vae["latents_mean"], vae["latents_std"])
    return ImageScale(vae.get("scaling_factor", 1.0))


def _text_encoder(loader: Loader, located: Located) -> nn.Module:
    def rename(name: str) -> str | None:
        # A checkpoint may hold the decoder alone, or the language model around it.
        return None if name.startswith("lm_head.") else WRAPPED + name.removeprefix("model.")

    return loader.module("text_encoder", lambda: TextEncoder(located.config), rename=rename)


def _vae(loader: Loader, config: Mapping[str, Any], *, video: bool) -> nn.Module:
    make = VideoVae if video else ImageVae
    return loader.module(
        "vae",
        lambda: make(config, tiling=loader.vae_tiling),
        rename=lambda name: WRAPPED + name,
    )


def _tokenizer(loader: Loader) -> Any:
    """Gemma's tokenizer, from the checkpoint's own files only."""
    from transformers import AutoTokenizer  # noqa: PLC0415 (5 s of imports)

    if not loader.files.exists("tokenizer"):
        raise ModelError(
            "component 'tokenizer': the folder tokenizer is missing.",
            code="checkpoint_incomplete",
            remedy="Fetch it again.",
        )
    return AutoTokenizer.from_pretrained(loader.files.path("tokenizer"), local_files_only=True)


def _scheduler(loader: Loader, *, trigflow: bool) -> Mapping[str, Any]:
    config = loader.files.read_json("scheduler/scheduler_config.json")
    if config is None:
        raise ModelError(
            "component 'scheduler': scheduler/scheduler_config.json is missing.",
            code="checkpoint_incomplete",
            remedy="Fetch the missing file.",
        )
    check_scheduler(config, trigflow=trigflow)
    return config
