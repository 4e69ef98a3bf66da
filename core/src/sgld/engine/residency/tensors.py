"""The tensors of a module as one list that can be swapped in and out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import nn

from sgld.engine.residency.movers import Mover


class Swappable:
    """The parameters and buffers of some modules: held on the host, copied to the device on demand.

    A tensor that is shared by several names is moved once.
    """

    def __init__(self, owners: Iterable[nn.Module], mover: Mover) -> None:
        self._mover = mover
        self._targets: list[torch.Tensor] = []
        seen: set[int] = set()
        for owner in owners:
            for tensor in [*owner.parameters(), *owner.buffers()]:
                if id(tensor) not in seen:
                    seen.add(id(tensor))
                    self._targets.append(tensor)
        self._host = [mover.hold(tensor.data) for tensor in self._targets]
        self._set(self._host)
        self._mark: object = None
        self._device: list[torch.Tensor] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of one copy."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self._host)

    @property
    def uploaded(self) -> bool:
        """Whether a device copy exists or is under way."""
        return self._device is not None

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

    def leave(self) -> None:
        """Back to the host copies; the device copies are given up."""
        if self._device is None:
            return
        self._set(self._host)
        self._mover.discard(self._device)
        self._device = None

    def _set(self, tensors: Sequence[torch.Tensor]) -> None:
        for target, tensor in zip(self._targets, tensors, strict=True):
            target.data = tensor
