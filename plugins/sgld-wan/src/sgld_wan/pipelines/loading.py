"""Loads Wan's components in either layout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from sgld.api.errors import ModelError
from sgld.engine.loading import Loader
from sgld.engine.pipeline import Loaded
from sgld.weights.checkpoint import Checkpoint
from sgld.weights.layout import Located
from sgld.weights.mapping import Convert
from sgld_wan.layout import ORIGINAL
from sgld_wan.models.config import WanConfig
from sgld_wan.models.dit import WanTransformer, keep_fp32
from sgld_wan.models.image import ImageEncoder
from sgld_wan.models.text import TextEncoder
from sgld_wan.models.vae import Vae
from sgld_wan.originals import OriginalLayout, component_config, read_layout
from sgld_wan.stages.decode import LatentScale
from sgld_wan.weights import name_map, rename_saved_image_encoder

WRAPPED = "model."
"""Wrapped library modules carry this prefix in our module's state dict."""
SPARSE_GATE = "*.to_gate_compress.*"
"""Gates of video sparse attention in FastWan checkpoints; dense attention has no use for them."""


def load_wan(loader: Loader) -> Loaded:
    """Every component of a Wan checkpoint, and the light parts its stages use."""
    original = read_layout(loader.files)
    located = [_configured(loader, where, original) for where in loader.located.values()]
    loaded = Loaded()
    for where in located:
        make = _transformer if where.group == "dit" else _wrapped
        loaded.modules[where.name] = make(loader, where)
    by_name = {where.name: where for where in located}
    vae = by_name["vae"].config
    index = original.index if original else loader.files.read_json("model_index.json") or {}
    loaded.parts = {
        "tokenizer": load_tokenizer(loader, original),
        "scheduler": _scheduler(loader, original),
        "latent_scale": LatentScale(vae["latents_mean"], vae["latents_std"]),
        "latent_channels": vae["z_dim"],
        "vae_stride": (
            vae.get("scale_factor_temporal", 4),
            vae.get("scale_factor_spatial", 8),
        ),
        "vae_dtype": loader.dtypes["vae"],
        "compute_dtype": loader.dtypes["transformer"],
        "boundary_ratio": index.get("boundary_ratio"),
    }
    if "image_encoder" in by_name:
        size = by_name["image_encoder"].config["image_size"]
        loaded.parts["image_processor"] = load_image_processor(loader, size, original)
    return loaded


def _configured(loader: Loader, located: Located, original: OriginalLayout | None) -> Located:
    if original is None:
        return located
    checkpoint = Checkpoint.open(
        located.weights, allow_pickle=loader.allow_pickle, field=located.name
    )
    return located._replace(config=component_config(located.name, original, checkpoint.shapes))


def _transformer(loader: Loader, located: Located) -> nn.Module:
    config = WanConfig.from_json(located.config)
    rename = name_map("transformer").rename if located.naming == ORIGINAL else None
    return loader.module(
        located.name,
        lambda: WanTransformer(config, loader.ops),
        rename=rename,
        keep_float32=keep_fp32,
        ignore=(SPARSE_GATE,),
    )


def _wrapped(loader: Loader, located: Located) -> nn.Module:
    build = _builder(loader, located)
    with torch.device("meta"):
        names = {name.removeprefix(WRAPPED) for name in build().state_dict()}
    rename: Callable[[str], str | None] | None = None
    convert: Convert = ()
    if located.naming == ORIGINAL:
        names_of = name_map(located.name)
        saved = rename_saved_image_encoder(names) if located.name == "image_encoder" else None

        def rename(name: str) -> str | None:
            new = names_of.rename(name)
            return None if new is None else WRAPPED + (saved(new) or new if saved else new)

        def convert(present: frozenset[str]) -> Any:
            bare = frozenset(name.removeprefix(WRAPPED) for name in present)
            return [
                target._replace(
                    name=WRAPPED + target.name,
                    sources=tuple(WRAPPED + source for source in target.sources),
                )
                for target in names_of.convert(bare)
            ]
    elif located.name == "image_encoder":
        saved_names = rename_saved_image_encoder(names)

        def rename(name: str) -> str | None:
            new = saved_names(name)
            return None if new is None else WRAPPED + new
    else:

        def rename(name: str) -> str | None:
            return WRAPPED + name

    return loader.module(located.name, build, rename=rename, convert=convert)


def _builder(loader: Loader, located: Located) -> Callable[[], nn.Module]:
    if located.group == "text_encoder":
        return lambda: TextEncoder(located.config, loader.dtypes["transformer"])
    if located.group == "image_encoder":
        return lambda: ImageEncoder(located.config)
    return lambda: Vae(located.config, tiling=loader.vae_tiling)


def load_tokenizer(loader: Loader, original: OriginalLayout | None) -> Any:
    """UMT5's tokenizer, from the checkpoint's own files only."""
    from transformers import AutoTokenizer  # noqa: PLC0415 (5 s of imports)

    folder = original.tokenizer if original else "tokenizer"
    return AutoTokenizer.from_pretrained(loader.files.path(folder), local_files_only=True)


def load_image_processor(loader: Loader, size: int, original: OriginalLayout | None) -> Any:
    """CLIP's picture preparation; the original layout has no file for it."""
    from transformers import CLIPImageProcessorPil  # noqa: PLC0415

    if original:
        return CLIPImageProcessorPil(
            size={"shortest_edge": size}, crop_size={"height": size, "width": size}
        )
    folder = loader.files.path("image_processor")
    return CLIPImageProcessorPil.from_pretrained(folder, local_files_only=True)


def _scheduler(loader: Loader, original: OriginalLayout | None) -> dict[str, Any]:
    if original:
        return original.scheduler
    config = loader.files.read_json("scheduler/scheduler_config.json")
    if config is None:
        raise ModelError(
            "component 'scheduler': scheduler/scheduler_config.json is missing.",
            code="checkpoint_incomplete",
            remedy="Fetch the missing file.",
        )
    return config
