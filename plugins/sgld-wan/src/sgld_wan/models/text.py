"""The UMT5 text encoder as the transformer wants its result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import UMT5Config, UMT5EncoderModel


class TextEncoder(nn.Module):
    """`UMT5EncoderModel` whose rows behind a prompt's own tokens are zero."""

    def __init__(self, config: Mapping[str, Any], dtype: torch.dtype) -> None:
        super().__init__()
        self.model = UMT5EncoderModel(UMT5Config.from_dict(dict(config)))
        self._dtype = dtype

    def layer_groups(self) -> nn.ModuleList:
        """The layers that layerwise offload streams."""
        return self.model.encoder.block

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """ids and mask [B, L] → embeddings [B, L, D] in the transformer's precision."""
        states = self.model(input_ids, attention_mask).last_hidden_state.to(self._dtype)
        return states.masked_fill(attention_mask[..., None] == 0, 0)
