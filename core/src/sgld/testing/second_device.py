"""A second device that is really the host, so that moving weights can be tested anywhere.

It behaves like a device in the ways that matter: its copies are separate memory, a copy that was
given up is overwritten with NaN, and what lies on the host is NaN to whoever computes with it, so
that any use of a tensor that is not on the device shows in the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch


class FakeDeviceMover:
    """A `Mover` that counts uploads and bytes and poisons what is discarded."""

    def __init__(self) -> None:
        self.uploads = 0
        self.bytes_now = 0
        self.bytes_peak = 0
        # By address: the holder keeps the host tensor alive, so that no other one can have it.
        self._real: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def hold(self, tensor: torch.Tensor) -> torch.Tensor:
        """A stand-in that is NaN; the real values are kept beside it."""
        host = tensor.detach()
        if host.data_ptr() in self._real or not host.numel():
            return host
        with torch.inference_mode():
            stand_in = host.clone()
            _poison(stand_in)
            self._real[stand_in.data_ptr()] = (stand_in, host.clone())
        return stand_in

    def upload(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Separate copies, counted."""
        self.uploads += 1
        self.bytes_now += sum(tensor.nbytes for tensor in tensors)
        self.bytes_peak = max(self.bytes_peak, self.bytes_now)
        real = (self._real.get(t.data_ptr(), (t, t))[1] for t in tensors)
        return [tensor.clone() for tensor in real]

    @contextmanager
    def ahead(self) -> Iterator[None]:
        """Nothing runs beside anything here."""
        yield

    def ready(self) -> object:
        """No mark is needed."""
        return None

    def wait(self, mark: object) -> None:
        """Nothing to wait for."""

    def discard(self, tensors: Sequence[torch.Tensor]) -> None:
        """Poison the copies."""
        with torch.inference_mode():
            for tensor in tensors:
                self.bytes_now -= tensor.nbytes
                _poison(tensor)


def _poison(tensor: torch.Tensor) -> None:
    tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor.zero_()
