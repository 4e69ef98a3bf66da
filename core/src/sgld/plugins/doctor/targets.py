"""All targets of a plugin, and whether their modules are there, told without importing them.

Public: `Target`, `Missing`, `of_plugin(described)`, `locate(module)`, `unfound(targets)`,
`missing_packages(described)`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from typing import Any, Final, NamedTuple

from sgld.api.specs import Requires
from sgld.plugins.describe import Described, record_id

LIGHT: Final = frozenset(
    {
        ("pipeline", "params"),
        ("pipeline", "layout"),
        ("pipeline", "detect"),
        ("pipeline", "inspect"),
        ("platform", "probe"),
        ("realtime", "target"),
        ("route", "target"),
    }
)
"""Kind and field of targets that processes without torch import."""


class Target(NamedTuple):
    """One target of one record; `field` is `blueprints.NAME` for a blueprint."""

    kind: str
    id: str
    field: str
    target: str
    record: Any

    @property
    def name(self) -> str:
        """Unique within a plugin."""
        return f"{self.kind} {self.id} {self.field}"

    @property
    def label(self) -> str:
        """For messages."""
        field = "" if self.field == "target" else f", {self.field}"
        return f"{self.kind} {self.id!r}{field}"

    @property
    def module(self) -> str:
        """The module part."""
        return self.target.partition(":")[0]

    @property
    def light(self) -> bool:
        """Whether importing it must not import torch."""
        return (self.kind, self.field) in LIGHT


class Missing(NamedTuple):
    """A package that a record requires and that is not there; `device` is the record's own."""

    kind: str
    id: str
    device: str
    package: str


def of_plugin(described: Described) -> list[Target]:
    """Every target that a plugin's records name; a retired pipeline has none."""
    return [
        Target(kind, record_id(kind, record), field, target, record)
        for kind, records in described.records.items()
        for record in records
        for field, target in _fields(record)
        if target
    ]


def _fields(record: Any) -> Iterator[tuple[str, str]]:
    if getattr(record, "retired", ""):
        return
    for field in ("params", "layout", "inspect", "probe", "target"):
        yield field, getattr(record, field, "")
    claims = getattr(record, "claims", None)
    yield "detect", claims.detect if claims is not None else ""
    for name, target in getattr(record, "blueprints", {}).items():
        yield f"blueprints.{name}", target


def locate(name: str) -> ModuleSpec | None:
    """The spec of a module; unlike `importlib.util.find_spec` this imports no parent package."""
    path: Sequence[str] | None = None
    spec: ModuleSpec | None = None
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        prefix = ".".join(parts[:count])
        loaded = sys.modules.get(prefix)
        if loaded is not None and getattr(loaded, "__spec__", None) is not None:
            spec = loaded.__spec__
            path = getattr(loaded, "__path__", None)
        elif count > 1 and path is None:
            return None  # its parent is a module, not a package
        else:
            spec = _ask_finders(prefix, path)
            path = spec.submodule_search_locations if spec is not None else None
        if spec is None:
            return None
    return spec


def _ask_finders(name: str, path: Sequence[str] | None) -> ModuleSpec | None:
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        spec = find(name, path) if find is not None else None
        if spec is not None:
            return spec
    return None


def unfound(rows: Sequence[Target]) -> Iterator[tuple[str, str]]:
    """What is wrong and what to do, for every target whose module is not there."""
    for row in rows:
        if locate(row.module) is None:
            yield (
                f"{row.label}: target {row.target!r} names module {row.module!r}, which is not "
                "there.",
                "This is for its author to mend: correct the name, or put the module in the wheel.",
            )


def missing_packages(described: Described) -> Iterator[Missing]:
    """Every package that a record requires and that is not there."""
    for kind, records in described.records.items():
        for record in records:
            requires = getattr(record, "requires", Requires())
            for name in requires.packages:
                if locate(name) is None:
                    yield Missing(kind, record.id, requires.device, name)
