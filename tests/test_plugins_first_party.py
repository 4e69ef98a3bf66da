"""The doctor over what this workspace publishes: nothing to say, not even a note.

CI also runs it with `--deep`, which takes a while: every plugin's process imports torch.
"""

from __future__ import annotations

import pytest

from sgld.plugins.doctor import show
from sgld.plugins.doctor.check import check
from sgld.plugins.find import find


def test_every_plugin_of_ours_is_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    report = check({}, timeout=120)
    told = [f"{row.code} {row.message}" for row in report.rows() if row.level != "ok"]
    assert not told, show.text(report, strict=True)
    ours = {row.name for row in find({}).found}
    assert {row.found.name for row in report.plugins} == ours >= {"builtin", "wan"}
    assert report.machine is not None
    assert all(row.choice is not None for row in report.machine.decisions)
