"""An NVIDIA GPU through torch.cuda: streams, pinned memory, the caching allocator."""

from __future__ import annotations

import torch

from sgld.platforms.accelerator import Accelerator
from sgld.platforms.generations import GPU_ABILITIES, cuda_dtypes


class CudaPlatform(Accelerator):
    """One CUDA device of this process, counted after `CUDA_VISIBLE_DEVICES`."""

    id = "cuda"
    title = "CUDA"
    device_type = "cuda"
    remedy = "Check the driver, CUDA_VISIBLE_DEVICES and that torch is a CUDA build"
    abilities = GPU_ABILITIES

    def build_fault(self) -> str:
        return "this torch is built for ROCm; use device=rocm." if torch.version.hip else ""

    def arch(self) -> int:
        """The compute capability without its dot: 90 for 9.0."""
        major, minor = self._namespace.get_device_capability(self._device)
        return 10 * major + minor

    def dtypes(self) -> frozenset[str]:
        return cuda_dtypes(self.arch())
