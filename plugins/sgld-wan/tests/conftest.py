"""Session-wide tiny checkpoints, one folder per variant, built the first time a test asks.

Use `tiny("t2v")`, `tiny("i2v")`, `tiny("t2v_a14b")`, `tiny("i2v_a14b")`, `tiny("ti2v_5b")`,
`tiny("dmd")`, `tiny("dmd_ti2v_5b")`, `tiny("dmd_i2v_a14b")`, `tiny("causal_t2v")`,
`tiny("longlive2")` for the diffusers layout and
`original("t2v")`, … for the original one. The folders are shared: copy one before changing it.
`import oracle` works from every test here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

# Tests run with import-mode=importlib, which does not make siblings importable.
sys.path.insert(0, str(Path(__file__).parent))

VARIANTS = ("t2v", "i2v", "t2v_a14b", "i2v_a14b", "ti2v_5b", "dmd")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return `(variant) -> Path` of a tiny checkpoint in diffusers layout."""
    root = tmp_path_factory.mktemp("tiny")

    @cache
    def build(variant: str) -> Path:
        from sgld_wan import testing

        folder = root / variant
        getattr(testing, f"tiny_{variant}")(folder)
        return folder

    return build


@pytest.fixture(scope="session")
def original(
    tmp_path_factory: pytest.TempPathFactory, tiny: Callable[[str], Path]
) -> Callable[[str], Path]:
    """Return `(variant) -> Path` of a tiny checkpoint in the layout of the Wan repositories."""
    root = tmp_path_factory.mktemp("original")

    @cache
    def build(variant: str) -> Path:
        from sgld_wan import testing

        folder = root / variant
        testing.original_layout(tiny(variant), folder)
        return folder

    return build


@pytest.fixture(scope="session")
def tiny_t2v(tiny: Callable[[str], Path]) -> Path:
    """Folder of the tiny Wan 2.1 text-to-video checkpoint."""
    return tiny("t2v")


@pytest.fixture(scope="session")
def tiny_i2v(tiny: Callable[[str], Path]) -> Path:
    """Folder of the tiny Wan 2.1 image-to-video checkpoint (CLIP)."""
    return tiny("i2v")


@pytest.fixture(scope="session")
def tiny_t2v_a14b(tiny: Callable[[str], Path]) -> Path:
    """Folder of the tiny Wan 2.2 text-to-video checkpoint with two experts."""
    return tiny("t2v_a14b")


@pytest.fixture(scope="session")
def tiny_i2v_a14b(tiny: Callable[[str], Path]) -> Path:
    """Folder of the tiny Wan 2.2 image-to-video checkpoint with two experts."""
    return tiny("i2v_a14b")


@pytest.fixture(scope="session")
def tiny_ti2v_5b(tiny: Callable[[str], Path]) -> Path:
    """Folder of the tiny Wan 2.2 TI2V checkpoint."""
    return tiny("ti2v_5b")


@pytest.fixture(scope="session")
def tiny_dmd(tiny: Callable[[str], Path]) -> Path:
    """Folder of the tiny FastWan checkpoint."""
    return tiny("dmd")


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Networks this small lose more by handing work to threads than they win."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
