"""Loads FLUX.1's components in either layout."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from sgld.api.errors import ModelError
from sgld.engine.loading import Loader
from sgld.engine.pipeline import Loaded
from sgld.weights.layout import Located
from sgld.weights.mapping import Target
from sgld_flux.layout import GROUPS, ORIGINAL
from sgld_flux.models.flux1 import FluxConfig, FluxTransformer
from sgld_flux.models.text1 import PooledTextEncoder, TokenTextEncoder, keep_wide
from sgld_flux.models.vae1 import Vae
from sgld_flux.stages.decode1 import LatentScale
from sgld_flux.stages.schedule1 import check_scheduler
from sgld_flux.weights import is_original, name_map

WRAPPED: Final = "model."
"""Wrapped library modules carry this prefix in our module's state dict."""
CLIP_PREFIX: Final = "text_model."
TOKENIZERS: Final = {"text_encoder": "tokenizer", "text_encoder_2": "tokenizer_2"}
SCHEDULERS: Final[Mapping[bool, Mapping[str, Any]]] = {
    guided: {
        "_class_name": "FlowMatchEulerDiscreteScheduler",
        "base_image_seq_len": 256,
        "base_shift": 0.5,
        "max_image_seq_len": 4096,
        "max_shift": 1.15,
        "num_train_timesteps": 1000,
        "shift": 3.0 if guided else 1.0,
        "use_dynamic_shifting": guided,
    }
    for guided in (True, False)
}
"""Embedded guidance or not → the scheduler that the original layout has no file for."""


def load_flux1(loader: Loader, *, guided: bool) -> Loaded:
    """Every component of a FLUX.1 checkpoint, and the light parts its stages use.

    The light parts come first, and what does not fit together is refused then: nobody should wait
    for the weights to hear of it.
    """
    located = {name: _named(loader, where) for name, where in loader.located.items()}
    _check_parts(located)
    config = FluxConfig.from_json(located["transformer"].config)
    _check_guidance(config, guided)
    vae = located["vae"].config
    _check_channels(config, vae)
    loaded = Loaded()
    loaded.parts = {
        **{role: _tokenizer(loader, name) for name, role in TOKENIZERS.items()},
        "scheduler": _scheduler(loader, guided),
        # Where the file says nothing, the defaults of diffusers' class hold.
        "latent_scale": LatentScale(
            vae.get("scaling_factor", 0.18215), vae.get("shift_factor") or 0.0
        ),
        "latent_channels": vae.get("latent_channels", 4),
        "vae_stride": 2 ** (len(vae.get("block_out_channels", [64])) - 1),
        "compute_dtype": loader.dtypes["transformer"],
        "guided": guided,
    }
    loaded.modules = {
        "text_encoder": _clip(loader, located["text_encoder"]),
        "text_encoder_2": _t5(loader, located["text_encoder_2"]),
        "transformer": _transformer(loader, located["transformer"], config),
        "vae": _vae(loader, located["vae"]),
    }
    return loaded


def _named(loader: Loader, located: Located) -> Located:
    """The component with the naming that its tensors really have: a file that replaces its weights
    may be an original one."""
    if loader.dummy or located.name not in ("transformer", "vae"):
        return located
    original = is_original(located.name, loader.checkpoint(located.name))
    return located._replace(naming=ORIGINAL if original else "diffusers")


def _check_parts(located: Mapping[str, Located]) -> None:
    missing = [name for name in GROUPS if name not in located]
    if missing:
        raise ModelError(
            f"the checkpoint has no {' and no '.join(missing)}.",
            code="checkpoint_incomplete",
            remedy="Fetch the whole checkpoint again.",
        )


def _check_guidance(config: FluxConfig, guided: bool) -> None:
    if config.guidance_embeds != guided:
        has, other = ("has a", "schnell") if config.guidance_embeds else ("has no", "dev")
        right = "dev" if config.guidance_embeds else "schnell"
        raise ModelError(
            f"the transformer {has} guidance input, so it is no FLUX.1 {other}.",
            remedy=f"Use --pipeline-class-name flux.1-{right}, or another transformer.",
        )


