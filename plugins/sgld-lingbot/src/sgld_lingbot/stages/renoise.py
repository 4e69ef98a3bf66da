"""Sampling in few steps by a schedule that may read predictions and add noise at other levels."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from sgld_lingbot.schedules import Schedule


class ScheduledRenoise:
    """x0 = x - σ·v in float64; between steps x = (1 - σ')·x0 + σ'·ε with fresh noise ε, where σ is
    the step's `clean` level and σ' the next one's `noisy` level.

    Args:
        schedule: the numbers of each step.
        noise: draws standard normal noise of a shape, on the latents' device.
        device: where the latents are.
    """

    def __init__(
        self,
        schedule: Schedule,
        noise: Callable[[tuple[int, ...]], torch.Tensor],
        device: torch.device,
    ) -> None:
        self._schedule = schedule
        self._noise = noise
        self._table = torch.tensor(schedule.times, dtype=torch.float32).to(device)
        self.times: Sequence[float] = schedule.times

    def time(self, index: int) -> torch.Tensor:
        return self._table[index]

    def step(self, output: torch.Tensor, index: int, latents: torch.Tensor) -> torch.Tensor:
        clean = latents.double() - self._schedule.clean[index] * output.double()
        if index + 1 < len(self.times):
            level = self._schedule.noisy[index + 1]
            fresh = self._noise(tuple(latents.shape)).double()
            clean = (1 - level) * clean + level * fresh
        return clean.to(latents.dtype)
