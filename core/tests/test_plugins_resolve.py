"""Who holds an id: declared replacements, pins, clashes, and that order never decides."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgld.api import AttentionSpec, Claims, PipelineSpec, Plugin, RealtimeSpec, Where
from sgld.plugins.describe import Described
from sgld.plugins.find import Found
from sgld.plugins.resolve import Resolved, resolve

ID = "wan-t2v"


def plugin(name: str, *records: Any, dist: str = "", source: Any = "installed") -> Described:
    kinds: dict[str, tuple[Any, ...]] = {}
    for record in records:
        kind = type(record).__name__.removesuffix("Spec").lower()
        kinds[kind] = (*kinds.get(kind, ()), record)
    found = Found(name, f"{name}.plugin", dist or f"sgld-{name}", "1.0", source)
    return Described(found, Plugin(name, {}), kinds)


def pipeline(replaces: str = "", *, repo: str = "", name: str = ID, **more: Any) -> PipelineSpec:
    claims = Claims(repos=(repo,) if repo else ())
    return PipelineSpec(name, "m:P", "m:Q", ("text-to-video",), claims, replaces=replaces, **more)


def codes(result: Resolved) -> list[tuple[str, str]]:
    return sorted((row.code, row.plugin) for row in result.failures)


def owner(result: Resolved, name: str = ID, kind: str = "pipeline") -> str:
    entry = result.entries[kind].get(name)
    return entry.dist if entry else ""


def test_one_claimant_holds_it() -> None:
    result = resolve([plugin("wan", pipeline())], {})
    entry = result.entries["pipeline"][ID]
    assert (entry.plugin, entry.dist, entry.version) == ("wan", "sgld-wan", "1.0")
    assert entry.owner == "sgld-wan 1.0"
    assert not result.failures


def test_p005_two_claimants_neither_used_both_named() -> None:
    result = resolve([plugin("wan", pipeline()), plugin("acme", pipeline())], {})
    assert owner(result) == ""
    assert codes(result) == [("SGLD-P005", "acme"), ("SGLD-P005", "wan")]
    for row in result.failures:
        assert "sgld-acme 1.0 and sgld-wan 1.0" in row.message
        assert f"--prefer pipeline:{ID}=sgld-acme" in row.hint


def test_the_same_id_in_two_kinds_is_no_clash() -> None:
    result = resolve([plugin("a", pipeline()), plugin("b", AttentionSpec(ID, "m:x"))], {})
    assert owner(result) == "sgld-a"
    assert owner(result, kind="attention") == "sgld-b"
    assert not result.failures


def test_replaces_names_its_victim_and_inherits_its_claims() -> None:
    rule = (Where("f.json", "k"),)
    victim = pipeline(repo="a/old")._replace(claims=Claims(("a/old",), ("old",), (rule,)))
    fast = plugin("fast", pipeline("SGLD_wan", repo="a/new"), dist="acme-fast")
    result = resolve([plugin("wan", victim), fast], {})
    entry = result.entries["pipeline"][ID]
    assert entry.dist == "acme-fast"
    assert entry.replaced == ("sgld-wan 1.0",)
    assert entry.spec.claims == Claims(("a/new", "a/old"), ("old",), (rule,))
    assert not result.failures


def test_replaces_of_another_distribution_does_not_count() -> None:
    rows = [plugin("wan", pipeline()), plugin("acme", pipeline("sgld-flux"))]
    result = resolve(rows, {})
    assert owner(result) == ""
    assert codes(result) == [("SGLD-P005", "acme"), ("SGLD-P005", "wan"), ("SGLD-P006", "acme")]


def test_p006_missing_victim_is_a_note_and_the_record_is_used() -> None:
    result = resolve([plugin("acme", pipeline("sgld-wan"))], {})
    assert owner(result) == "sgld-acme"
    assert codes(result) == [("SGLD-P006", "acme")]
    assert "'sgld-wan'" in result.failures[0].message


def test_two_replacers_clash_until_the_user_pins_one() -> None:
    rows = [
        plugin("wan", pipeline(repo="a/old")),
        plugin("one", pipeline("sgld-wan")),
        plugin("two", pipeline("sgld-wan")),
    ]
    assert owner(resolve(rows, {})) == ""
    assert {code for code, _ in codes(resolve(rows, {}))} == {"SGLD-P005"}
    pinned = resolve(rows, {f"pipeline:{ID}": "sgld-two"})
    assert owner(pinned) == "sgld-two"
    assert pinned.entries["pipeline"][ID].spec.claims.repos == ("a/old",)
    assert not pinned.failures


def test_a_pin_beats_a_replacement_and_may_name_the_plugin() -> None:
    rows = [plugin("wan", pipeline()), plugin("fast", pipeline("sgld-wan"))]
    assert owner(resolve(rows, {})) == "sgld-fast"
    result = resolve(rows, {f"pipeline:{ID}": "wan"})
    assert owner(result) == "sgld-wan"
    assert result.entries["pipeline"][ID].replaced == ()


def test_a_pin_that_names_nobody_is_noted() -> None:
    result = resolve([plugin("wan", pipeline())], {f"pipeline:{ID}": "nobody", "cache:x": "wan"})
    assert owner(result) == "sgld-wan"
    assert codes(result) == [("SGLD-P006", "nobody"), ("SGLD-P006", "wan")]


def test_a_chain_of_replacements_ends_at_the_last() -> None:
    rows = [
        plugin("wan", pipeline(repo="a/b")),
        plugin("one", pipeline("sgld-wan")),
        plugin("two", pipeline("sgld-one")),
    ]
    result = resolve(rows, {})
    assert owner(result) == "sgld-two"
    assert result.entries["pipeline"][ID].spec.claims.repos == ("a/b",)


def test_star_replaces_everyone_and_two_stars_clash() -> None:
    rows = [
        plugin("wan", pipeline()),
        plugin("fast", pipeline("sgld-wan")),
        plugin("mine", pipeline("*"), dist="my_pkg", source="local"),
    ]
    assert owner(resolve(rows, {})) == "my_pkg"
    other = plugin("yours", pipeline("*"), dist="your_pkg", source="local")
    assert owner(resolve([*rows, other], {})) == ""


def test_retired_is_a_tombstone_and_a_live_record_wins() -> None:
    grave = plugin("wan", pipeline(retired="0.4"))
    result = resolve([grave], {})
    assert owner(result) == ""
    assert result.retired[ID].spec.retired == "0.4"
    assert not result.failures
    alive = resolve([grave, plugin("acme", pipeline())], {})
    assert owner(alive) == "sgld-acme"
    assert not alive.failures


def test_an_adapter_of_a_missing_pipeline_is_noted() -> None:
    result = resolve([plugin("acme", RealtimeSpec("cam", "no-such", "m:A"))], {})
    assert codes(result) == [("SGLD-P006", "acme")]
    assert owner(result, "cam", "realtime") == "sgld-acme"


REPLACES = ["", "", "sgld-a", "sgld-b", "sgld-c", "*", "sgld-missing"]


@given(st.lists(st.sampled_from(REPLACES), min_size=1, max_size=5), st.randoms(), st.booleans())
def test_order_never_decides(replaces: list[str], random: Any, pinned: bool) -> None:
    rows = [plugin("abcde"[index], pipeline(text)) for index, text in enumerate(replaces)]
    prefer = {f"pipeline:{ID}": "sgld-a"} if pinned else {}
    shuffled = list(rows)
    random.shuffle(shuffled)
    first, second = resolve(rows, prefer), resolve(shuffled, prefer)
    assert owner(first) == owner(second)
    assert codes(first) == codes(second)
    if not owner(first):
        clashes = [plugin for code, plugin in codes(first) if code == "SGLD-P005"]
        assert clashes == sorted(row.plugin.name for row in rows)


@pytest.mark.parametrize("count", [2, 3])
def test_plain_claimants_never_win(count: int) -> None:
    rows = [plugin("abc"[index], pipeline()) for index in range(count)]
    assert owner(resolve(rows, {})) == ""
    assert len(resolve(rows, {}).failures) == count
