"""What keeps a conformance test from testing nothing: the fixtures that it uses are the kit's own,
nobody but the kit skips it, and it fails on purpose only where an override says so.

    shadowed(item)                fixtures of the kit that somebody else defines again, and where
    unasked_skip(item, call)      why a skip does not count, or an empty text

Both are asked by the hooks of `sgld.testing.plugin`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pytest

KIT: Final = "sgld.testing"
PYTEST: Final = ("pytest", "_pytest")
GIVEN: Final = pytest.StashKey[tuple[str, ...]]()
"""Reasons of the xfail marks that a test had when it was collected."""
SKIPPED: Final = (
    "a conformance test was skipped by {where}, so it tested nothing. Take the skip away; the only "
    'way to leave a test out is to override it with @pytest.mark.xfail(reason="...").'
)


def remember_marks(item: pytest.Item) -> None:
    """Note which xfail marks a test has before anything runs; later ones do not count."""
    reasons = (mark.kwargs.get("reason", "") for mark in item.iter_markers("xfail"))
    item.stash[GIVEN] = tuple(reason for reason in reasons if reason)


def shadowed(item: pytest.Item) -> list[str]:
    """Fixtures that a conformance test gets from somebody else than the kit or pytest, though these
    have one of that name, each as `name (module)`."""
    info = getattr(item, "_fixtureinfo", None)
    known: Mapping[str, Sequence[Any]] = getattr(info, "name2fixturedefs", {})
    found: dict[str, str] = {}
    for name in _used(getattr(info, "argnames", ()), known):
        modules = [definition.func.__module__ or "" for definition in known.get(name, ())]
        # The last definition is the one that counts for this test.
        if any(map(_is_ours, modules)) and not _is_ours(modules[-1]):
            found[name] = modules[-1]
    return [f"{name} ({module})" for name, module in sorted(found.items())]


def _used(names: Sequence[str], known: Mapping[str, Sequence[Any]]) -> Iterator[str]:
    """Fixtures by name, with all that any definition of theirs uses."""
    waiting, seen = list(names), set[str]()
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            yield name
            for definition in known.get(name, ()):
                waiting += definition.argnames


def _is_ours(module: str) -> bool:
    return module.startswith(f"{KIT}.") or module.split(".")[0] in PYTEST


def unasked_skip(item: pytest.Item, call: pytest.CallInfo[Any], report: pytest.TestReport) -> str:
    """Why a skipped conformance test has failed: not the kit skipped it, or its expected failure
    was not announced by a mark. Empty: all is as it should be."""
    if not report.skipped or call.excinfo is None:
        return ""
    if hasattr(report, "wasxfail"):
        return "" if item.stash.get(GIVEN, ()) else SKIPPED.format(where="pytest.xfail()")
    modules = [str(entry.frame.f_globals.get("__name__", "")) for entry in call.excinfo.traceback]
    culprits = [module for module in modules if module.split(".")[0] not in (*PYTEST, "pluggy")]
    if culprits and culprits[-1].startswith(f"{KIT}."):
        return ""
    return SKIPPED.format(where=culprits[-1] if culprits else "a mark or unittest")
