"""A plugin that hangs, and one that changes what is around it: neither matters to the others."""

from __future__ import annotations

import logging
import os
import sys
import threading
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sgld.api import Plugin, hookimpl
from sgld.plugins.describe import Outcome, new_manager
from sgld.plugins.find import Found
from sgld.plugins.patience import describe_in_time
from sgld.plugins.surroundings import Surroundings

Describe = Callable[..., Outcome]


@pytest.fixture
def describe(monkeypatch: pytest.MonkeyPatch) -> Describe:
    """Describe a plugin whose `sgld_plugin` hook is this function."""

    def run(hook: Callable[[], Any], limit_s: float = 10.0) -> Outcome:
        module = types.ModuleType("patience_plugin")
        vars(module)["sgld_plugin"] = hookimpl(hook)
        hook.__name__ = "sgld_plugin"
        monkeypatch.setitem(sys.modules, module.__name__, module)
        found = Found("acme", module.__name__, "acme-dist", "1.0", "installed")
        return describe_in_time(found, new_manager(), limit_s)

    return run


def test_a_good_one(describe: Describe) -> None:
    def sgld_plugin() -> Plugin:
        return Plugin("acme", {})

    outcome = describe(sgld_plugin)
    assert outcome.described is not None
    assert outcome.notes == ()


def test_p015_one_that_hangs_is_set_aside_and_leaves_nothing_behind(describe: Describe) -> None:
    end, began = threading.Event(), threading.Event()
    out, filters = sys.stdout, list(warnings.filters)

    def sgld_plugin() -> Plugin:
        os.environ["SGLD_HUNG"] = "1"
        warnings.simplefilter("ignore")
        began.set()
        end.wait()
        return Plugin("acme", {})

    outcome = describe(sgld_plugin, limit_s=0.1)
    assert began.is_set()
    assert outcome.described is None
    assert outcome.failure is not None
    assert outcome.failure.code == "SGLD-P015"
    assert str(outcome.failure).startswith("SGLD-P015 acme-dist 1.0: importing and describing it")
    assert "SGLD_PLUGINS=-acme" in outcome.failure.hint
    assert sys.stdout is out
    assert list(warnings.filters) == filters
    assert "SGLD_HUNG" not in os.environ
    (thread,) = [one for one in threading.enumerate() if one.name == "sgld-describe-acme"]
    assert thread.daemon
    end.set()
    thread.join(10)


@pytest.mark.parametrize(
    ("error", "part"),
    [
        (KeyboardInterrupt, "KeyboardInterrupt"),
        (SystemExit(4), "tried to leave the process (exit 4)"),
        (GeneratorExit, "GeneratorExit"),
        (MemoryError("all"), "MemoryError: all"),
        (OSError("two\nlines"), "OSError: two lines"),
    ],
)
def test_whatever_it_raises_is_one_row(describe: Describe, error: Any, part: str) -> None:
    def sgld_plugin() -> Plugin:
        raise error

    outcome = describe(sgld_plugin)
    assert outcome.failure is not None
    assert part in str(outcome.failure)
    assert "\n" not in str(outcome.failure)


class Unspeakable:
    """Raises whatever is asked of it."""

    def __repr__(self) -> str:
        raise RuntimeError("no")

    __str__ = __eq__ = __hash__ = __repr__  # pyright: ignore[reportAssignmentType]


def test_a_record_that_raises_when_it_is_looked_at(describe: Describe) -> None:
    def sgld_plugin() -> Plugin:
        return Plugin("acme", {"pipeline": Unspeakable()}, summary=Unspeakable())  # pyright: ignore[reportArgumentType]

    outcome = describe(sgld_plugin)
    assert outcome.failure is not None
    assert outcome.failure.code == "SGLD-P003"


CHANGES: list[tuple[str, Callable[[], object]]] = [
    ("sys.path", lambda: sys.path.insert(0, "/nowhere")),
    ("os.environ", lambda: os.environ.update(SGLD_CHANGED="1")),
    ("os.environ", lambda: os.environ.pop("HOME")),
    ("sys.stdout", lambda: setattr(sys, "stdout", sys.stderr)),
    ("sys.stderr", lambda: setattr(sys, "stderr", sys.stdout)),
    ("sys.excepthook", lambda: setattr(sys, "excepthook", print)),
    ("threading.excepthook", lambda: setattr(threading, "excepthook", print)),
    ("modules that were there", lambda: sys.modules.update(json=os)),
    ("modules that were there", lambda: sys.modules.pop("json")),
    ("the root logger", lambda: logging.getLogger().addHandler(logging.NullHandler())),
    ("the root logger", lambda: logging.getLogger().setLevel(1)),
    ("the root logger", lambda: logging.disable(logging.CRITICAL)),
]


def state() -> list[Any]:
    root = logging.getLogger()
    return [
        list(sys.path), dict(os.environ), os.getcwd(), sys.stdout, sys.stderr, sys.excepthook,
        threading.excepthook, sys.modules.get("json"), list(root.handlers), root.level,
        root.manager.disable,
    ]  # fmt: skip


@pytest.mark.parametrize(("what", "change"), CHANGES)
def test_what_is_changed_is_put_back_and_told(
    what: str, change: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    around, before = Surroundings(), state()
    assert around.restore() == []
    change()
    assert state() != before
    assert around.restore() == [f"changed {what}; undone"]
    assert state() == before
    assert around.restore() == []


def test_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    around = Surroundings()
    os.chdir("/")
    assert around.restore() == ["changed the current folder; undone"]
    assert Path.cwd() == tmp_path


def test_new_modules_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    around = Surroundings()
    monkeypatch.setitem(sys.modules, "brand_new", types.ModuleType("brand_new"))
    assert around.restore() == []
    assert "brand_new" in sys.modules
