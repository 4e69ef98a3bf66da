"""The tensors of a module as one list that can be swapped in and out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import nn

from sgld.engine.residency.movers import Mover


def tensors_of(module: nn.Module) -> list[torch.Tensor]:
    """Parameters and buffers of a module, each once, though several names share it."""
    return list({id(t): t for t in (*module.parameters(), *module.buffers())}.values())


class Swappable:
    """Tensors of a module as one: held on the host, copied to the device on demand."""

    def __init__(self, tensors: Iterable[torch.Tensor], mover: Mover) -> None:
        self._mover = mover
        self._targets = list(tensors)
        self._host = [mover.hold(tensor.data) for tensor in self._targets]
        self._set(self._host)
        self._mark: object = None
        self._device: list[torch.Tensor] | None = None
        self._entered = False

    @property
    def nbytes(self) -> int:
        """Bytes of one copy."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self._host)

    @property
    def uploaded(self) -> bool:
        """Whether a device copy exists or is under way."""
        return self._device is not None

    @property
    def entered(self) -> bool:
        """Whether the module's tensors are the device copies now."""
        return self._entered

    def fetch(self) -> None:
        """Start copying to the device, if that has not begun."""
        if self._device is None:
            self._device = self._mover.upload(self._host)
            self._mark = self._mover.ready()

    def enter(self) -> None:
        """Make the module's tensors be the device copies; the computation waits for the copy."""
        self.fetch()
        self._mover.wait(self._mark)
        if self._device is not None:
            self._set(self._device)
            self._entered = True

    def leave(self) -> None:
        """Back to the host copies; the device copies are given up."""
        if self._device is None:
            return
        self._set(self._host)
        self._mover.discard(self._device)
        self._device = None
        self._entered = False

    def _set(self, tensors: Sequence[torch.Tensor]) -> None:
        for target, tensor in zip(self._targets, tensors, strict=True):
            target.data = tensor
