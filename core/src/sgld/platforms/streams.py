"""Streams and events of the device that a tensor is on, for code that has a torch device at hand
and no platform.

    torch_of(device)      torch.cuda, torch.xpu, torch.npu, ...; None where work has one order only
    mark(device)          an event after all that was asked of the device so far
    wait(device, mark)    let later work wait for it; the host does not wait
    keep(tensor)          the current stream reads the tensor: its memory is not given out before
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

ONE_ORDER: Final = frozenset({"cpu", "meta", "mps"})
"""Devices on which nothing runs beside anything else."""


def torch_of(device: torch.device) -> Any:
    """The torch namespace with the device's streams and events, or None where it has none."""
    return None if device.type in ONE_ORDER else torch.get_device_module(device)


def mark(device: torch.device) -> Any:
    """An event after the work so far on the current stream; None where work has one order."""
    namespace = torch_of(device)
    if namespace is None:
        return None
    event = namespace.Event()
    event.record(namespace.current_stream(device))
    return event


def wait(device: torch.device, mark: Any) -> None:
    """Let the current stream wait for a mark of the same device."""
    if mark is not None:
        torch_of(device).current_stream(device).wait_event(mark)


def keep(tensor: Tensor) -> None:
    """Tell the allocator that the current stream reads `tensor`, which another one may have made:
    its memory is not given out again before it has. Nothing to do on the host."""
    namespace = torch_of(tensor.device)
    if namespace is not None:
        tensor.record_stream(namespace.current_stream(tensor.device))
