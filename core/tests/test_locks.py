"""Locks: what a run decided, written down, repeated, obeyed by engine processes, or refused."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgld import decisions
from sgld.api import (
    AttentionSpec,
    FeatureError,
    ModelError,
    ParameterError,
    Plugin,
    PluginError,
    Requires,
    UserError,
    hookimpl,
)
from sgld.engine.executors import worker
from sgld.params.serving import ServingOptions
from sgld.plan import ModelPlan, make_plan, sketch
from sgld.plugins import catalog as catalogs
from sgld.plugins import find, scan
from sgld.plugins.lock import Lock, read_lock

NAMES = "sgld.testing.toy_plugin,acme_lock"
NAMED = {"SGLD_EXTERNAL_MODEL_PACKAGE": NAMES}
ENVIRON = {**NAMED, "SGLD_PLUGINS": ""}


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
        "SGLANG_EXTERNAL_MODEL_PACKAGE": f"{NAMES},another",
        "SGLD_PREFER": "cache:rolling=acme",
    }
    found = problems(lambda: plan(lock=str(file), environ=environ))
    assert found == {
        "SGLANG_EXTERNAL_MODEL_PACKAGE": "names another, which the lock has not.",
        "SGLD_PREFER": "contradicts the lock, which says no such pin.",
    }
    other = read_lock(str(file))
    rows = [row._replace(source="installed") for row in other.plugins if row.name == "acme"]
    rows = [row._replace(dist="acme-lock") for row in rows]
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
    text = refused(lambda: plan(lock=path, environ=NAMED))
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
    part = "the pipeline is toy-image here, toy-world in the lock"
    options = ServingOptions.model_validate({"model_path": "tiny:toy-image", "lock": str(file)})
    # What it says of the cache has no meaning for the other pipeline.
    assert part in refused(lambda: plan("toy-image", lock=str(file)))
    assert part in refused(lambda: sketch(options, environ=ENVIRON))
    assert part in refused(lambda: plan("toy-image", lock=edited(file, choices={})))


def test_a_model_that_the_plugins_of_the_lock_do_not_know(
    file: Path, plan: Callable[..., ModelPlan], tmp_path: Path
) -> None:
    (tmp_path / "model_index.json").write_text('{"_class_name": "NobodysPipeline"}')
    with pytest.raises(ModelError, match=r"Only the plugins of the lock were asked \(.*toy-world"):
        plan(model_path=str(tmp_path), lock=str(file))


def test_another_backend_contradicts(file: Path, plan: Callable[..., ModelPlan]) -> None:
    said = "contradicts the lock, which says native (that of pipeline toy-world)."
    found = problems(lambda: plan(lock=str(file), backend="diffusers", device="cuda"))
    assert found == {"backend": said, "device": "contradicts the lock, which says cpu."}
    assert plan(lock=str(file), backend="native").lock == read_lock(str(file))


# What a file may have imported -------------------------------------------------------------------


@pytest.fixture
def evil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module that is importable and must not be imported."""
    (tmp_path / "evil_module.py").write_text("raise AssertionError('it was imported')")
    monkeypatch.syspath_prepend(tmp_path)
    yield "evil_module"
    assert "evil_module" not in sys.modules


@pytest.mark.parametrize(
    "variable", ["SGLD_EXTERNAL_MODEL_PACKAGE", "SGLANG_EXTERNAL_MODEL_PACKAGE"]
)
def test_local_packages_of_a_lock_are_named_by_the_user_too(
    file: Path, plan: Callable[..., ModelPlan], variable: str
) -> None:
    assert plan(lock=str(file), environ={variable: NAMES}).lock == read_lock(str(file))
    with pytest.raises(ParameterError) as caught:
        plan(lock=str(file), environ={variable: "sgld.testing.toy_plugin"})
    (problem,) = caught.value.problems
    assert (problem.field, problem.value) == (variable, "sgld.testing.toy_plugin")
    assert problem.message.startswith("does not name acme_lock, which")
    assert f"set {variable}={NAMES}" in problem.remedy
    found = problems(lambda: plan(lock=str(file), environ={"HOME": "/"}))
    assert list(found) == ["SGLD_EXTERNAL_MODEL_PACKAGE"]


SMUGGLED = [
    ({"source": "local"}, ParameterError, "does not name evil_module"),
    ({"source": "builtin"}, PluginError, "module 'evil_module' is not a part of sgld-core"),
    ({"source": "installed"}, PluginError, "pluggy declares no plugin evil in module 'evil_mod"),
    ({"source": "installed", "dist": "not-here"}, PluginError, "evil is not usable here: it is"),
]


@pytest.mark.parametrize(("row", "error", "part"), SMUGGLED)
def test_no_module_is_smuggled_in(
    file: Path, plan: Callable[..., ModelPlan], evil: str, row: Any, error: Any, part: str
) -> None:
    lock = read_lock(str(file))
    plain = {"name": "evil", "module": evil, "dist": "pluggy", "version": version("pluggy"), **row}
    path = edited(file, plugins=(*lock.plugins, find.Found(**plain)))
    with pytest.raises(error) as caught:
        plan(lock=path, environ=NAMED)
    assert part in str(caught.value)


SHAPES: list[tuple[dict[str, Any], str]] = [
    ({"choices": [["norm.rms", "x"]]}, "choices of it is [['norm.rms', 'x']], not an object"),
    ({"choices": {"norm.rms": 1}}, "choices of it is {'norm.rms': 1}, not an object of texts"),
    ({"platform": None}, "platform of it is None, not text"),
    ({"features": "lora"}, "features of it is 'lora', not a list of texts"),
    ({"plugins": {}}, "plugins of it is {}, not a list"),
    ({"plugins": ["x"]}, "plugins[0] is no object"),
    ({"plugins": [{"name": "x"}]}, "plugins[0] has no field 'module'"),
    ({"more": 1}, "it has an unknown field 'more'"),
    ({"digest": 5}, "digest of it is 5, not text"),
]


@pytest.mark.parametrize(("changes", "part"), SHAPES)
def test_each_field_has_its_type(file: Path, changes: dict[str, Any], part: str) -> None:
    plain = {**json.loads(file.read_text()), **changes}
    rest = {key: value for key, value in plain.items() if key != "digest"}
    stated = hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()[:16]
    file.write_text(
        json.dumps({"digest": stated, **rest} | {"digest": changes.get("digest", stated)})
    )
    text = refused(lambda: read_lock(str(file)))
    assert "the lock cannot be read (" in text
    assert part in text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=4,
)
FIELDS = st.sampled_from([*Lock._fields, "digest"])


@given(st.dictionaries(FIELDS, JSON))
def test_no_json_breaks_the_reading(changes: dict[str, Any]) -> None:
    plain = {**json.loads(Lock("0", ()).to_json()), **changes}
    with suppress(PluginError):
        assert Lock.from_json(json.dumps(plain)).digest == plain["digest"]


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

    looks = ((scan, "scan"), (decisions, "scan"), (find, "find"), (catalogs, "find"))
    for owner, name in (*looks, (catalogs, "collect")):
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
