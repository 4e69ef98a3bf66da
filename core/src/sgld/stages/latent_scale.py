"""Between the latents of an autoencoder and what a denoiser sees."""

from __future__ import annotations

from collections.abc import Sequence

import torch


class ChannelScale:
    """Mean and standard deviation of each latent channel, from an autoencoder's configuration.

    The inverse of `std` is multiplied, not divided by, since that is how the references round.
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        self._mean = torch.tensor(mean).view(1, -1, 1, 1, 1)
        self._std = torch.tensor(std).view(1, -1, 1, 1, 1)

    def normalise(self, latents: torch.Tensor) -> torch.Tensor:
        """Autoencoder latents [B, C, F, h, w] to the denoiser's scale."""
        return (latents - self._mean.to(latents)) * (1.0 / self._std.to(latents))

    def restore(self, latents: torch.Tensor) -> torch.Tensor:
        """Back to what the autoencoder decodes."""
        return latents / (1.0 / self._std.to(latents)) + self._mean.to(latents)
