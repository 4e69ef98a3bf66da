"""Session-wide tiny checkpoints, one folder per variant, built the first time a test asks.

Use `tiny("sana")`, `tiny("sana15")`, `tiny("sana_2k")`, `tiny("sprint")`, `tiny("video")`,
`tiny("video_i2v")`. The folders are shared: copy one before changing it. `import sana_oracle` works
from every test here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

# Tests run with import-mode=importlib, which does not make siblings importable.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return `(variant) -> Path` of a tiny checkpoint in the diffusers layout."""
    root = tmp_path_factory.mktemp("sana")

    @cache
    def build(variant: str) -> Path:
        from sgld_sana import testing

        folder = root / variant
        getattr(testing, f"tiny_{variant}")(folder)
        return folder

    return build
