"""docs/parameters.md says what the classes say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

GENERATOR = Path(__file__).parents[2] / "docs" / "generate_parameters.py"


@pytest.mark.skipif(not GENERATOR.exists(), reason="only in the workspace, not in an sdist")
def test_the_page_is_current():
    done = subprocess.run(
        [sys.executable, str(GENERATOR), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (
        f"{done.stdout}{done.stderr}\nRun: uv run python docs/generate_parameters.py"
    )
