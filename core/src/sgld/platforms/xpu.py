"""An Intel GPU through torch.xpu (SYCL over Level Zero)."""

from __future__ import annotations

from sgld.platforms.accelerator import Accelerator


class XpuPlatform(Accelerator):
    """One XPU of this process, counted after `ZE_AFFINITY_MASK`."""

    id = "xpu"
    title = "XPU"
    device_type = "xpu"
    remedy = "Check the Intel compute runtime, ZE_AFFINITY_MASK and that torch is an XPU build"

    def dtypes(self) -> frozenset[str]:
        names = {"float32", "float16"}
        # What is only emulated would be slower than float16.
        if self._namespace.is_bf16_supported(including_emulation=False):
            names.add("bfloat16")
        if self._namespace.get_device_properties(self._device).has_fp64:
            names.add("float64")
        return frozenset(names)

    def free_and_total(self) -> tuple[int, int]:
        try:
            return super().free_and_total()
        except RuntimeError:
            # Drivers without system management do not say what other processes hold.
            total = self._namespace.get_device_properties(self._device).total_memory
            return total - self._namespace.memory_reserved(self._device), total
