"""A Huawei Ascend NPU through torch.npu, which the package torch_npu brings."""

from __future__ import annotations

from sgld.platforms.accelerator import Accelerator


class NpuPlatform(Accelerator):
    """One NPU of this process, counted after `ASCEND_RT_VISIBLE_DEVICES`. It has no float64."""

    id = "npu"
    title = "NPU"
    device_type = "npu"
    package = "torch_npu"
    remedy = "Check CANN, ASCEND_RT_VISIBLE_DEVICES and that torch_npu fits this torch"
