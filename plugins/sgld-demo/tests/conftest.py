"""The world, loaded once, and the renderer that it learned from (`examples/train_demo_world`)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

# Tests run with import-mode=importlib, which makes neither examples nor siblings importable.
sys.path.insert(0, str(Path(__file__).parents[3] / "examples" / "train_demo_world"))


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Restored after each module, for the tests of others."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def world() -> Iterator[Any]:
    """`demo:world` on the CPU."""
    import sgld

    with sgld.load("demo:world", device="cpu", dtype="float32") as model:
        yield model
