"""The autoencoders of diffusers behind the two methods that stages call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from diffusers.models.autoencoders.autoencoder_dc import AutoencoderDC
from diffusers.models.autoencoders.autoencoder_kl_wan import AutoencoderKLWan
from torch import nn


class ImageVae(nn.Module):
    """`AutoencoderDC`: [B, 3, H, W] in -1..1 ↔ [B, C, h, w], without any randomness."""

    def __init__(self, config: Mapping[str, Any], *, tiling: bool = False) -> None:
        super().__init__()
        # Typed as Any: from_config is declared to return a pair as well.
        self.model: Any = AutoencoderDC.from_config(dict(config))
        if tiling:
            self.model.enable_tiling()

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        """Pictures of latents that are already in the autoencoder's own scale."""
        return self.model.decode(latents, return_dict=False)[0]


class VideoVae(nn.Module):
    """`AutoencoderKLWan`: [B, 3, F, H, W] in -1..1 ↔ [B, C, f, h, w]."""

    def __init__(self, config: Mapping[str, Any], *, tiling: bool = False) -> None:
        super().__init__()
        self.model: Any = AutoencoderKLWan.from_config(dict(config))
        if tiling:
            self.model.enable_tiling()

    def encode(self, video: torch.Tensor) -> torch.Tensor:
        """Mode of the posterior of a video, not normalised."""
        return self.model.encode(video).latent_dist.mode()

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        """Frames of latents that are already in the VAE's own scale, clamped to -1..1."""
        return self.model.decode(latents, return_dict=False)[0]
