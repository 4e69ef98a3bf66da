"""The catalog as a whole: needs, names, pins, strictness, targets, blueprints, rows, the lock."""

from __future__ import annotations

import json
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sgld import __version__
from sgld.api import Claims, PipelineSpec, Plugin, PluginError, SgldError, UserError, hookimpl
from sgld.plugins import report
from sgld.plugins.catalog import Catalog, build, collect, load_catalog, load_target, parse_prefer
from sgld.plugins.failures import CODES
from sgld.plugins.find import Discovery, Found
from sgld.plugins.lock import Lock, make_lock, verify
from sgld.plugins.resolve import Entry

Make = Callable[..., Found]


def pipeline(name: str, **more: Any) -> PipelineSpec:
    spec = PipelineSpec(
        name, "os:getcwd", "os:sep", ("text-to-video",), Claims(repos=(f"a/{name}",))
    )
    return spec._replace(**more)


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Make:
    """Put a plugin module into this process and say where it was found."""

    def add(
        name: str,
        *specs: PipelineSpec,
        needs: tuple[str, ...] = (),
        source: Any = "installed",
        contract: int = 1,
        dist: str = "",
    ) -> Found:
        module = types.ModuleType(f"fake_{dist or name}".replace("-", "_"))

        def sgld_plugin() -> Plugin:
            return Plugin(name, {"pipeline": contract}, needs=needs)

        def sgld_pipelines() -> list[PipelineSpec]:
            return list(specs)

        vars(module)["sgld_plugin"] = hookimpl(sgld_plugin)
        vars(module)["sgld_pipelines"] = hookimpl(sgld_pipelines)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        label = module.__name__ if source == "local" else name
        return Found(label, module.__name__, dist or f"dist-{name}", "1.0", source)

    return add


def catalog(*found: Found, prefer: dict[str, str] | None = None) -> Catalog:
    return build(Discovery(found, (), ()), prefer or {})


def states(rows: Catalog) -> dict[str, str]:
    return {f"{row.name}/{row.dist}": row.state for row in rows.plugins}


def codes(rows: Catalog) -> list[tuple[str, str]]:
    return sorted((row.code, row.plugin) for row in rows.failures)


def test_the_core_alone() -> None:
    rows = collect({"SGLD_PLUGINS": ""}, path=[])
    assert [row.name for row in rows.plugins] == ["builtin"]
    assert set(rows.platforms) == {"cpu", "cuda", "rocm", "xpu", "npu", "musa", "mps"}
    assert set(rows.attention) == {"sdpa"}
    assert set(rows.executors) == {"in-process"}
    assert not rows.pipelines
    assert not rows.failures


def test_what_the_core_brings_really_exists() -> None:
    rows = collect({"SGLD_PLUGINS": ""}, path=[])
    for kind in rows.entries.values():
        for entry in kind.values():
            assert callable(load_target(entry.spec.target, entry))
    for entry in rows.platforms.values():
        assert load_target(entry.spec.probe, entry)().reason is not None


def test_p009_needs(make: Make) -> None:
    base = make("base", pipeline("b"), contract=9)
    middle = make("middle", pipeline("m"), needs=("base",))
    top = make("top", pipeline("t"), needs=("middle", "builtin"))
    other = make("other", pipeline("o"))
    rows = catalog(base, middle, top, other)
    assert set(rows.pipelines) == {"o"}
    assert codes(rows)[0] == ("SGLD-P004", "base")
    assert ("SGLD-P009", "middle") in codes(rows)
    assert ("SGLD-P009", "top") in codes(rows)
    needs = next(f for f in rows.failures if f.code == "SGLD-P009")
    assert "Install the distribution that brings it" in str(needs)
    assert states(rows)["middle/dist-middle"] == "failed"


def test_needs_may_be_mutual(make: Make) -> None:
    rows = catalog(
        make("one", pipeline("a"), needs=("two",)), make("two", pipeline("b"), needs=("one",))
    )
    assert set(rows.pipelines) == {"a", "b"}


def test_p005_a_local_plugin_with_the_name_of_an_installed_one(make: Make) -> None:
    rows = catalog(
        make("acme", pipeline("a")), make("acme", pipeline("b"), dist="my_pkg", source="local")
    )
    assert not rows.pipelines
    assert codes(rows) == [("SGLD-P005", "acme")] * 2
    assert set(states(rows).values()) == {"failed"}


def test_a_record_in_dispute_makes_a_plugin_partial(make: Make) -> None:
    one = make("one", pipeline("same"), pipeline("own"))
    rows = catalog(one, make("two", pipeline("same")))
    assert set(rows.pipelines) == {"own"}
    assert states(rows) == {"one/dist-one": "partial", "two/dist-two": "partial"}
    pinned = catalog(one, make("two", pipeline("same")), prefer={"pipeline:same": "dist-two"})
    assert pinned.pipelines["same"].dist == "dist-two"
    assert set(states(pinned).values()) == {"ok"}


