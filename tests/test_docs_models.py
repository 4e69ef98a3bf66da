"""docs/models.md says what the plugins' records say, and names every pipeline and model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sgld.plugins.catalog import load_catalog

DOCS = Path(__file__).parents[1] / "docs"
PIPELINES = load_catalog({}).pipelines


def test_the_page_is_current() -> None:
    done = subprocess.run(
        [sys.executable, str(DOCS / "generate_models.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\nRun docs/generate_models.py"


@pytest.mark.parametrize("name", PIPELINES)
def test_every_pipeline_is_there(name: str) -> None:
    text = (DOCS / "models.md").read_text(encoding="utf-8")
    assert text.count(f"\n| `{name}` |") == 2
    for repo in PIPELINES[name].spec.claims.repos:
        assert f"`{repo}`" in text
