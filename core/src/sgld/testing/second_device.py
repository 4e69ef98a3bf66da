"""A second device that is really the host, so that moving weights can be tested anywhere.

It behaves like a device in the ways that matter: its copies are separate memory, and a copy that
was given up is overwritten with NaN, so that any use of it afterwards shows in the result.
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

    def hold(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor itself."""
        return tensor.detach()

    def upload(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Separate copies, counted."""
        self.uploads += 1
        self.bytes_now += sum(tensor.nbytes for tensor in tensors)
        self.bytes_peak = max(self.bytes_peak, self.bytes_now)
        return [tensor.clone() for tensor in tensors]

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
                tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor.zero_()
