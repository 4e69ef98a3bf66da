"""The language models of FLUX.2 as the transformer wants them: three hidden states side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import nn
from transformers import Mistral3Config, MistralModel, Qwen3Config, Qwen3Model

from sgld.api.errors import ModelError

LAYERS: Final[Mapping[str, tuple[int, ...]]] = {"mistral3": (10, 20, 30), "qwen3": (9, 18, 27)}
"""Model type → the layers behind which states are taken, counted from 1 (0 is the embedding)."""


class TextEncoder(nn.Module):
    """Mistral-Small (dev) or Qwen3 (klein) up to the last layer that is read.

    The released language models go on for 9 or 10 layers; these and the head are neither built nor
    loaded, which saves a quarter of memory and time. `unused` names their stored tensors.
    """

    def __init__(self, config: Mapping[str, Any], dtype: torch.dtype) -> None:
        super().__init__()
        kind = str(config.get("model_type"))
        self.read = LAYERS[check_kind(kind)]
        if kind == "mistral3":
            settings: Any = Mistral3Config.from_dict(dict(config)).text_config
            build: Any = MistralModel
        else:
            settings, build = Qwen3Config.from_dict(dict(config)), Qwen3Model
        cut = settings.num_hidden_layers > self.read[-1]
        check_depth(kind, settings.num_hidden_layers)
        settings.num_hidden_layers = self.read[-1]
        self.model = build(settings)
        if cut:
            # The library's last hidden state is the normed one; an inner layer's is not normed.
            self.model.norm = nn.Identity()
        self._dtype = dtype

    def materialise_buffers(self, device: torch.device) -> None:
        """Make the rotary frequencies, which no checkpoint holds."""
        rotary = self.model.rotary_emb
        with torch.device(device):
            self.model.rotary_emb = type(rotary)(self.model.config)

    def layer_groups(self) -> nn.ModuleList:
        """The layers that layerwise offload streams."""
        return self.model.layers

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """ids and mask [B, L] → states [B, L, 3·D] in the transformer's precision.

        Rows of padding keep what the language model makes of them: the transformer has no mask and
        was trained to see them.
        """
        states = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            output_hidden_states=True,
            use_cache=False,
        ).hidden_states
        return torch.cat([states[layer] for layer in self.read], dim=-1).to(self._dtype)


def check_kind(kind: str) -> str:
    """Return `kind` if it is a language model of FLUX.2, else raise ModelError."""
    if kind in LAYERS:
        return kind
    raise ModelError(
        f"text_encoder/config.json: model_type={kind!r} is not a language model of FLUX.2.",
        remedy=f"Use one of {', '.join(LAYERS)}.",
    )


def check_depth(kind: str, layers: int) -> None:
    """Raise ModelError when a language model is too shallow for the layers that are read."""
    if layers < LAYERS[kind][-1]:
        raise ModelError(
            f"text_encoder/config.json: num_hidden_layers={layers}, but states are read behind "
            f"layer {LAYERS[kind][-1]}.",
            remedy="Fetch the text encoder of this checkpoint again.",
        )


def unused(kind: str, layers: int) -> tuple[str, ...]:
    """Patterns of stored tensors, in our names, that are not loaded: later layers, head, norm."""
    last = LAYERS[kind][-1]
    later = tuple(f"model.layers.{index}.*" for index in range(last, layers))
    norm = ("model.norm.weight",) if layers > last else ()
    return (*later, *norm, "lm_head.*", "vision_tower.*", "multi_modal_projector.*")


def rename(name: str) -> str | None:
    """Our name of a stored tensor, in any of the ways that language models were saved.

    Mistral3 is saved as `language_model.model.*`, as `model.language_model.*`, and by some exports
    as plain `model.*`; Qwen3 only as the last.
    """
    for prefix in ("language_model.model.", "model.language_model."):
        if name.startswith(prefix):
            return "model." + name.removeprefix(prefix)
    bare = name.removeprefix("language_model.").removeprefix("model.")
    if bare.startswith(("lm_head.", "vision_tower.", "multi_modal_projector.")):
        return None
    return name
