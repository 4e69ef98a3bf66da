"""Where the kernels of these tests run.

In an ordinary run they need a GPU and `--sgld-device=cuda`, and are marked `gpu`.
`test_interpreted.py` runs the same files in a process of its own with TRITON_INTERPRET=1, where
Triton executes kernels on the CPU: the switch must be set before triton is imported and holds for
the whole process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
ON_DEVICE = ("test_contract.py", "test_properties.py", "test_lingbot.py")
"""Files whose tests launch kernels."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if not INTERPRETED and item.path.parent == here and item.path.name in ON_DEVICE:
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(scope="session", autouse=True)
def nearest_even() -> Iterator[None]:
    """Triton's interpreter cuts float32 off to bfloat16; hardware rounds to the nearest even."""
    if not INTERPRETED:
        yield
        return
    import torch
    from triton import language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    plain = InterpreterBuilder.cast_impl

    def rounded(self, src, dst_type):
        if (src.dtype.scalar, dst_type.scalar) != (tl.float32, tl.bfloat16):
            return plain(self, src, dst_type)
        bits = torch.from_numpy(src.data.copy()).bfloat16().view(torch.uint16)
        return TensorHandle(bits.numpy(), dst_type.scalar)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InterpreterBuilder, "cast_impl", rounded)
        yield


@pytest.fixture(scope="session")
def device(sgld_device: str) -> str:
    """Where tensors of the kernels live."""
    if not INTERPRETED and not sgld_device.startswith("cuda"):
        pytest.skip("needs --sgld-device=cuda; test_interpreted.py runs it on the CPU")
    return sgld_device
