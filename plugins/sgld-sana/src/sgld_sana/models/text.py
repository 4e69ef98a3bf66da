"""The Gemma-2 decoder as SANA's text encoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import Gemma2Config, Gemma2Model


class TextEncoder(nn.Module):
    """`Gemma2Model`: the last hidden states of a prompt, the instruction's own left out.

    Attention is eager, because only that one caps its scores as the model was trained.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        settings = Gemma2Config.from_dict({**config, "attn_implementation": "eager"})
        # Typed as Any: the library's classes are loaded lazily.
        self.model: Any = Gemma2Model(settings)

    def materialise_buffers(self, device: torch.device) -> None:
        """Make the rotary frequencies and the embedding's scale, which no checkpoint holds."""
        rotary = type(self.model.rotary_emb)(self.model.config)
        embed = self.model.embed_tokens
        scale = torch.tensor(embed.scalar_embed_scale, device=device)
        for owner, name, value in (
            (self.model.rotary_emb, "inv_freq", rotary.inv_freq),
            (self.model.rotary_emb, "original_inv_freq", rotary.original_inv_freq),
            (embed, "embed_scale", scale),
        ):
            owner.register_buffer(name, value.to(device), persistent=False)

    def layer_groups(self) -> nn.ModuleList:
        """The layers that layerwise offload streams."""
        return self.model.layers

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, length: int
    ) -> torch.Tensor:
        """ids and mask [B, L] → states [B, length, D] of the first and the last `length` - 1."""
        states = self.model(
            input_ids=input_ids, attention_mask=attention_mask, use_cache=False
        ).last_hidden_state
        return first_and_last(states, length)


def first_and_last(rows: torch.Tensor, length: int) -> torch.Tensor:
    """[B, L, ...] to [B, length, ...]: position 0 and the last `length` - 1 ones."""
    return torch.cat([rows[:, :1], rows[:, rows.shape[1] - length + 1 :]], dim=1)
