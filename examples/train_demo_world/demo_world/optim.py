"""Muon for the matrices of the blocks, AdamW for the rest.

Muon (Jordan 2024, https://kellerjordan.github.io/posts/muon/): momentum, then the nearest
orthogonal matrix by a Newton-Schulz iteration. Matrices of one shape are worked on together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

import torch
from torch import Tensor, nn

STEPS: Final = 5
COEFFICIENTS: Final = (3.4445, -4.7750, 2.0315)


class Muon:
    """Args:
    matrices: parameters of two axes.
    momentum: of the gradients; the step looks ahead (Nesterov).
    decay: weight decay per unit of learning rate.
    """

    def __init__(
        self, matrices: Iterable[nn.Parameter], *, momentum: float = 0.95, decay: float = 0.01
    ) -> None:
        groups: dict[tuple[int, ...], list[nn.Parameter]] = defaultdict(list)
        for matrix in matrices:
            groups[tuple(matrix.shape)].append(matrix)
        self._groups = list(groups.values())
        self._moving = [torch.stack([m.detach() for m in group]).zero_() for group in self._groups]
        self._momentum, self._decay = momentum, decay

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """One step with the gradients that the matrices have."""
        for group, moving in zip(self._groups, self._moving, strict=True):
            gradients = torch.stack([m.grad for m in group])  # type: ignore
            moving.lerp_(gradients, 1 - self._momentum)
            update = orthogonal(gradients.lerp(moving, self._momentum))
            update.mul_(-rate * 0.2 * max(update.shape[1:]) ** 0.5)
            live = [m.detach() for m in group]
            torch._foreach_mul_(live, 1 - rate * self._decay)
            torch._foreach_add_(live, list(update.to(live[0].dtype).unbind()))

    def clear(self) -> None:
        """Forget the gradients."""
        for group in self._groups:
            for matrix in group:
                matrix.grad = None


def orthogonal(matrices: Tensor) -> Tensor:
    """About the nearest orthogonal matrix of each [n, rows, columns]; float32."""
    dtype = torch.bfloat16 if matrices.is_cuda else torch.float32
    a, b, c = COEFFICIENTS
    x = matrices.to(dtype)
    tall = x.shape[1] > x.shape[2]
    if tall:
        x = x.mT
    x = x / (x.float().norm(dim=(1, 2), keepdim=True) * 1.01 + 1e-7).to(dtype)
    for _ in range(STEPS):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return (x.mT if tall else x).float()


def split(module: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Matrices of the blocks, and everything else."""
    matrices, rest = [], []
    for name, parameter in module.named_parameters():
        inside = name.startswith("transformer.blocks.") and parameter.ndim == 2
        (matrices if inside else rest).append(parameter)
    return matrices, rest
