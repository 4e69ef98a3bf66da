"""Copies in host memory of what a rollback may need, and what they take there."""

from __future__ import annotations

import torch
from torch import Tensor

from sgld.platforms.streams import ONE_ORDER, torch_of


def host_bytes(size: int, device: torch.device | str) -> int:
    """What a tensor of `size` bytes takes in host memory once `to_host` has copied it from there.
    Pinned memory, which copies from devices with streams go to, comes in powers of two."""
    if torch.device(device).type in ONE_ORDER or size <= 0:
        return size
    return 1 << (size - 1).bit_length()


def to_host(tensor: Tensor) -> Tensor:
    """A copy in host memory. From a device with streams it is taken in their order, not waited for,
    into pinned memory: what the same stream does next sees it done, and so does the way back."""
    if tensor.device.type in ONE_ORDER:
        return tensor.to("cpu", copy=True).contiguous()
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)


def synchronize(device: torch.device | str) -> None:
    """Wait until copies to the host are there, before they are read back."""
    namespace = torch_of(torch.device(device))
    if namespace is not None:
        namespace.synchronize(device)
