"""How weights get onto a device and what happens to their copies when they leave."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch


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
    """Moves by plain torch copies; on CUDA from pinned memory, with a stream of its own."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._cuda = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if self._cuda else None

    def hold(self, tensor: torch.Tensor) -> torch.Tensor:
        host = tensor.detach().to("cpu")
        return host.pin_memory() if self._cuda and not host.is_pinned() else host

    def upload(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [tensor.to(self._device, non_blocking=True, copy=True) for tensor in tensors]

    @contextmanager
    def ahead(self) -> Iterator[None]:
        if self._stream is None:
            yield
            return
        with torch.cuda.stream(self._stream):
            yield

    def ready(self) -> object:
        if self._stream is None:
            return None
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        return event

    def wait(self, mark: object) -> None:
        if isinstance(mark, torch.cuda.Event):
            torch.cuda.current_stream(self._device).wait_event(mark)

    def discard(self, tensors: Sequence[torch.Tensor]) -> None:
        if self._cuda:
            # Memory that the copy stream allocated must not be given out again while the
            # computation still reads it.
            stream = torch.cuda.current_stream(self._device)
            for tensor in tensors:
                tensor.record_stream(stream)
