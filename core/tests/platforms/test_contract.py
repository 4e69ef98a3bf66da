"""Our own platforms keep the contract. Those whose hardware is not here run on namespaces that
compute on the host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import pytest
import torch

from sgld.api.specs import EMPTY
from sgld.platforms.accelerator import Accelerator
from sgld.platforms.mps import MpsPlatform
from sgld.platforms.platform import Platform
from sgld.testing.conformance import PlatformContract
from sgld.testing.fake_torch import GIB, FakeNamespace

MIB = 2**20


class TestCpu(PlatformContract):
    plugin = "builtin"
    platform = "cpu"


@pytest.fixture(scope="module")
def hole() -> Iterator[None]:
    """The heap holds a freed stretch that is larger than the tensor of the memory test."""
    torch.ones(30 * MIB, dtype=torch.uint8)  # glibc learns to keep blocks of this size
    blocks = [torch.ones(8 * MIB, dtype=torch.uint8) for _ in range(24)]
    above = torch.ones(8 * MIB, dtype=torch.uint8)
    del blocks
    yield
    del above


@pytest.mark.usefixtures("hole")
class TestCpuAmongFreedBlocks(TestCpu):
    """As above, in a process that has served something before."""


@pytest.mark.gpu
class TestCuda(PlatformContract):
    plugin = "builtin"
    platform = "cuda"
    variable = "CUDA_VISIBLE_DEVICES"


class OnTheHost(PlatformContract):
    plugin = "builtin"
    properties: ClassVar[Mapping[str, Any]] = EMPTY

    def open(self) -> Platform:
        kind: type[Accelerator] = self.target()
        return kind(namespace=FakeNamespace(**self.properties), device_type="cpu")


class TestCudaOnTheHost(OnTheHost):
    platform = "cuda"
    variable = "CUDA_VISIBLE_DEVICES"
    properties: ClassVar = {"capability": (9, 0)}


class TestRocm(OnTheHost):
    platform = "rocm"
    variable = "HIP_VISIBLE_DEVICES"
    properties: ClassVar = {"gcnArchName": "gfx942:sramecc+:xnack-"}


class TestXpu(OnTheHost):
    platform = "xpu"
    variable = "ZE_AFFINITY_MASK"
    properties: ClassVar = {"has_fp64": True}


class TestNpu(OnTheHost):
    platform = "npu"
    variable = "ASCEND_RT_VISIBLE_DEVICES"


class TestMusa(OnTheHost):
    platform = "musa"
    variable = "MUSA_VISIBLE_DEVICES"


class Metal:
    """Stands in for torch.mps."""

    held = GIB

    def allocate(self, size: int) -> None:
        self.held += size

    def current_allocated_memory(self) -> int:
        return self.held

    device_count = staticmethod(lambda: 1)
    recommended_max_memory = staticmethod(lambda: 10 * GIB)
    synchronize = staticmethod(lambda: None)
    empty_cache = staticmethod(lambda: None)


class TestMps(PlatformContract):
    plugin = "builtin"
    platform = "mps"

    def open(self) -> Platform:
        return MpsPlatform(namespace=Metal(), device_type="cpu", bfloat16=True)


del OnTheHost, PlatformContract  # what is imported is collected