def _check_channels(config: FluxConfig, vae: Mapping[str, Any]) -> None:
    channels = vae.get("latent_channels", 4)
    if config.in_channels != 4 * channels:
        raise ModelError(
            f"the components do not fit together: the transformer takes in_channels="
            f"{config.in_channels}, and the VAE's latent_channels={channels} make {4 * channels}.",
            remedy="Use the VAE that belongs to this transformer.",
        )


def _transformer(loader: Loader, located: Located, config: FluxConfig) -> nn.Module:
    def build() -> nn.Module:
        return FluxTransformer(config, loader.ops)

    if located.naming != ORIGINAL:
        return loader.module(located.name, build)
    names = name_map(located.name, loader.checkpoint(located.name))
    return loader.module(located.name, build, rename=names.rename, convert=names.convert)


def _vae(loader: Loader, located: Located) -> nn.Module:
    def build() -> nn.Module:
        return Vae(located.config, tiling=loader.vae_tiling)

    if located.naming != ORIGINAL:
        return loader.module(located.name, build, rename=_wrap)
    names = name_map(located.name, loader.checkpoint(located.name))

    def rename(name: str) -> str | None:
        found = names.rename(name)
        return None if found is None else WRAPPED + found

    def convert(present: frozenset[str]) -> list[Target]:
        bare = frozenset(name.removeprefix(WRAPPED) for name in present)
        return [
            target._replace(
                name=WRAPPED + target.name,
                sources=tuple(WRAPPED + source for source in target.sources),
            )
            for target in names.convert(bare)
        ]

    return loader.module(located.name, build, rename=rename, convert=convert)


def _wrap(name: str) -> str:
    return WRAPPED + name


def _clip(loader: Loader, located: Located) -> nn.Module:
    def build() -> nn.Module:
        return PooledTextEncoder(located.config)

    return loader.module(located.name, build, rename=_clip_names(build))


def _clip_names(build: Callable[[], nn.Module]) -> Callable[[str], str | None]:
    """transformers writes CLIP's names with or without `text_model.`, depending on its version; old
    files also hold the position ids, which are not a weight."""
    with torch.device("meta"):
        inside = WRAPPED + CLIP_PREFIX
        prefix = (
            inside if any(name.startswith(inside) for name in build().state_dict()) else WRAPPED
        )

    def rename(name: str) -> str | None:
        if name.endswith("position_ids"):
            return None
        return prefix + name.removeprefix(CLIP_PREFIX)

    return rename


def _t5(loader: Loader, located: Located) -> nn.Module:
    wide = keep_wide if loader.dtypes[located.name] == torch.float16 else None
    return loader.module(
        located.name, lambda: TokenTextEncoder(located.config), rename=_wrap, keep_float32=wide
    )


def _tokenizer(loader: Loader, encoder: str) -> Any:
    """The tokenizer of a text encoder, from the checkpoint's own files only: its folder in the
    checkpoint, or beside or inside the folder that replaces the encoder."""
    from transformers import AutoTokenizer  # noqa: PLC0415 (5 s of imports)

    name = TOKENIZERS[encoder]
    folder = loader.located[encoder].folder
    places: list[Path] = [loader.files.path(name)] if loader.files.exists(name) else []
    if folder is not None:
        places += [folder.parent / name, folder]
    for place in places:
        if (place / "tokenizer_config.json").is_file():
            return AutoTokenizer.from_pretrained(place, local_files_only=True)
    raise ModelError(
        f"component {name!r}: there is no folder {name} with a tokenizer_config.json.",
        code="checkpoint_incomplete",
        remedy=f"Put it into the model's folder or beside the one of {encoder}.",
    )


def _scheduler(loader: Loader, guided: bool) -> Mapping[str, Any]:
    config = loader.files.read_json("scheduler/scheduler_config.json")
    if config is None and loader.files.exists("model_index.json"):
        raise ModelError(
            "component 'scheduler': scheduler/scheduler_config.json is missing.",
            code="checkpoint_incomplete",
            remedy="Fetch the missing file.",
        )
    config = config or SCHEDULERS[guided]
    check_scheduler(config)
    return config
