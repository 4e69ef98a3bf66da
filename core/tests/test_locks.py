"""Locks: what a run decided, written down, repeated, obeyed by engine processes, or refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sgld.api import (
    AttentionSpec,
    FeatureError,
    ParameterError,
    Plugin,
    PluginError,
    Requires,
    UserError,
    hookimpl,
)
from sgld.engine.executors import worker
from sgld.params.serving import ServingOptions
from sgld.plan import ModelPlan, make_plan
from sgld.plugins import catalog as catalogs
from sgld.plugins import find, scan
from sgld.plugins.lock import Lock, read_lock

NAMES = "sgld.testing.toy_plugin,acme_lock"
ENVIRON = {"SGLD_EXTERNAL_MODEL_PACKAGE": NAMES, "SGLD_PLUGINS": ""}


@pytest.fixture(autouse=True)
def acme(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A package without metadata, version 1, with an attention backend for machines of its own."""
    module = ModuleType("acme_lock")

    @hookimpl
    def sgld_plugin() -> Plugin:
        return Plugin("acme", {"attention": 1})

    @hookimpl
    def sgld_attention() -> list[AttentionSpec]:
        target = "sgld.ops.attention:attend"
        mine = Requires(device="cpu")
        far = Requires(device="far")
        return [
            AttentionSpec("mine", target, mine, can=frozenset({"mask"}), exact=False),
            AttentionSpec("far", target, far, can=frozenset({"mask"})),
        ]

    vars(module).update(__version__="1", sgld_plugin=sgld_plugin, sgld_attention=sgld_attention)
    monkeypatch.setitem(sys.modules, "acme_lock", module)
    return module


@pytest.fixture
def plan() -> Iterator[Callable[..., ModelPlan]]:
    """Plans a tiny model on the CPU; closes it at the end."""
    plans: list[ModelPlan] = []

    def make(model: str = "toy-world", *, environ: Any = None, **options: Any) -> ModelPlan:
        values = {"model_path": f"tiny:{model}", **options}
        made = make_plan(ServingOptions.model_validate(values), environ=environ or ENVIRON)
        plans.append(made)
        return made

    yield make
    for one in plans:
        one.close()


@pytest.fixture
def file(plan: Callable[..., ModelPlan], tmp_path: Path) -> Path:
    """A lock of a run with wishes of its own."""
    path = tmp_path / "run.lock"
    plan(
        write_lock=str(path), device="cpu", cache_policy="growing", attention={"self": "mine"},
    )  # fmt: skip
    return path


def edited(file: Path, **changes: Any) -> str:
    """The same lock with other content and the digest that belongs to it."""
    lock = read_lock(str(file))
    file.write_text(lock._replace(**changes).to_json())
    return str(file)


def test_what_is_written_down(file: Path) -> None:
    lock = read_lock(str(file))
    assert {row.name: row.version for row in lock.plugins}["acme"] == "1"
    assert (lock.pipeline, lock.platform) == ("toy-world", "cpu")
    shown = lock.summary()["choices"]
    assert shown == {
        "attention.self": "mine",
        "attention.cross": "sdpa",
        "attention.masked": "sdpa",
        "realtime": "toy-world",
        "cache": "growing",
    }
    assert lock.choices["norm.rms"] == "reference"
    line = lock.line()
    assert f"digest={lock.digest} " in line
    assert "\n" not in line
    assert "plugins=builtin=" in line


def test_a_repeated_run_makes_the_same_choices_without_being_asked(
    file: Path, plan: Callable[..., ModelPlan]
) -> None:
    first = read_lock(str(file))
    again = plan(lock=str(file))
    assert again.lock == first
    assert again.lock.digest == first.digest
    assert again.cache_policy is not None
    assert again.cache_policy.spec.id == "growing"
    same = plan(lock=str(file), device="cpu", cache_policy="growing", attention={"self": "mine"})
    assert same.lock == first
    assert plan().lock != first
    everything = plan(attention={"all": "mine"}, write_lock=str(file))
    assert plan(lock=str(file), attention={"all": "mine"}).lock == everything.lock


def problems(call: Callable[[], object]) -> dict[str, str]:
    with pytest.raises(ParameterError) as caught:
        call()
    return {problem.field: problem.message for problem in caught.value.problems}


def test_options_that_contradict_are_refused_by_name_all_at_once(
    file: Path, plan: Callable[..., ModelPlan]
) -> None:
    found = problems(
        lambda: plan(
            lock=str(file),
            device="cuda",
            pipeline_class_name="toy-image",
            cache_policy="rolling",
            attention={"self": "sdpa", "cross": "sdpa"},
            prefer={"pipeline:toy-world": "sgld.testing.toy_plugin"},
        )
    )
    assert found == {
        "device": "contradicts the lock, which says cpu.",
        "pipeline_class_name": "contradicts the lock, which says toy-world.",
        "cache_policy": "contradicts the lock, which says growing.",
        "attention": "contradicts the lock, which says mine.",
        "prefer": "contradicts the lock, which says no such pin.",
    }


