"""`docs/platforms.md` says of every platform what its record says."""

from __future__ import annotations

from pathlib import Path

import pytest

from sgld import builtin
from sgld.api import PlatformSpec

DOCS = Path(__file__).parents[3] / "docs" / "platforms.md"
SPECS = list(builtin.sgld_platforms())


@pytest.fixture(scope="module")
def text() -> str:
    if not DOCS.exists():
        pytest.skip("the documentation is not part of this distribution")
    return DOCS.read_text(encoding="utf-8")


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.id)
def test_every_platform_has_its_rows(text: str, spec: PlatformSpec) -> None:
    rows = [line for line in text.splitlines() if line.startswith(f"| `{spec.id}` |")]
    hardware, report, _ = rows
    assert ("yes" in hardware) == (spec.id in ("cpu", "cuda"))
    assert f"| `{spec.collective}`" in report
    preferred = ", ".join(f"`{name}`" for name in spec.attention) or "narrowest fit"
    assert report.endswith(f"| {preferred} |")
    for package in spec.requires.packages:
        assert f"`{package}`" in report
