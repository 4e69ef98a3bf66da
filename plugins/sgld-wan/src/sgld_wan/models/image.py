"""The CLIP image encoder of Wan 2.1 image-to-video."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import CLIPVisionConfig, CLIPVisionModel

from sgld.weights.module import number_positions


class ImageEncoder(nn.Module):
    """A CLIP vision tower that gives its last but one hidden state, class token included."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.model = CLIPVisionModel(CLIPVisionConfig.from_dict(dict(config)))

    def materialise_buffers(self, device: torch.device) -> None:
        """Number the positions: a buffer that no checkpoint holds."""
        number_positions(self.model, device)

    def layer_groups(self) -> nn.ModuleList:
        """The layers that layerwise offload streams."""
        lists = (child for child in self.model.modules() if isinstance(child, nn.ModuleList))
        return max(lists, key=len)

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """[B, 3, S, S] normalised pixels → [B, tokens, D]."""
        dtype = next(self.model.parameters()).dtype
        states = self.model(pixel_values.to(dtype), output_hidden_states=True).hidden_states
        return states[-2]