def test_variables_that_contradict_are_refused_by_name(
    file: Path, plan: Callable[..., ModelPlan]
) -> None:
    environ = {
        "SGLANG_EXTERNAL_MODEL_PACKAGE": "acme_lock,another",
        "SGLD_PREFER": "cache:rolling=acme",
    }
    found = problems(lambda: plan(lock=str(file), environ=environ))
    assert found == {
        "SGLANG_EXTERNAL_MODEL_PACKAGE": "names another, which the lock has not.",
        "SGLD_PREFER": "contradicts the lock, which says no such pin.",
    }
    # Nothing is looked for, so a variable that names fewer packages takes nothing away.
    assert plan(lock=str(file), environ={"HOME": "/"}).lock == read_lock(str(file))
    other = read_lock(str(file))
    rows = [row._replace(source="installed") for row in other.plugins if row.name == "acme"]
    path = edited(file, plugins=tuple(rows))
    found = problems(lambda: plan(lock=path, environ={"SGLD_PLUGINS": "-acme"}))
    assert found == {"SGLD_PLUGINS": "leaves out acme, which the lock has."}


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(PluginError) as caught:
        call()
    assert [row.code for row in caught.value.failures] == ["SGLD-P011"]
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_every_difference_is_named_at_once(
    file: Path, plan: Callable[..., ModelPlan], acme: ModuleType
) -> None:
    vars(acme)["__version__"] = "2"
    lock = read_lock(str(file))
    gone = lock.plugins[0]._replace(
        name="gone", dist="sgld-gone", module="gone", source="installed", version="3"
    )
    choices = {**lock.choices, "attention.self": "lost", "realtime": "lost", "cache": "lost"}
    path = edited(
        file, core="0.0.1", plugins=(*lock.plugins, gone), platform="tpu", choices=choices,
    )  # fmt: skip
    text = refused(lambda: plan(lock=path, environ={"HOME": "/"}))
    for part in (
        "sgld-core is ", "acme_lock is 2 here, 1 in the lock", "sgld-gone is missing here, 3 in",
        "plugin gone is not usable here", "platform 'tpu' is not there",
        "realtime adapter 'lost' is not there", "cache policy 'lost' is not there",
        "'lost', which runs attention.self, is not there",
    ):  # fmt: skip
        assert part in text


def test_a_platform_that_has_no_device_here(file: Path, plan: Callable[..., ModelPlan]) -> None:
    choices = {"realtime": "toy-world"}
    text = refused(lambda: plan(lock=edited(file, platform="musa", choices=choices)))
    assert "platform 'musa' cannot be used: " in text


def test_a_lock_of_another_model(file: Path, plan: Callable[..., ModelPlan]) -> None:
    path = edited(file, choices={})
    text = refused(lambda: plan("toy-image", lock=path))
    assert "the pipeline is toy-image here, toy-world in the lock" in text


def test_a_kernel_that_does_not_fit_the_device(file: Path, plan: Callable[..., ModelPlan]) -> None:
    lock = read_lock(str(file))
    path = edited(file, choices={**lock.choices, "attention.self": "far"})
    with pytest.raises(FeatureError, match="far cannot be used for attention: needs far; this"):
        plan(lock=path)


def test_files_that_are_no_lock(plan: Callable[..., ModelPlan], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"lock='.*gone': cannot be read"):
        plan(lock=str(tmp_path / "gone"))
    (tmp_path / "text").write_text("hello")
    assert "the lock cannot be read" in refused(lambda: plan(lock=str(tmp_path / "text")))
    with pytest.raises(UserError, match=r"write_lock='.*': cannot be written"):
        plan(write_lock=str(tmp_path / "none" / "lock"))
    with pytest.raises(UserError, match="cannot be written"):
        plan(write_lock=str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["text"]


def test_strict_holds_for_a_lock_too(file: Path, plan: Callable[..., ModelPlan]) -> None:
    assert plan(lock=str(file), strict_plugins=True).lock == read_lock(str(file))


# Engine processes --------------------------------------------------------------------------------


@pytest.fixture
def start(file: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a parent sends its engine process; looking for plugins is an error from now on."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("an engine process looks for plugins")

    for owner, name in ((scan, "scan"), (find, "find"), (catalogs, "find"), (catalogs, "collect")):
        monkeypatch.setattr(owner, name, refuse)
    monkeypatch.setenv("SGLD_EXTERNAL_MODEL_PACKAGE", "no_such_package")
    monkeypatch.setenv("SGLD_PLUGINS", "none-of-them")
    options = ServingOptions.model_validate({"model_path": "tiny:toy-world"})
    return {"options": options.model_dump_json(), "lock": read_lock(str(file)).to_json()}


def test_an_engine_process_obeys_and_looks_for_nothing(start: dict[str, Any]) -> None:
    made = worker._plan(start)  # pyright: ignore[reportPrivateUsage]
    made.close()
    assert made.lock == Lock.from_json(start["lock"])
    assert made.cache_policy is not None
    assert {row.name for row in made.catalog.plugins} == {"builtin", "toy", "acme"}


def test_an_environment_that_changed_under_the_engine_is_noticed(
    start: dict[str, Any], acme: ModuleType
) -> None:
    vars(acme)["__version__"] = "2"
    text = refused(lambda: worker._plan(start))  # pyright: ignore[reportPrivateUsage]
    assert "acme_lock is 2 here, 1 in the lock" in text


def test_an_edited_lock_is_noticed(start: dict[str, Any]) -> None:
    start["lock"] = json.dumps({**json.loads(start["lock"]), "platform": "cuda"})
    assert "digest" in refused(lambda: worker._plan(start))  # pyright: ignore[reportPrivateUsage]
