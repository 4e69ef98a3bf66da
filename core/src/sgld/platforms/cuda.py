"""An NVIDIA GPU through torch.cuda: streams, pinned memory, the caching allocator."""

from __future__ import annotations

from typing import Any

import structlog
import torch

from sgld.platforms.accelerator import Accelerator
from sgld.platforms.allocator import Allocator, grow_segments
from sgld.platforms.generations import GPU_ABILITIES, cuda_dtypes

log = structlog.get_logger("sgld.platforms")


class CudaPlatform(Accelerator):
    """One CUDA device of this process, counted after `CUDA_VISIBLE_DEVICES`."""

    id = "cuda"
    title = "CUDA"
    device_type = "cuda"
    remedy = "Check the driver, CUDA_VISIBLE_DEVICES and that torch is a CUDA build"
    abilities = GPU_ABILITIES

    def __init__(self, index: int = 0, *, namespace: Any = None, device_type: str = "") -> None:
        super().__init__(index, namespace=namespace, device_type=device_type)
        if namespace is None:
            why_not = grow_segments(Allocator(self._device))
            log.debug("segments grow" if not why_not else "segments stay fixed", reason=why_not)

    def build_fault(self) -> str:
        return "this torch is built for ROCm; use device=rocm." if torch.version.hip else ""

    def arch(self) -> int:
        """The compute capability without its dot: 90 for 9.0."""
        major, minor = self._namespace.get_device_capability(self._device)
        return 10 * major + minor

    def dtypes(self) -> frozenset[str]:
        return cuda_dtypes(self.arch())
