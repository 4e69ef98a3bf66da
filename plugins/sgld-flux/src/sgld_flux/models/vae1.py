"""The VAE of FLUX.1, diffusers' `AutoencoderKL`, behind the two methods that stages call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL
from torch import nn


class Vae(nn.Module):
    """`AutoencoderKL`: [B, 3, H, W] in -1..1 ↔ [B, C, H/8, W/8]."""

    def __init__(self, config: Mapping[str, Any], *, tiling: bool = False) -> None:
        super().__init__()
        # Typed as Any: from_config is declared to return a pair as well.
        self.model: Any = AutoencoderKL.from_config(dict(config))
        if tiling:
            self.model.enable_tiling()

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the weights."""
        return next(self.model.parameters()).dtype

    def encode(self, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and standard deviation of the posterior, not normalised."""
        posterior = self.model.encode(pixels.to(self.dtype)).latent_dist
        return posterior.mean, posterior.std

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        """Pixels of latents that are already in the VAE's own scale, about -1..1."""
        return self.model.decode(latents.to(self.dtype), return_dict=False)[0]
