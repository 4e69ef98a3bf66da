"""Describing a plugin: whatever is wrong with it becomes a row with a code and a reason."""

from __future__ import annotations

import sys
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from sgld.api import (
    AttentionSpec,
    Claims,
    CommandSpec,
    PipelineSpec,
    Plugin,
    StageSpec,
    hookimpl,
)
from sgld.plugins.describe import HOOKS, Outcome, describe, new_manager
from sgld.plugins.find import Found

MODULE = "throwaway_plugin"
PLUGIN = Plugin("acme", {"pipeline": 1, "stage": 1, "attention": 1, "command": 1})


def pipeline(name: str = "acme-t2v", **changes: Any) -> PipelineSpec:
    spec = PipelineSpec(name, "acme.p:P", "acme.q:Q", ("text-to-video",), Claims(repos=("a/b",)))
    return spec._replace(**changes)


def hooks(**values: Any) -> dict[str, Callable[[], Any]]:
    """Hook functions that return the given values; callables are used as they are."""
    made: dict[str, Callable[[], Any]] = {}
    for name, value in values.items():
        function = value if callable(value) else (lambda value=value: value)
        # A fresh function with no parameters, as an author would write it.
        made[name] = hookimpl(_plain(name, function))
    return made


def _plain(name: str, function: Callable[[], Any]) -> Callable[[], Any]:
    def hook() -> Any:
        return function()

    hook.__name__ = name
    return hook


def run(members: dict[str, Any], *, source: str = "installed", name: str = "acme") -> Outcome:
    module = types.ModuleType(MODULE)
    vars(module).update(members)
    sys.modules[MODULE] = module
    try:
        found = Found(name, MODULE, "acme-dist", "1.2", cast("Any", source))
        return describe(found, new_manager())
    finally:
        del sys.modules[MODULE]


def failed(outcome: Outcome, code: str, *parts: str) -> None:
    assert outcome.described is None
    row = outcome.failure
    assert row is not None
    assert row.code == code, str(row)
    assert (row.plugin, row.dist, row.version) == ("acme", "acme-dist", "1.2")
    assert row.hint
    for part in parts:
        assert part in str(row)


def test_a_good_plugin_gives_its_records_by_kind() -> None:
    def generate() -> Iterator[PipelineSpec]:
        yield pipeline("acme-a")
        yield pipeline("acme-b")

    outcome = run(hooks(sgld_plugin=PLUGIN, sgld_pipelines=generate, sgld_stages=[]))
    assert outcome.failure is None
    assert outcome.described is not None
    assert [row.id for row in outcome.described.records["pipeline"]] == ["acme-a", "acme-b"]
    assert outcome.described.records["kernel"] == ()
    assert outcome.ms >= 0
    assert outcome.notes == ()


def test_every_kind_has_a_contract() -> None:
    from sgld.api.contracts import CONTRACTS

    assert {kind for kind, _ in HOOKS.values()} == set(CONTRACTS)


# P001 ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "parts"),
    [
        ("import missing_lib_of_acme", ["missing_lib_of_acme", "Install what provides"]),
        ("import sys; sys.exit(3)", ["leave the process", "3"]),
        ("raise SystemExit", ["leave the process"]),
        ("1/0", ["ZeroDivisionError"]),
        ("def f(:", ["SyntaxError"]),
        ("class Skipped(BaseException): pass\nraise Skipped('no')", ["Skipped: no"]),
        (
            "try:\n    import missing_lib_of_acme\nexcept ImportError as e:\n"
            "    raise RuntimeError('cannot start') from e",
            ["ModuleNotFoundError", "missing_lib_of_acme"],
        ),
    ],
)
def test_p001_import(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, body: str, parts: list[str]
) -> None:
    (tmp_path / "broken_acme.py").write_text(body)
    monkeypatch.syspath_prepend(tmp_path)
    found = Found("acme", "broken_acme", "acme-dist", "1.2", "installed")
    outcome = describe(found, new_manager())
    sys.modules.pop("broken_acme", None)
    failed(outcome, "SGLD-P001", *parts)


def test_p001_module_that_is_not_there() -> None:
    outcome = describe(
        Found("acme", "no_such_acme.plugin", "acme-dist", "1.2", "installed"), new_manager()
    )
    failed(outcome, "SGLD-P001", "'no_such_acme' is not there", "reinstall acme-dist")


def test_keyboard_interrupt_is_not_swallowed() -> None:
    def interrupt() -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(hooks(sgld_plugin=PLUGIN, sgld_pipelines=interrupt))


# P002 ------------------------------------------------------------------------------------------


def test_p002_unknown_hook() -> None:
    outcome = run(hooks(sgld_plugin=PLUGIN, sgld_pipeline=[]))
    part = (
        "unknown hook 'sgld_pipeline' in module 'throwaway_plugin'. Did you mean 'sgld_pipelines'?"
    )
    failed(outcome, "SGLD-P002", part, "Known hooks")
    assert "<module" not in str(outcome.failure)