def test_strict_makes_a_failure_an_error_and_a_note_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = {"SGLD_EXTERNAL_MODEL_PACKAGE": "no_such_package_at_all"}
    rows = load_catalog({**broken})
    assert [row.code for row in rows.fatal] == ["SGLD-P001"]
    with pytest.raises(PluginError) as caught:
        load_catalog(broken, strict=True)
    assert caught.value.failures == rows.fatal
    assert caught.value.exit_code == 1
    with pytest.raises(PluginError, match="SGLD-P001"):
        load_catalog({**broken, "SGLD_STRICT": "1"})
    assert load_catalog({**broken, "SGLD_STRICT": "0"}).fatal
    noted = load_catalog({"SGLD_PLUGINS": "nobody"}, strict=True)
    assert [row.code for row in noted.failures] == ["SGLD-P006"]
    assert not noted.fatal


def test_pins_come_from_the_environment_too(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = collect({"SGLD_PREFER": "pipeline:nothing=acme , ", "SGLD_PLUGINS": ""}, path=[])
    assert codes(rows) == [("SGLD-P006", "acme")]


@pytest.mark.parametrize(
    "text", ["", "x", "pipeline=acme", "pipeline:=acme", "pipeline:x=", ":x=a"]
)
def test_pins_of_another_form_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="KIND:ID=DISTRIBUTION"):
        parse_prefer([text])


def test_pins_are_read() -> None:
    assert parse_prefer(["pipeline:wan-t2v = sgld-wan"]) == {"pipeline:wan-t2v": "sgld-wan"}


# Targets -----------------------------------------------------------------------------------------


def test_targets_are_imported() -> None:
    assert load_target("os:getcwd") is os.getcwd
    assert load_target("os:path.join") is os.path.join


TARGETS = [
    ("no_such_module_a:x", "module 'no_such_module_a' is not there. Correct the target."),
    ("os:getcwdx", "module 'os' has no 'getcwdx'; did you mean 'getcwd'? Correct the target."),
    ("os:PathLike.nothing", "class 'PathLike' has no 'nothing'."),
    ("os:sep.nothing", "an object of class 'str' has no 'nothing'."),
    ("os.no_such:x", "module 'os.no_such' is not there"),
    ("needs_other:x", "No module named 'other_missing'"),
    ("needs_other:x", "Install or mend what its module imports."),
    ("leaves:x", "SystemExit"),
    ("os:no_such", "module 'os' has no 'no_such'. Correct the target."),
    ("os:path.no_such", "has no 'no_such'."),
]


@pytest.mark.parametrize(("target", "part"), TARGETS)
def test_p007_targets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, part: str
) -> None:
    (tmp_path / "needs_other.py").write_text("import other_missing")
    (tmp_path / "leaves.py").write_text("raise SystemExit(3)")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PluginError) as caught:
        load_target(target, Entry(None, "acme", "acme-dist", "1.0"))
    (row,) = caught.value.failures
    assert (row.code, row.plugin, row.dist) == ("SGLD-P007", "acme", "acme-dist")
    assert part in str(caught.value)


@pytest.mark.parametrize(
    ("field", "part"),
    [("target", "1.0: pipeline 'a': target"), ("params", "1.0: pipeline 'a', params: target")],
)
def test_p007_says_whose_target_it_is(field: str, part: str) -> None:
    spec = pipeline("a", **{field: "os:no_such"})
    with pytest.raises(PluginError) as caught:
        load_target("os:no_such", Entry(spec, "acme", "acme-dist", "1.0"))
    assert part in str(caught.value)
    assert str(caught.value).endswith(". Correct the target.")


def test_errors_raised_on_purpose_pass_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "refuses.py").write_text(
        "from sgld.api import UserError\nraise UserError('not here')"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SgldError, match="not here"):
        load_target("refuses:x")


# Blueprints --------------------------------------------------------------------------------------


def test_blueprints(make: Make) -> None:
    rows = catalog(
        make(
            "one",
            pipeline("a", blueprints={"tiny": "m:tiny", "big": "m:big"}),
            pipeline("b", blueprints={"tiny": "m:other"}),
            pipeline("c"),
        )
    )
    assert rows.blueprint("a", "tiny")[1] == "m:tiny"
    assert rows.blueprint("a:big")[1] == "m:big"
    assert rows.blueprint("big")[1] == "m:big"
    assert rows.blueprint("b", "tiny")[0].spec.id == "b"
    for name, blueprint, part in [
        ("a", "", "a:tiny, a:big"),
        ("a", "bgi", "Did you mean 'big'?"),
        ("tiny", "", "no pipeline 'tiny'"),
        ("zzz", "tiny", "There are: a, b, c"),
        ("c", "tiny", "There are none"),
    ]:
        with pytest.raises(UserError) as caught:
            rows.blueprint(name, blueprint)
        assert part in str(caught.value)


# Reports -----------------------------------------------------------------------------------------


