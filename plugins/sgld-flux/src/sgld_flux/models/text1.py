"""The two text encoders of FLUX.1: CLIP for one pooled vector, T5 for a state per token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel

from sgld.weights.module import number_positions


class PooledTextEncoder(nn.Module):
    """`CLIPTextModel`, of which only the pooled state is used: the one at the end-of-text token."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.model = CLIPTextModel(CLIPTextConfig.from_dict(dict(config)))

    def materialise_buffers(self, device: torch.device) -> None:
        """Number the positions: a buffer that no checkpoint holds."""
        number_positions(self.model, device)

    def layer_groups(self) -> nn.ModuleList:
        """The layers that layerwise offload streams."""
        lists = (child for child in self.model.modules() if isinstance(child, nn.ModuleList))
        return max(lists, key=len)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """ids [B, 77] → pooled states [B, P]; padding is not masked, as the model was trained."""
        return self.model(input_ids).pooler_output


class TokenTextEncoder(nn.Module):
    """`T5EncoderModel`: a state for every token, padding included."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.model = T5EncoderModel(T5Config.from_dict(dict(config)))

    def layer_groups(self) -> nn.ModuleList:
        """The layers that layerwise offload streams."""
        return self.model.encoder.block

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """ids [B, L] → states [B, L, D]; padding is not masked, as the model was trained."""
        return self.model(input_ids).last_hidden_state


def keep_wide(name: str) -> bool:
    """T5's output projections, which overflow in float16; the class expects them in float32."""
    return ".wo." in name
