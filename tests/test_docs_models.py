"""docs/models.md says what the plugins' records say, and names every pipeline and model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sgld.api.specs import NATIVE
from sgld.plugins.catalog import load_catalog
from sgld_diffusers.tiny import FAMILIES, Family

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
    spec, text = PIPELINES[name].spec, (DOCS / "models.md").read_text(encoding="utf-8")
    native = spec.backend == NATIVE
    assert text.count(f"\n| `{name}` |") == (2 if native else 1)
    for repo in spec.claims.repos:
        assert f"`{repo}`" in text


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.id)
def test_every_family_of_the_fallback_is_there(family: Family) -> None:
    text = (DOCS / "models.md").read_text(encoding="utf-8")
    [row] = [line for line in text.splitlines() if line.startswith(f"| {family.title} |")]
    for name in (family.pipeline, *family.also, *family.masked, *family.guidance, *family.refused):
        assert f"`{name}`" in row
    assert f" {family.task} |" in row
