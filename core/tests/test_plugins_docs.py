"""The author's reference names every hook, record and contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from sgld.api.contracts import CONTRACTS
from sgld.plugins.describe import HOOKS

DOCS = Path(__file__).parents[2] / "docs" / "plugins.md"


@pytest.fixture(scope="module")
def text() -> str:
    if not DOCS.exists():
        pytest.skip("the documentation is not part of this distribution")
    return DOCS.read_text(encoding="utf-8")


@pytest.mark.parametrize(("hook", "record"), [(h, r.__name__) for h, (_, r) in HOOKS.items()])
def test_every_hook_is_documented_with_its_exact_signature(
    text: str, hook: str, record: str
) -> None:
    assert f"### `{hook}() -> Iterable[{record}]`" in text


def test_the_required_hook_is_documented(text: str) -> None:
    assert "### `sgld_plugin() -> Plugin`" in text


@pytest.mark.parametrize("kind", CONTRACTS)
def test_every_contract_is_documented(text: str, kind: str) -> None:
    low, high = CONTRACTS[kind]
    assert f"| `{kind}` | {low}..{high} |" in text


def test_the_documented_example_is_a_plugin_that_works(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    from sgld.plugins.describe import describe, new_manager
    from sgld.plugins.find import Found

    code = text.partition("```python\n")[2].partition("```")[0]
    assert "@hookimpl" in code
    (tmp_path / "documented_plugin.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    found = Found("acme", "documented_plugin", "acme-sgld", "0.1", "installed")
    outcome = describe(found, new_manager())
    sys.modules.pop("documented_plugin", None)
    assert outcome.failure is None, outcome.failure
    assert outcome.described is not None
    assert outcome.described.records["pipeline"]