@pytest.mark.parametrize("name", ["sgld_plugin", "sgld_pipelines"])
def test_p002_a_hook_that_is_not_marked(name: str) -> None:
    members = hooks(sgld_plugin=PLUGIN, sgld_pipelines=[pipeline()], sgld_stages=[])
    members[name] = lambda: []
    failed(run(members), "SGLD-P002", f"{name} of module", "not marked with hookimpl", "@hookimpl")


def test_what_is_called_like_a_hook_but_cannot_be_called_is_left_alone() -> None:
    assert run({**hooks(sgld_plugin=PLUGIN), "sgld_stages": ("a", "b")}).failure is None


def test_p002_unknown_argument() -> None:
    def sgld_pipelines(registry: Any) -> list[Any]:
        return []

    members = {**hooks(sgld_plugin=PLUGIN), "sgld_pipelines": hookimpl(sgld_pipelines)}
    failed(run(members), "SGLD-P002", "hook sgld_pipelines asks for 'registry'")


def test_p002_wrapper() -> None:
    def sgld_pipelines() -> Iterator[None]:
        yield

    members = {
        **hooks(sgld_plugin=PLUGIN),
        "sgld_pipelines": hookimpl(wrapper=True)(sgld_pipelines),
    }
    failed(run(members), "SGLD-P002", "wrapper")


@pytest.mark.parametrize(
    ("more", "code"), [({"sgld_typo": []}, "SGLD-P002"), ({"sgld_pipelines": None}, "SGLD-P003")]
)
def test_a_failed_plugin_leaves_nothing_registered(more: dict[str, Any], code: str) -> None:
    manager = new_manager()
    bad = types.ModuleType("bad_acme")
    vars(bad).update(hooks(sgld_plugin=PLUGIN, sgld_stages=[], **more))
    sys.modules["bad_acme"] = bad
    try:
        outcome = describe(Found("acme", "bad_acme", "acme-dist", "1.2", "installed"), manager)
    finally:
        del sys.modules["bad_acme"]
    failed(outcome, code)
    assert manager.hook.sgld_stages.get_hookimpls() == []
    manager.check_pending()


# P003 ------------------------------------------------------------------------------------------


def raising() -> Any:
    raise RuntimeError("boom")


def exiting() -> Any:
    raise SystemExit(4)


def endless() -> Iterator[StageSpec]:
    while True:
        yield StageSpec("x", "a:b")


def half() -> Iterator[PipelineSpec]:
    yield pipeline()
    raise RuntimeError("after the first")


P003 = {
    "no sgld_plugin": (hooks(sgld_stages=[]), ["got nothing"]),
    "not a Plugin": (hooks(sgld_plugin={"name": "acme"}), ["got dict"]),
    "no plugin": (hooks(sgld_plugin=None), ["sgld_plugin returned nothing: a return is missing."]),
    "other name": (hooks(sgld_plugin=Plugin("other", {})), ["'acme'", "'other'"]),
    "bad name": (hooks(sgld_plugin=Plugin("Acme!", {})), ["name='Acme!'"]),
    "bad contracts": (hooks(sgld_plugin=Plugin("acme", {"stage": "1"})), ["contracts"]),  # type: ignore[dict-item]
    "raises": (
        hooks(sgld_plugin=PLUGIN, sgld_pipelines=raising),
        ["RuntimeError: boom", "author has to correct the hook"],
    ),
    "exits": (hooks(sgld_plugin=PLUGIN, sgld_pipelines=exiting), ["leave the process", "4"]),
    "raises halfway": (hooks(sgld_plugin=PLUGIN, sgld_pipelines=half), ["after the first"]),
    "none": (
        hooks(sgld_plugin=PLUGIN, sgld_pipelines=None),
        ["sgld_pipelines returned nothing: a return or yield is missing."],
    ),
    "text": (hooks(sgld_plugin=PLUGIN, sgld_pipelines="wan"), ["one str"]),
    "single": (hooks(sgld_plugin=PLUGIN, sgld_pipelines=pipeline()), ["one PipelineSpec"]),
    "wrong type": (
        hooks(sgld_plugin=PLUGIN, sgld_pipelines=[StageSpec("x", "a:b")]),
        ["PipelineSpec", "StageSpec"],
    ),
    "dict": (hooks(sgld_plugin=PLUGIN, sgld_pipelines=[{"id": "x"}]), ["got dict"]),
    "bad id": (
        hooks(sgld_plugin=PLUGIN, sgld_pipelines=[pipeline("Bad ID")]),
        ["id='Bad ID': must be", "'.'. Its author has to correct the record"],
    ),
    "bad target": (
        hooks(sgld_plugin=PLUGIN, sgld_pipelines=[pipeline(target="acme.p.P")]),
        ["target='acme.p.P'", "module:attribute"],
    ),
    "twice": (
        hooks(sgld_plugin=PLUGIN, sgld_pipelines=[pipeline(), pipeline()]),
        ["two records", "'acme-t2v'"],
    ),
    "twice, command": (
        hooks(sgld_plugin=PLUGIN, sgld_commands=[CommandSpec("x", "a:b", "h")] * 2),
        ["two records", "'x'"],
    ),
    "star": (
        hooks(sgld_plugin=PLUGIN, sgld_attention=[AttentionSpec("x", "a:b", replaces="*")]),
        ["only a local package"],
    ),
    "endless": (hooks(sgld_plugin=PLUGIN, sgld_stages=endless), ["no end"]),
}


