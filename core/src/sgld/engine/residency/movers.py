"""How weights get onto a device and what happens to their copies when they leave."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch

from sgld.platforms import streams
from sgld.platforms.streams import torch_of


class Mover(Protocol):
    """Copies host tensors to a device. Weights are read-only, so nothing is ever copied back."""

    def hold(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor on the host, in the memory from which uploads are fastest."""
        ...

    def upload(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Copies of host tensors on the device; the device may still be copying."""
        ...

    @contextmanager
    def ahead(self) -> Iterator[None]:
        """Uploads inside run beside the computation, where the device can."""
        ...

    def ready(self) -> object:
        """A mark after the uploads so far."""
        ...

    def wait(self, mark: object) -> None:
        """Let the computation wait for a mark; the host does not wait."""
        ...

    def discard(self, tensors: Sequence[torch.Tensor]) -> None:
        """Device copies that are no longer needed."""
        ...


class TorchMover:
    """Moves by plain torch copies; where the device has streams from pinned memory, on a stream of
    its own."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._torch = torch_of(device)
        self._stream = None if self._torch is None else self._torch.Stream(device)

    def hold(self, tensor: torch.Tensor) -> torch.Tensor:
        host = tensor.detach().to("cpu")
        return host if self._stream is None or host.is_pinned() else host.pin_memory()

    def upload(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [tensor.to(self._device, non_blocking=True, copy=True) for tensor in tensors]

    @contextmanager
    def ahead(self) -> Iterator[None]:
        if self._stream is None:
            yield
            return
        with self._torch.stream(self._stream):
            yield

    def ready(self) -> object:
        return streams.mark(self._device)

    def wait(self, mark: object) -> None:
        streams.wait(self._device, mark)

    def discard(self, tensors: Sequence[torch.Tensor]) -> None:
        # Memory that the copy stream allocated must not be given out again while the computation
        # still reads it.
        for tensor in tensors:
            streams.keep(tensor)
