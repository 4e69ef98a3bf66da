"""The GPU of an Apple machine through torch.mps. It shares the host's memory."""

from __future__ import annotations

from typing import Any

import torch

from sgld.api.contracts import DeviceFacts
from sgld.api.errors import DeviceError
from sgld.platforms.generations import mps_dtypes
from sgld.platforms.platform import Memory, Platform

BF16_MACOS = 14


class MpsPlatform(Platform):
    """The one Metal device. It has no float64; work is queued on one stream, in order.

    Args:
        namespace: stands in for `torch.mps`, with `device_type` and `bfloat16`, where there is no
            such device.
        device_type: torch's word for the device that goes with `namespace`.
        bfloat16: whether the system computes in it.

    Raises:
        DeviceError: torch sees no such device.
    """

    id = "mps"

    def __init__(
        self, *, namespace: Any = None, device_type: str = "mps", bfloat16: bool | None = None
    ) -> None:
        self._namespace = torch.mps if namespace is None else namespace
        if not self._namespace.device_count():
            raise DeviceError(
                "device=mps: torch sees no MPS device.",
                remedy="It takes macOS 12.3 or later on Apple silicon, or choose device=cpu.",
            )
        if bfloat16 is None:
            bfloat16 = torch.backends.mps.is_macos_or_newer(BF16_MACOS, 0)
        self._bfloat16 = bfloat16
        self._device = torch.device(device_type)
        self._peak = 0

    @property
    def torch_device(self) -> torch.device:
        return self._device

    def facts(self) -> DeviceFacts:
        return DeviceFacts("mps", 0, mps_dtypes(BF16_MACOS if self._bfloat16 else 0), frozenset())

    def default_dtype(self) -> torch.dtype:
        return torch.bfloat16 if self._bfloat16 else torch.float16

    def memory(self) -> Memory:
        """Total is what Metal recommends to use. Metal keeps no high-water mark: `peak` is the most
        that was ever read here."""
        total = self._namespace.recommended_max_memory()
        allocated = self._namespace.current_allocated_memory()
        self._peak = max(self._peak, allocated)
        return Memory(total, max(0, total - allocated), allocated, self._peak)

    def reset_peak(self) -> None:
        self._peak = 0

    def synchronise(self) -> None:
        self._namespace.synchronize()

    def empty_cache(self) -> None:
        self._namespace.empty_cache()
