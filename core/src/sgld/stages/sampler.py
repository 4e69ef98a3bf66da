"""What a denoising loop asks of a sampler, and the adapter for schedulers in diffusers' form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch


class Sampler(Protocol):
    """Owns the time table of one job, and any history its rule needs."""

    @property
    def times(self) -> Sequence[float]:
        """The model times of the steps, on the host, first to last."""
        ...

    def time(self, index: int) -> torch.Tensor:
        """The model time of step `index` as a tensor on the device, without waiting for it."""
        ...

    def step(self, output: torch.Tensor, index: int, latents: torch.Tensor) -> torch.Tensor:
        """The latents after step `index`, given the model's output for it."""
        ...


class SchedulerSampler:
    """Drives any scheduler with `set_timesteps`, `timesteps` and `step(output, t, latents)`.

    `make` returns a fresh scheduler, because a scheduler keeps a job's history; the table is built
    once per job.
    """

    def __init__(self, make: Callable[[], Any], steps: int, device: torch.device) -> None:
        self._scheduler = make()
        self._scheduler.set_timesteps(steps, device=device)
        # Without this the first step looks its index up on the device and makes the host wait.
        self._scheduler.set_begin_index(0)
        self._table: torch.Tensor = self._scheduler.timesteps
        self.times: Sequence[float] = tuple(float(value) for value in self._table.tolist())

    def time(self, index: int) -> torch.Tensor:
        return self._table[index]

    def step(self, output: torch.Tensor, index: int, latents: torch.Tensor) -> torch.Tensor:
        return self._scheduler.step(output, self._table[index], latents, return_dict=False)[0]
