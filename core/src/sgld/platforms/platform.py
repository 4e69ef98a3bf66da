"""What the engine asks of a device family: its facts, its memory, its streams.

A platform object belongs to one device and is handed to whoever needs it; there is no current one.
Noise is never drawn here: it comes from the CPU, so that a seed means the same everywhere.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sgld.api.contracts import DeviceFacts


class Memory(NamedTuple):
    """Bytes: of the device, still free for this process, held by tensors now, held at most.

    On the CPU the last two are the process's resident memory, since torch does not count there.
    """

    total: int
    free: int
    allocated: int
    peak: int


class Platform(ABC):
    """One device of a family. Subclasses say what differs; the defaults fit a device like the CPU,
    which has no streams and no allocator cache, so that doing nothing is right."""

    id: str

    @property
    @abstractmethod
    def torch_device(self) -> torch.device:
        """The device, with its index where the family has several."""

    @abstractmethod
    def facts(self) -> DeviceFacts:
        """What the device is and can do."""

    @abstractmethod
    def default_dtype(self) -> torch.dtype:
        """The dtype that models run in when the user names none."""

    @abstractmethod
    def memory(self) -> Memory:
        """Bytes now; does not wait for the device."""

    @abstractmethod
    def reset_peak(self) -> None:
        """Let `Memory.peak` start again from what is held now."""

    def synchronise(self) -> None:  # noqa: B027
        """Wait until the device has done everything that was asked of it."""

    @contextmanager
    def stream(self) -> Iterator[Any]:
        """Work inside runs beside the computation where the device can, after what came before.

        Yields the stream, or None where there is none. Leaving does not wait: call `join`.
        """
        yield None

    def join(self, stream: Any, *tensors: Tensor) -> None:  # noqa: B027
        """Let later work wait for `stream`, and keep its `tensors` alive until that work is done;
        the host does not wait."""

    def empty_cache(self) -> None:  # noqa: B027
        """Give memory that is held but not used back to the device."""
