"""The Wan VAE of diffusers behind the two methods that stages call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from diffusers.models.autoencoders.autoencoder_kl_wan import AutoencoderKLWan
from torch import nn


class Vae(nn.Module):
    """`AutoencoderKLWan`: [B, 3, F, H, W] in -1..1 ↔ [B, C, f, h, w]."""

    def __init__(self, config: Mapping[str, Any], *, tiling: bool = False) -> None:
        super().__init__()
        # Typed as Any: from_config is declared to return a pair as well.
        self.model: Any = AutoencoderKLWan.from_config(dict(config))
        if tiling:
            self.model.enable_tiling()

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the weights."""
        return next(self.model.parameters()).dtype

    def encode(self, video: torch.Tensor) -> torch.Tensor:
        """Mode of the posterior of a video, not normalised."""
        return self.model.encode(video.to(self.dtype)).latent_dist.mode()

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        """Frames of latents that are already in the VAE's own scale, clamped to -1..1."""
        return self.model.decode(latents.to(self.dtype), return_dict=False)[0]
