"""Loads Wan's components in either layout."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatch
from typing import Any

import structlog
import torch
from torch import nn

from sgld.api.errors import ModelError
from sgld.engine.loading import Loader
from sgld.engine.pipeline import Loaded
from sgld.ops import Ops
from sgld.platforms.streams import torch_of
from sgld.stages.latent_scale import ChannelScale
from sgld.weights.files import ModelFiles
from sgld.weights.layout import Located
from sgld.weights.mapping import Target
from sgld_wan.layout import ORIGINAL
from sgld_wan.models.config import WanConfig
from sgld_wan.models.dit import WanTransformer, keep_fp32
from sgld_wan.models.image import ImageEncoder
from sgld_wan.models.text import TextEncoder
from sgld_wan.models.vae import Vae
from sgld_wan.originals import OriginalLayout, component_config, read_layout
from sgld_wan.schedulers import check_scheduler
from sgld_wan.weights import is_original, name_map, rename_saved_image_encoder, unpacked

log = structlog.get_logger("sgld.wan")

BuildTransformer = Callable[[Mapping[str, Any], Ops], nn.Module]
"""Makes a denoiser of what its `config.json` says, on the meta device."""

WRAPPED = "model."
"""Wrapped library modules carry this prefix in our module's state dict."""
SPARSE_GATE = "*.to_gate_compress.*"
"""Gates of video sparse attention in FastWan checkpoints; dense attention has no use for them."""


def wan_transformer(config: Mapping[str, Any], ops: Ops) -> nn.Module:
    """The denoiser of a `transformer/config.json`."""
    return WanTransformer(WanConfig.from_json(config), ops)


def load_wan(
    loader: Loader,
    build: BuildTransformer = wan_transformer,
    *,
    read: Callable[[ModelFiles], OriginalLayout | None] = read_layout,
    experts: bool = True,
) -> Loaded:
    """Every component of a Wan checkpoint, and the light parts its stages use.

    The light parts come first, and what does not fit together is refused then: nobody should wait
    for the weights to hear of it.

    Args:
        loader: gives the modules.
        build: makes the denoiser, without memory; a related family has its own.
        read: recognises the family's original layout.
        experts: whether noise levels may be split between two denoisers; where not, a
            `boundary_ratio` that the checkpoint carries along means nothing.
    """
    original = read(loader.files)
    located = {
        where.name: _configured(loader, where, original) for where in loader.located.values()
    }
    index = original.index if original else loader.files.read_json("model_index.json") or {}
    boundary = index.get("boundary_ratio") if experts else None
    _check_parts(located, boundary)
    vae = located["vae"].config
    loaded = Loaded()
    loaded.parts = {
        "tokenizer": load_tokenizer(loader, original),
        "scheduler": _scheduler(loader, original),
        "latent_scale": ChannelScale(vae["latents_mean"], vae["latents_std"]),
        "latent_channels": vae["z_dim"],
        "vae_config": vae,
        "vae_stride": (
            vae.get("scale_factor_temporal", 4),
            vae.get("scale_factor_spatial", 8),
        ),
        "vae_dtype": loader.dtypes["vae"],
        "compute_dtype": loader.dtypes["transformer"],
        "boundary_ratio": boundary,
    }
    if "image_encoder" in located:
        size = located["image_encoder"].config["image_size"]
        loaded.parts["image_processor"] = load_image_processor(loader, size, original)
    for name, where in located.items():
        if where.group == "dit":
            loaded.modules[name] = _transformer(loader, where, build)
        else:
            loaded.modules[name] = _wrapped(loader, where)
    return loaded


def _check_parts(located: Mapping[str, Located], boundary: float | None) -> None:
    """Refuse a checkpoint whose components do not belong together."""
    wrong = [
        f"the checkpoint has no {name!r}"
        for name in ("transformer", "vae", "text_encoder")
        if name not in located
    ]
    if boundary is not None and "transformer_2" not in located:
        wrong.append(f"boundary_ratio={boundary} needs a second expert, 'transformer_2'")
    if boundary is None and "transformer_2" in located:
        wrong.append("'transformer_2' is there without a boundary_ratio in model_index.json")
    if "transformer" in located:
        width = located["transformer"].config.get("image_dim")
        if width is not None and "image_encoder" not in located:
            wrong.append(f"transformer/config.json has image_dim={width} but no 'image_encoder'")
        if width is None and "image_encoder" in located:
            wrong.append("'image_encoder' is there, but the transformer takes no image tokens")
    if wrong:
        raise ModelError(
            "the components do not fit together: " + "; ".join(wrong) + ".",
            code="checkpoint_incomplete",
            remedy="Fetch the whole checkpoint again.",
        )


