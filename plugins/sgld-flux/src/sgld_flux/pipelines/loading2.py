"""Loads FLUX.2's components."""

from __future__ import annotations

from typing import Any

from torch import nn

from sgld.api.errors import ModelError
from sgld.engine.loading import Loader
from sgld.engine.pipeline import Loaded
from sgld_flux.models import text2, vae2
from sgld_flux.models.flux2 import Flux2Config, Flux2Transformer
from sgld_flux.params2 import GRID
from sgld_flux.stages.sampler2 import check_scheduler
from sgld_flux.stages.text2 import MistralPrompts, QwenPrompts
from sgld_flux.weights2 import convert, is_original, rename

WRAPPED = "model."
"""Wrapped library modules carry this prefix in our module's state dict."""
NEEDED = ("transformer", "vae", "text_encoder")


def load_flux2(loader: Loader) -> Loaded:
    """Every component of a FLUX.2 checkpoint, and the light parts its stages use.

    The light parts come first, and what does not fit together is refused then: nobody should wait
    for the weights to hear of it.
    """
    config = check_parts(loader)
    kind = str(loader.located["text_encoder"].config["model_type"])
    prompts = {"mistral3": MistralPrompts, "qwen3": QwenPrompts}[kind]
    loaded = Loaded()
    loaded.parts = {
        "tokenizer": prompts(load_tokenizer(loader)),
        "scheduler": load_scheduler(loader),
        "latent_channels": config.in_channels,
        "guidance_embeds": config.guidance_embeds,
        "compute_dtype": loader.dtypes["transformer"],
    }
    loaded.modules = {
        "text_encoder": load_text_encoder(loader, kind),
        "transformer": load_transformer(loader, config),
        "vae": load_vae(loader),
    }
    return loaded


def check_parts(loader: Loader) -> Flux2Config:
    """The transformer's configuration; ModelError when the components do not belong together."""
    missing = [name for name in NEEDED if name not in loader.located]
    if missing:
        raise ModelError(
            f"the checkpoint has no {', '.join(map(repr, missing))}.",
            code="checkpoint_incomplete",
            remedy="Fetch the whole checkpoint again.",
        )
    config = Flux2Config.from_json(loader.located["transformer"].config)
    text, vae = loader.located["text_encoder"].config, loader.located["vae"].config
    kind = text2.check_kind(str(text.get("model_type")))
    inner = text.get("text_config") or text
    text2.check_depth(kind, int(inner.get("num_hidden_layers", 0)))
    wrong: list[str] = []
    wide = len(text2.LAYERS[kind]) * int(inner.get("hidden_size", 0))
    if wide != config.joint_attention_dim:
        wrong.append(
            f"joint_attention_dim={config.joint_attention_dim}, but the text encoder gives {wide}"
        )
    channels = 4 * int(vae.get("latent_channels", 32))
    if not config.in_channels == config.channels_out == channels:
        wrong.append(
            f"in_channels={config.in_channels} and out_channels={config.channels_out}, but patches "
            f"of the VAE's latents have {channels}"
        )
    stride = 2 ** len(vae.get("block_out_channels", (128, 256, 512, 512)))
    if stride != GRID:
        wrong.append(f"a latent token stands for {stride}x{stride} pixels instead of {GRID}")
    if wrong:
        raise ModelError(
            "the components do not fit together: " + "; ".join(wrong) + ".",
            remedy="Fetch the whole checkpoint again.",
        )
    return config


def load_transformer(loader: Loader, config: Flux2Config) -> nn.Module:
    """The denoiser, from either naming of its tensors."""
    original = not loader.dummy and is_original(loader.checkpoint("transformer").shapes)
    return loader.module(
        "transformer",
        lambda: Flux2Transformer(config, loader.ops),
        rename=rename if original else None,
        convert=convert if original else (),
    )


def load_text_encoder(loader: Loader, kind: str) -> nn.Module:
    """The language model up to the last layer that is read."""
    config = loader.located["text_encoder"].config
    layers = int((config.get("text_config") or config)["num_hidden_layers"])
    return loader.module(
        "text_encoder",
        lambda: text2.TextEncoder(config, loader.dtypes["transformer"]),
        rename=text2.rename,
        ignore=text2.unused(kind, layers),
    )


def load_vae(loader: Loader) -> nn.Module:
    """The VAE; the statistics of its latents stay float32."""
    config = loader.located["vae"].config
    return loader.module(
        "vae",
        lambda: vae2.Vae(config, tiling=loader.vae_tiling),
        rename=lambda name: WRAPPED + name,
        keep_float32=vae2.keep_float32,
    )


def load_tokenizer(loader: Loader) -> Any:
    """The language model's tokenizer with its chat template, from the checkpoint's own files."""
    from transformers import AutoTokenizer  # noqa: PLC0415 (5 s of imports)

    if not loader.files.exists("tokenizer"):
        raise ModelError(
            "component 'tokenizer': the folder tokenizer is missing.",
            code="checkpoint_incomplete",
            remedy="Fetch it again.",
        )
    folder = loader.files.path("tokenizer")
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    if not tokenizer.chat_template:
        raise ModelError(
            "component 'tokenizer': it has no chat template, with which prompts are written.",
            code="checkpoint_incomplete",
            remedy="Fetch tokenizer/chat_template.jinja.",
        )
    return tokenizer


def load_scheduler(loader: Loader) -> dict[str, Any]:
    """The scheduler's configuration."""
    config = loader.files.read_json("scheduler/scheduler_config.json")
    if config is None:
        raise ModelError(
            "component 'scheduler': scheduler/scheduler_config.json is missing.",
            code="checkpoint_incomplete",
            remedy="Fetch the missing file.",
        )
    check_scheduler(config)
    return config
