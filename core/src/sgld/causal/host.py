"""Copies in host memory of what a rollback may need, and what they take there."""

from __future__ import annotations

import torch
from torch import Tensor


def host_bytes(size: int, device: torch.device | str) -> int:
    """What a tensor of `size` bytes takes in host memory once `to_host` has copied it from there.
    Pinned memory, which copies from CUDA go to, comes in powers of two."""
    if torch.device(device).type != "cuda" or size <= 0:
        return size
    return 1 << (size - 1).bit_length()


def to_host(tensor: Tensor) -> Tensor:
    """A copy in host memory. From CUDA it is taken in stream order without waiting, into pinned
    memory: whatever the same stream does next sees it done, and so does the way back."""
    if tensor.device.type != "cuda":
        return tensor.to("cpu", copy=True).contiguous()
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)


def synchronize(device: torch.device | str) -> None:
    """Wait until copies to the host are there, before they are read back."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
