"""Euler steps of a flow-matching model: the sampler to begin with.

Source: Lipman et al., arXiv 2210.02747; the shift of the time table is that of Esser et al.,
arXiv 2403.03206, equation 23.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


class FlowSampler:
    """Walks from noise (time 1) to clean latents (time 0) along the velocity that a model predicts:
    x_t = (1 - t)·clean + t·noise, velocity = noise - clean.

    The table is in float64 on the host; a step computes in float32 and rounds once, to the dtype of
    the latents.

    Args:
        steps: how many, 1 or more.
        device: where `time` is wanted.
        shift: above 1 spends more of the steps near the noise; 1 is an even table.
    """

    def __init__(self, steps: int, device: torch.device, *, shift: float = 1.0) -> None:
        even = torch.linspace(1, 0, steps + 1, dtype=torch.float64)
        table = shift * even / (1 + (shift - 1) * even)
        self._sigmas: list[float] = table.tolist()
        self._table = table.float().to(device)
        self.times: Sequence[float] = tuple(self._sigmas[:-1])

    def time(self, index: int) -> torch.Tensor:
        """The noise level of step `index`, 1 down to above 0."""
        return self._table[index]

    def step(self, output: torch.Tensor, index: int, latents: torch.Tensor) -> torch.Tensor:
        """One Euler step along `output`, the velocity at the noise level of step `index`."""
        width = self._sigmas[index + 1] - self._sigmas[index]
        return (latents.float() + width * output.float()).to(latents.dtype)

    def estimate(self, output: torch.Tensor, index: int, latents: torch.Tensor) -> torch.Tensor:
        """Where a straight line from here ends."""
        return (latents.float() - self._sigmas[index] * output.float()).to(latents.dtype)
