"""Metadata of a distribution against what is installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sgld.plugins.doctor.rows import Row
from sgld.plugins.doctor.wheels import wheel_rows
from sgld.plugins.find import Found


@pytest.fixture
def rows(new_site: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Row]]:
    """The rows for a distribution with these lines of metadata; other-dist 2.5rc1 is there too."""

    def look(*metadata: str) -> list[Row]:
        site = new_site()
        site.add("mine", metadata=metadata)
        for version, name in (("2.5rc1", "other-dist"), ("not a version", "odd-dist")):
            info = site.folder / f"{name.replace('-', '_')}-{version.split()[0]}.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
        monkeypatch.syspath_prepend(site.folder)
        return wheel_rows(Found("mine", "mine_dist.plugin", "mine-dist", "1.0", "installed"))

    return look


GOOD = [
    (),
    ("Requires-Dist: other-dist",),
    ("Requires-Dist: Other_Dist >=2,<3",),
    ("Requires-Dist: other-dist[extra]>=2",),
    ("Requires-Dist: other-dist (>=2.0)",),
    ("Requires-Dist: no-such-dist-x; python_version < '3'",),
    ("Requires-Dist: no-such-dist-x>=1; extra == 'cuda'",),
    ("Requires-Python: >=3.11",),
]


@pytest.mark.parametrize("metadata", GOOD)
def test_what_holds(rows: Callable[..., list[Row]], metadata: tuple[str, ...]) -> None:
    (row,) = rows(*metadata)
    assert (row.level, row.check) == ("ok", "wheel")


BAD = [
    ("Requires-Dist: no-such-dist-x", "needs no-such-dist-x, which is not installed"),
    ("Requires-Dist: other-dist>=3", "needs other-dist>=3; 2.5rc1 is installed"),
    ("Requires-Dist: other-dist<2.5rc1", "2.5rc1 is installed"),
    ("Requires-Dist: odd-dist>=1", "needs odd-dist>=1"),
    ("Requires-Dist: >=1", "'>=1', which is no requirement"),
    ("Requires-Python: <3", "needs Python <3"),
    ("Requires-Python: three", "'three', which is no range"),
]


@pytest.mark.parametrize(("line", "part"), BAD)
def test_what_does_not_hold(rows: Callable[..., list[Row]], line: str, part: str) -> None:
    (row,) = rows(line)
    assert (row.level, row.code) == ("bad", "SGLD-P020")
    assert part in row.message
    assert row.remedy


def test_a_package_without_metadata_has_nothing_to_compare() -> None:
    (row,) = wheel_rows(Found("x", "x", "no_such_dist_x", "", "local"))
    assert row.level == "ok"
    assert "no metadata" in row.message