@pytest.mark.parametrize("case", P003)
def test_p003_describe(case: str) -> None:
    members, parts = P003[case]
    failed(run(members), "SGLD-P003", *parts)


# P004 ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("contracts", "parts"),
    [
        ({"pipeline": 9}, ["pipeline contract 9", "1..1", "newer sgld-core"]),
        (
            {"pipeline": 1, "teleport": 1},
            ["'teleport'", "does not know", "newer sgld-core. This one"],
        ),
        ({"pipelines": 1}, ["'pipelines'", "Did you mean 'pipeline'?", "This one knows"]),
        ({"stage": 1}, ["brings a pipeline", "no contract version"]),
    ],
)
def test_p004_contract(contracts: dict[str, int], parts: list[str]) -> None:
    members = hooks(sgld_plugin=Plugin("acme", contracts), sgld_pipelines=[pipeline()])
    failed(run(members), "SGLD-P004", *parts)


def test_p004_a_too_old_contract_asks_for_a_newer_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sgld.plugins.describe.CONTRACTS", {"pipeline": (2, 3)})
    failed(run(hooks(sgld_plugin=Plugin("acme", {"pipeline": 1}))), "SGLD-P004", "newer acme-dist")


def test_p004_comes_before_the_other_hooks_are_called() -> None:
    called: list[int] = []
    members = hooks(
        sgld_plugin=Plugin("acme", {"pipeline": 9}), sgld_pipelines=lambda: called.append(1)
    )
    failed(run(members), "SGLD-P004")
    assert called == []


# Notes -----------------------------------------------------------------------------------------


def test_p008_heavy_module_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sgld.plugins.describe.HEAVY", ("colorsys",))
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)

    def heavy() -> list[Any]:
        import colorsys

        return [] if colorsys else [None]

    outcome = run(hooks(sgld_plugin=PLUGIN, sgld_stages=heavy))
    assert outcome.described is not None
    assert [row.code for row in outcome.remarks] == ["SGLD-P008"]
    assert "colorsys" in outcome.remarks[0].message


def test_prints_and_warnings_are_kept_apart(capsys: pytest.CaptureFixture[str]) -> None:
    def noisy() -> list[Any]:
        print("hello from acme")
        warnings.warn("old thing", DeprecationWarning, stacklevel=1)
        return []

    outcome = run(hooks(sgld_plugin=PLUGIN, sgld_stages=noisy))
    assert outcome.failure is None
    assert capsys.readouterr().out == ""
    text = "\n".join(outcome.notes)
    assert "hello from acme" in text
    assert "DeprecationWarning: old thing" in text


def test_a_slow_plugin_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sgld.plugins.describe.SLOW_MS", 0.0)
    outcome = run(hooks(sgld_plugin=PLUGIN))
    assert any(note.startswith("took ") for note in outcome.notes)


# Local packages --------------------------------------------------------------------------------


def test_a_local_package_takes_its_name_from_its_record() -> None:
    outcome = run(hooks(sgld_plugin=PLUGIN), source="local", name=MODULE)
    assert outcome.described is not None
    assert outcome.found.name == "acme"


def test_a_local_package_may_replace_anything() -> None:
    members = hooks(sgld_plugin=PLUGIN, sgld_pipelines=[pipeline(replaces="*")])
    assert run(members, source="local").failure is None


def test_a_local_package_without_hooks(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = run({"sgld_plugin": lambda: PLUGIN}, source="local")
    failed(outcome, "SGLD-P003", "holds no hooks", "hookimpl")


@pytest.mark.parametrize("child", ["plugin", "sgld_plugin"])
def test_the_hooks_of_a_local_package_may_be_in_a_module(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, child: str
) -> None:
    package = tmp_path / f"pkg_with_{child}"
    package.mkdir()
    (package / "__init__.py").write_text("__version__ = '7.1'\n")
    (package / f"{child}.py").write_text(
        "from sgld.api import Plugin, hookimpl\n"
        "@hookimpl\ndef sgld_plugin():\n    return Plugin('acme', {})\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    found = Found(package.name, package.name, package.name, "", "local")
    outcome = describe(found, new_manager())
    assert outcome.failure is None, outcome.failure
    assert (outcome.found.name, outcome.found.version) == ("acme", "7.1")
