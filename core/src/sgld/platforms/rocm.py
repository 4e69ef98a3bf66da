"""An AMD GPU through a ROCm build of torch, whose HIP devices answer under the name torch.cuda."""

from __future__ import annotations

import torch

from sgld.platforms.accelerator import Accelerator
from sgld.platforms.generations import GPU_ABILITIES, rocm_dtypes
from sgld.platforms.probes.rocm import arch_of_gfx


class RocmPlatform(Accelerator):
    """One HIP device of this process, counted after `ROCR_VISIBLE_DEVICES` and
    `HIP_VISIBLE_DEVICES` (or, where that is not set, `CUDA_VISIBLE_DEVICES`).
    Its torch device is called `cuda`."""

    id = "rocm"
    title = "ROCm"
    device_type = "cuda"
    remedy = "Check the amdgpu driver, HIP_VISIBLE_DEVICES and that torch is a ROCm build"
    abilities = GPU_ABILITIES

    def build_fault(self) -> str:
        return "" if torch.version.hip else "this torch is not built for ROCm."

    def arch(self) -> int:
        """The kernel driver's gfx_target_version: 90402 for gfx942, 110000 for gfx1100."""
        return arch_of_gfx(self._namespace.get_device_properties(self._device).gcnArchName)

    def dtypes(self) -> frozenset[str]:
        return rocm_dtypes(self.arch())
