"""Session-wide tiny checkpoints, one folder per variant, built the first time a test asks.

`tiny("dev")` gives a FLUX.1 checkpoint in diffusers layout, `original("dev")` the same one as
original files; `tiny("dev", "testing2")` takes another module of `sgld_flux` that has
`tiny_…(folder)`. The folders are shared: copy one before changing it. `import oracle1` works from
every test here.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

# Tests run with import-mode=importlib, which does not make siblings importable.
sys.path.insert(0, str(Path(__file__).parent))

Build = Callable[..., Path]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Return `(variant, module="testing") -> Path` of a tiny checkpoint in diffusers layout."""
    root = tmp_path_factory.mktemp("tiny")

    @cache
    def build(variant: str, module: str = "testing") -> Path:
        folder = root / module / variant
        getattr(importlib.import_module(f"sgld_flux.{module}"), f"tiny_{variant}")(folder)
        return folder

    return build


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory, tiny: Build) -> Build:
    """Return `(variant, module="testing") -> Path` of a tiny checkpoint in the original layout."""
    root = tmp_path_factory.mktemp("original")

    @cache
    def build(variant: str, module: str = "testing") -> Path:
        folder = root / module / variant
        source = tiny(variant, module)
        importlib.import_module(f"sgld_flux.{module}").original_layout(source, folder)
        return folder

    return build
