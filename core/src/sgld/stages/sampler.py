"""What a denoising loop asks of a sampler, and the adapter for schedulers in diffusers' form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

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


@runtime_checkable
class Estimates(Protocol):
    """A sampler that can tell where the path leads."""

    def estimate(
        self, output: torch.Tensor, index: int, latents: torch.Tensor
    ) -> torch.Tensor | None:
        """The clean latents that the model's output of step `index` points to, as they would be
        decoded. Asked after `step`, with the same arguments; changes nothing. None: not known."""
        ...


class SchedulerSampler:
    """Drives any scheduler with `set_timesteps`, `timesteps` and `step(output, t, latents)`.

    `make` returns a fresh scheduler, because a scheduler keeps a job's history; the table is built
    once per job. `first` leaves out the steps before it (the job starts from a picture); `table`
    are further arguments of `set_timesteps`, such as `sigmas` and `mu`.

    Its estimate is the one that the scheduler's step reports (`pred_original_sample`), else that of
    a flow model, x - σ·v, where the scheduler has a table of `sigmas`.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        steps: int,
        device: torch.device,
        *,
        first: int = 0,
        **table: Any,
    ) -> None:
        self._scheduler = make()
        self._scheduler.set_timesteps(steps, device=device, **table)
        # Without this the first step looks its index up on the device and makes the host wait.
        self._scheduler.set_begin_index(first)
        self._table: torch.Tensor = self._scheduler.timesteps[first:]
        self._first = first
        self._reported: torch.Tensor | None = None
        self.times: Sequence[float] = tuple(float(value) for value in self._table.tolist())

    def time(self, index: int) -> torch.Tensor:
        return self._table[index]

    def step(self, output: torch.Tensor, index: int, latents: torch.Tensor) -> torch.Tensor:
        stepped, *more = self._scheduler.step(
            output, self._table[index], latents, return_dict=False
        )
        self._reported = more[0] if more else None
        return stepped

    def estimate(
        self, output: torch.Tensor, index: int, latents: torch.Tensor
    ) -> torch.Tensor | None:
        sigmas = getattr(self._scheduler, "sigmas", None)
        if self._reported is not None or sigmas is None:
            return self._reported
        return latents - sigmas[self._first + index] * output
