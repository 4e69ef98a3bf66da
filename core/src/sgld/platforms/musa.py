"""A Moore Threads GPU through torch.musa, which the package torch_musa brings."""

from __future__ import annotations

from sgld.platforms.accelerator import Accelerator


class MusaPlatform(Accelerator):
    """One MUSA device of this process, counted after `MUSA_VISIBLE_DEVICES`."""

    id = "musa"
    title = "MUSA"
    device_type = "musa"
    package = "torch_musa"
    remedy = "Check the MUSA driver, MUSA_VISIBLE_DEVICES and that torch_musa fits this torch"

    def arch(self) -> int:
        """The compute capability without its dot: 22 for 2.2."""
        major, minor = self._namespace.get_device_capability(self._device)
        return 10 * major + minor

    def reset_peak(self) -> None:
        if hasattr(self._namespace, "reset_peak_memory_stats"):
            super().reset_peak()
        else:  # its name in releases before the package followed torch.cuda here
            self._namespace.reset_peak_stats(self._device)
