"""The tiny checkpoint and the golden tensors, each made or read once.

`import lingbot_oracle`, `lingbot_bench` and `lingbot_golden` work from every test here. Torch runs
on one thread: the tensors are so small that several would only wait for each other.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

# Tests run with import-mode=importlib, which does not make siblings importable.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Restored after each module, for the tests of others."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint; shared, so copy it before changing it."""
    from sgld_lingbot import testing

    folder = tmp_path_factory.mktemp("lingbot") / "tiny"
    testing.tiny(folder)
    return folder
