"""The doctor over what this workspace publishes: nothing to say, not even a note."""

from __future__ import annotations

import pytest

from sgld.plugins.doctor import show
from sgld.plugins.doctor.check import check
from sgld.plugins.find import find


@pytest.mark.parametrize(
    "deep",
    [
        False,
        # Every plugin's process imports torch, and most of them diffusers and transformers too.
        pytest.param(True, marks=[pytest.mark.slow, pytest.mark.multi_process]),
    ],
    ids=["", "deep"],
)
def test_every_plugin_of_ours_is_in_order(monkeypatch: pytest.MonkeyPatch, deep: bool) -> None:
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    report = check({}, deep=deep, timeout=300)
    told = [f"{row.code} {row.message}" for row in report.rows() if row.level != "ok"]
    assert not told, show.text(report, strict=True)
    ours = {row.name for row in find({}).found}
    assert {row.found.name for row in report.plugins} == ours >= {"builtin", "wan"}
    assert report.machine is not None
    assert all(row.choice is not None for row in report.machine.decisions)
    looked = {(row.found.name, one.check) for row in report.plugins for one in row.rows}
    assert ("demo", "models") in looked
    assert deep == (("wan", "deep") in looked)
