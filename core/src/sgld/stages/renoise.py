"""Few-step sampling of models distilled by distribution matching (DMD): predict clean latents, add
fresh noise, repeat.

Sources: Yin et al., arXiv 2405.14867; the public code of Self-Forcing,
`pipeline/causal_inference.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

TRAIN_STEPS = 1000
"""Steps of the training schedule: a model time is this times the noise level."""


def warped(steps: Sequence[int], shift: float) -> tuple[float, ...]:
    """Model times of steps that count places in the shifted training table instead of naming its
    times: step s stands for the entry 1000 - s, so 750 at shift 5 is 937.5 (Self-Forcing,
    `warp_denoising_step`)."""
    places = [step / TRAIN_STEPS for step in steps]
    return tuple(TRAIN_STEPS * shift * u / (1 + (shift - 1) * u) for u in places)


class RenoiseSampler:
    """Walks a fixed list of training steps.

    At each step x0 = x - σ·v in float64; between steps x = (1 - σ')·x0 + σ'·ε with fresh noise ε.
    σ of a step value is looked up in the shifted training table, by the nearest time.

    Args:
        steps: model times from noisy to clean, such as 1000, 757, 522.
        shift: shift of the training table.
        noise: draws standard normal noise of a shape, on the latents' device.
    """

    def __init__(
        self,
        steps: Sequence[float],
        shift: float,
        noise: Callable[[tuple[int, ...]], torch.Tensor],
        device: torch.device,
    ) -> None:
        grid = torch.linspace(1, 0, TRAIN_STEPS + 1, dtype=torch.float64)[:-1]
        table = shift * grid / (1 + (shift - 1) * grid)
        wanted = torch.tensor(steps, dtype=torch.float64)
        nearest = (table[None] * TRAIN_STEPS - wanted[:, None]).abs().argmin(dim=1)
        self._sigmas: list[float] = table[nearest].tolist()
        self._noise = noise
        self._table = wanted.float().to(device)
        self.times: Sequence[float] = tuple(float(step) for step in steps)

    def time(self, index: int) -> torch.Tensor:
        return self._table[index]

    def step(self, output: torch.Tensor, index: int, latents: torch.Tensor) -> torch.Tensor:
        clean = self._clean(output, index, latents)
        if index + 1 == len(self._sigmas):
            return clean.to(latents.dtype)
        sigma = self._sigmas[index + 1]
        fresh = self._noise(tuple(latents.shape)).double()
        return ((1 - sigma) * clean + sigma * fresh).to(latents.dtype)

    def estimate(self, output: torch.Tensor, index: int, latents: torch.Tensor) -> torch.Tensor:
        """The clean latents that this step predicts."""
        return self._clean(output, index, latents).to(latents.dtype)

    def _clean(self, output: torch.Tensor, index: int, latents: torch.Tensor) -> torch.Tensor:
        return latents.double() - self._sigmas[index] * output.double()
