"""Latents to frames."""

from __future__ import annotations

import torch

from sgld.engine.call import Call, StageRun
from sgld.engine.job import Job
from sgld.engine.stage import Stage


class LatentScale:
    """The per-channel statistics between VAE latents and what the transformer sees."""

    def __init__(self, mean: list[float], std: list[float]) -> None:
        self._mean = torch.tensor(mean).view(1, -1, 1, 1, 1)
        self._std = torch.tensor(std).view(1, -1, 1, 1, 1)

    def normalise(self, latents: torch.Tensor) -> torch.Tensor:
        """VAE latents [B, C, F, h, w] to the transformer's scale."""
        return (latents - self._mean.to(latents)) * (1.0 / self._std.to(latents))

    def restore(self, latents: torch.Tensor) -> torch.Tensor:
        """Back to what the VAE decodes."""
        return latents / (1.0 / self._std.to(latents)) + self._mean.to(latents)


class Decode(Stage):
    """Writes `frames` [F, H, W, 3] in 0..1."""

    id = "decode"
    reads = ("latents",)
    writes = ("frames",)
    uses = ("vae",)

    def run(self, job: Job) -> StageRun:
        latents = job.slots.latents.to(job.parts["vae_dtype"])
        scaled = job.parts["latent_scale"].restore(latents)
        video = yield Call("vae", {"latents": scaled}, method="decode")
        job.slots.frames = video[0].float().div(2).add(0.5).clamp(0, 1).permute(1, 2, 3, 0)
