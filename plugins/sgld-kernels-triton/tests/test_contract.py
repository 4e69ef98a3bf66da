"""Every kernel keeps the contract of its op: on a GPU as it is recorded, interpreted on the CPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import ModuleType

import pytest

from sgld.api import Requires
from sgld.testing.conformance import KernelContract
from sgld.testing.conformance.op_cases import Sizes
from sgld.testing.isolated import local_plugin
from sgld_kernels_triton.plugin import TARGETS, kernel_id, sgld_kernels

if os.environ.get("TRITON_INTERPRET") == "1":

    @pytest.fixture(scope="module")
    def anywhere() -> Iterator[ModuleType]:
        """The same records, but for the device."""
        records = [spec._replace(requires=Requires(device="cpu")) for spec in sgld_kernels()]
        with local_plugin("triton-interpreted", *records) as module:
            yield module

    @pytest.fixture(autouse=True)
    def _plugin(anywhere: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Kernels, "plugin", anywhere)


class Kernels(KernelContract):
    """One of them; the width is no power of two, so that tiles are masked."""

    plugin = "triton"
    sizes = Sizes(width=96, heads=3)


for op in TARGETS:
    name = f"Test{op.title().replace('.', '').replace('_', '')}"
    globals()[name] = type(name, (Kernels,), {"kernel": kernel_id(op), "__module__": __name__})

del KernelContract  # what is imported is collected
