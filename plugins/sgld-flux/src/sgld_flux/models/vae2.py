"""The FLUX.2 VAE of diffusers behind the two methods that stages call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from diffusers.models.autoencoders.autoencoder_kl_flux2 import AutoencoderKLFlux2
from torch import nn


class Vae(nn.Module):
    """`AutoencoderKLFlux2`: pictures [B, 3, H, W] in -1..1 ↔ latents [B, 4·C, H/16, W/16].

    What the transformer sees are 2×2 patches of the VAE's latents, normalised by running statistics
    that lie in the VAE's checkpoint as those of a batch norm. Both are done here.
    """

    def __init__(self, config: Mapping[str, Any], *, tiling: bool = False) -> None:
        super().__init__()
        # Typed as Any: from_config is declared to return a pair as well.
        self.model: Any = AutoencoderKLFlux2.from_config(dict(config))
        if tiling:
            self.model.enable_tiling()

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the weights."""
        return next(self.model.parameters()).dtype

    def encode(self, picture: torch.Tensor) -> torch.Tensor:
        """Mode of the posterior of pictures, normalised, float32."""
        latents = self.model.encode(picture.to(self.dtype)).latent_dist.mode()
        mean, deviation = self._statistics()
        return (patched(latents.float()) - mean) / deviation

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        """Pictures of normalised latents, about -1..1."""
        mean, deviation = self._statistics()
        scaled = unpatched(latents.float() * deviation + mean)
        return self.model.decode(scaled.to(self.dtype), return_dict=False)[0]

    def _statistics(self) -> tuple[torch.Tensor, torch.Tensor]:
        norm = self.model.bn
        deviation = torch.sqrt(norm.running_var.float() + self.model.config.batch_norm_eps)
        return norm.running_mean.float().view(1, -1, 1, 1), deviation.view(1, -1, 1, 1)


def keep_float32(name: str) -> bool:
    """Whether the tensor of this dotted name stays float32: the statistics of the latents."""
    return ".bn." in name


def patched(latents: torch.Tensor) -> torch.Tensor:
    """[B, C, h, w] → [B, 4·C, h/2, w/2]; channels in the order (channel, row, column)."""
    return torch.pixel_unshuffle(latents, 2)


def unpatched(latents: torch.Tensor) -> torch.Tensor:
    """The way back: [B, 4·C, h/2, w/2] → [B, C, h, w]."""
    return torch.pixel_shuffle(latents, 2)