def _configured(loader: Loader, located: Located, original: OriginalLayout | None) -> Located:
    """The component with its configuration and the naming that its tensors really have: a file that
    replaces its weights may come from another kind of checkpoint."""
    if loader.dummy and original is None:
        return located  # its files may not be there
    names = loader.checkpoint(located.name).shapes
    is_theirs = is_original(located.name, names)
    if original is None:
        return located._replace(naming=ORIGINAL if is_theirs else located.naming)
    if not is_theirs:
        raise ModelError(
            f"component {located.name!r}: its weights have diffusers' tensor names, and in the "
            "original layout there is no configuration for those.",
            remedy="Give weights with the original names, or use the diffusers folder of the "
            f"model with --component-weights-path.{located.name}.",
        )
    return located._replace(config=component_config(located.name, original, names))


def _transformer(loader: Loader, located: Located, build: BuildTransformer) -> nn.Module:
    names = () if loader.dummy else tuple(loader.checkpoint(located.name))
    known = name_map("transformer").rename if located.naming == ORIGINAL else _same
    gates = sum(fnmatch(name, SPARSE_GATE) for name in names)
    if gates:
        log.warning(
            "the checkpoint has gates of sparse attention, which are not used: dense attention "
            "runs instead, slower and not exactly as it was trained",
            component=located.name,
            tensors=gates,
        )
    return loader.module(
        located.name,
        lambda: build(located.config, loader.ops),
        rename=_chain(unpacked(names), known),
        keep_float32=keep_fp32,
        ignore=(SPARSE_GATE,),
    )


def _same(name: str) -> str | None:
    return name


def _wrap(name: str) -> str | None:
    return WRAPPED + name


def _chain(*renames: Callable[[str], str | None]) -> Callable[[str], str | None]:
    """One renaming after the other; None, a dropped tensor, ends it."""

    def rename(name: str) -> str | None:
        found: str | None = name
        for step in renames:
            found = None if found is None else step(found)
        return found

    return rename


def _wrapped(loader: Loader, located: Located) -> nn.Module:
    build = _builder(loader, located)
    with torch.device("meta"):
        names = {name.removeprefix(WRAPPED) for name in build().state_dict()}
    spelled = rename_saved_image_encoder(names) if located.name == "image_encoder" else _same
    if located.naming != ORIGINAL:
        module = loader.module(located.name, build, rename=_chain(spelled, _wrap))
    else:
        names_of = name_map(located.name)

        def convert(present: frozenset[str]) -> list[Target]:
            bare = frozenset(name.removeprefix(WRAPPED) for name in present)
            return [
                target._replace(
                    name=WRAPPED + target.name,
                    sources=tuple(WRAPPED + source for source in target.sources),
                )
                for target in names_of.convert(bare)
            ]

        rename = _chain(names_of.rename, spelled, _wrap)
        module = loader.module(located.name, build, rename=rename, convert=convert)
    # Measured on a device with streams only; on a CPU the rounding would depend on where a file has
    # its bytes.
    if isinstance(module, Vae) and torch_of(loader.device) is not None:
        module.lay_out()
    return module


def _builder(loader: Loader, located: Located) -> Callable[[], nn.Module]:
    if located.group == "text_encoder":
        return lambda: TextEncoder(located.config, loader.dtypes["transformer"])
    if located.group == "image_encoder":
        return lambda: ImageEncoder(located.config)
    return lambda: Vae(located.config, tiling=loader.vae_tiling, ops=loader.ops)


def load_tokenizer(loader: Loader, original: OriginalLayout | None) -> Any:
    """UMT5's tokenizer, from the checkpoint's own files only."""
    from transformers import AutoTokenizer  # noqa: PLC0415 (5 s of imports)

    folder = original.tokenizer if original else "tokenizer"
    if not loader.files.exists(folder):
        raise ModelError(
            f"component 'tokenizer': the folder {folder} is missing.",
            code="checkpoint_incomplete",
            remedy="Fetch it again.",
        )
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
    check_scheduler(config)
    return config