def test_reports(make: Make) -> None:
    rows = catalog(make("good", pipeline("a"), pipeline("b")), make("bad", contract=9))
    text = report.plugins_text(rows)
    assert "good" in text
    assert "2 pipeline" in text
    assert "SGLD-P004 dist-bad 1.0" in text
    plain = json.loads(json.dumps(report.plugins_json(rows)))
    by_name = {row["name"]: row for row in plain["plugins"]}
    assert by_name["good"]["provides"] == {"pipeline": ["a", "b"]}
    assert by_name["good"]["contracts"] == {"pipeline": 1}
    assert by_name["bad"]["state"] == "failed"
    assert by_name["bad"]["reason"].startswith("SGLD-P004")
    assert plain["contracts"]["pipeline"] == [1, 1]
    assert "a,b" in report.plugins_text(rows, "pipeline")
    assert report.summary_line(rows).startswith("1 plugin is not fully usable: bad")
    entry = rows.pipelines["a"]
    assert report.pipeline_json(entry)["claims"]["repos"] == ["a/a"]
    assert "os:getcwd" in report.plugin_text(rows, rows.plugins[0])


# The lock ----------------------------------------------------------------------------------------


def test_a_lock_survives_json_and_gives_the_same_catalog(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sgld.plugins.lock.versions_of", lambda dists: dict.fromkeys(dists, "1.0"))
    rows = catalog(make("good", pipeline("a", features=frozenset("xyz"))), make("bad", contract=9))
    lock = make_lock(rows, pipeline="a", choices={"attention": "sdpa"}, features={"cfg", "batch"})
    assert [row.name for row in lock.plugins] == ["good"]
    text = lock.to_json()
    again = Lock.from_json(text)
    assert again == lock
    assert again.digest == lock.digest
    assert lock.features == ("batch", "cfg")
    assert len(text) < 600
    assert verify(again).pipelines.keys() == {"a"}


def locked(make: Make, monkeypatch: pytest.MonkeyPatch, **more: Any) -> Lock:
    monkeypatch.setattr("sgld.plugins.lock.versions_of", lambda dists: dict.fromkeys(dists, "1.0"))
    return make_lock(catalog(make("good", pipeline("a"))), pipeline="a", **more)


def refused(call: Callable[[], object], part: str) -> None:
    with pytest.raises(PluginError) as caught:
        call()
    assert [row.code for row in caught.value.failures] == ["SGLD-P011"]
    assert part in str(caught.value)


def test_p011_every_difference(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = locked(make, monkeypatch)
    refused(lambda: verify(lock._replace(core="9.9")), f"sgld-core is {__version__} here, 9.9")
    refused(lambda: verify(lock._replace(pipeline="z")), "pipeline 'z' is not there")
    refused(lambda: verify(lock._replace(platform="tpu")), "platform 'tpu' is not there")
    other = lock._replace(choices={"realtime": "z"})
    refused(lambda: verify(other), "realtime adapter 'z' is not there")
    refused(lambda: verify(lock._replace(records="0")), "describes itself otherwise")
    gone = lock.plugins[0]._replace(module="no_such_plugin_module")
    refused(lambda: verify(lock._replace(plugins=(gone,))), "SGLD-P001")
    monkeypatch.setattr("sgld.plugins.lock.versions_of", lambda dists: dict.fromkeys(dists, "2.0"))
    refused(lambda: verify(lock), "dist-good is 2.0 here, 1.0 in the lock")
    monkeypatch.setattr("sgld.plugins.lock.versions_of", lambda dists: dict.fromkeys(dists, ""))
    refused(lambda: verify(lock), "dist-good is missing here")


def test_p011_an_edited_plugin_is_noticed(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = locked(make, monkeypatch)
    make("good", pipeline("a", summary="edited"))
    refused(lambda: verify(lock), "describes itself otherwise")


def test_p011_a_damaged_or_edited_lock(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    text = locked(make, monkeypatch).to_json()
    edited = json.dumps({**json.loads(text), "pipeline": "other"})
    refused(lambda: Lock.from_json(edited), "digest")
    for damaged in ("", "{}", "[1]", text[:-2], '{"digest": "x", "plugins": [{}]}'):
        refused(lambda damaged=damaged: Lock.from_json(damaged), "cannot be read")


def test_the_digest_depends_on_every_decision(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = locked(make, monkeypatch)
    changed = [
        lock._replace(core="x"),
        lock._replace(plugins=()),
        lock._replace(platform="x"),
        lock._replace(pipeline="x"),
        lock._replace(choices={"a": "b"}),
        lock._replace(features=("x",)),
        lock._replace(prefer={"a": "b"}),
        lock._replace(records="x"),
    ]
    assert len({row.digest for row in [lock, *changed]}) == 1 + len(Lock._fields)


def test_every_code_has_a_phase_and_a_meaning() -> None:
    assert list(CODES) == [f"SGLD-P{number:03}" for number in range(1, 24)]
    assert all(row.phase and row.meaning.endswith(".") for row in CODES.values())
