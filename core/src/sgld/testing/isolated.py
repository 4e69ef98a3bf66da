"""Catalogues of a few plugins, whatever else is installed; and plugins that live for one test.

catalog_of("acme")                        an installed plugin, by its name or distribution
catalog_of("acme_sgld.plugin")            a module that is not installed
with local_plugin("mine", CacheSpec("mine", "local_mine:Mine", bounded=True), Mine=Mine) as module:
    catalog_of(module)
with refused_discovery(): ...             whoever looks for installed plugins gets an error
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Final, NoReturn

from sgld.api.contracts import CONTRACTS
from sgld.api.errors import UserError
from sgld.api.hooks import hookimpl
from sgld.api.specs import Plugin
from sgld.plugins import find as finding
from sgld.plugins.catalog import Catalog, build, unknown
from sgld.plugins.describe import HOOKS
from sgld.plugins.find import EXTERNAL, Discovery, Found
from sgld.plugins.scan import normalise, scan

PREFIX: Final = "local_"
"""What the module of a `local_plugin` is called before its name."""


def catalog_of(*plugins: str | ModuleType) -> Catalog:
    """A catalogue of the core's own plugin and exactly these.

    A plugin is a name, a distribution, an importable module, or a module object. Raises UserError
    for one that is not there; what is wrong with one stands in `Catalog.failures`.
    """
    installed = _find({}).found
    found = [installed[0], *(_one(plugin, installed) for plugin in plugins)]
    return build(Discovery(tuple(dict.fromkeys(found)), (), ()), {})


def owner_catalog(
    kind: str, id: str, plugin: str | ModuleType = "", *beside: str | ModuleType
) -> Catalog:
    """A catalogue of the plugin that brings record `id` of a kind, of the plugins it needs, and of
    those `beside` it.

    Without `plugin` all installed ones are asked, and those that the environment adds. Raises
    UserError when none, or none that works, brings it.
    """
    catalog = with_needs(plugin or _owner(kind, id), *beside)
    if id not in catalog.entries[kind]:
        error = unknown(kind, id, catalog.entries[kind])
        reasons = "".join(f"\n{row}" for row in catalog.fatal)
        raise UserError(f"{error.message}{reasons}", remedy=error.remedy)
    return catalog


def _owner(kind: str, id: str) -> str:
    everything = _everything(*(os.environ.get(name, "") for name in EXTERNAL))
    entry = everything.entries[kind].get(id)
    if entry is None:
        error = unknown(kind, id, everything.entries[kind])
        reasons = "".join(f"\n{row}" for row in everything.fatal)
        raise UserError(f"{error.message}{reasons}", remedy=error.remedy)
    row = next(row for row in everything.plugins if row.name == entry.plugin)
    return row.module if row.source == "local" else row.name


def found_plugin(plugin: str | ModuleType) -> Found:
    """Where a plugin is: see `catalog_of`."""
    return _one(plugin, _find({}).found)


def with_needs(*plugins: str | ModuleType) -> Catalog:
    """As `catalog_of` these plugins and all those that they need, and that are there."""
    names: list[str | ModuleType] = [*plugins]
    while True:
        catalog = catalog_of(*names)
        there = {row.name for row in catalog.plugins}
        missing = {need for row in catalog.plugins for need in row.needs} - there
        missing = {need for need in missing if _is_there(need)}
        if not missing:
            return catalog
        names += sorted(missing)


@lru_cache(maxsize=8)
def _everything(*external: str) -> Catalog:
    """All plugins of this environment; `external` is what its variables add."""
    return build(_find(dict(zip(EXTERNAL, external, strict=True))), {})


def _one(plugin: str | ModuleType, installed: tuple[Found, ...]) -> Found:
    if isinstance(plugin, ModuleType):
        name = plugin.__name__
        return Found(name, name, name, "", "local")
    for row in installed:
        if normalise(plugin) in (normalise(row.name), normalise(row.dist)):
            return row
    if plugin in sys.modules or _importable(plugin):
        return Found(plugin, plugin, plugin, "", "local")
    raise unknown("installed plugin or module", plugin, [row.name for row in installed])


def _is_there(name: str) -> bool:
    names = {normalise(name) for row in _find({}).found for name in (row.name, row.dist)}
    return normalise(name) in names


def _importable(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _find(environ: Mapping[str, str]) -> Discovery:
    """What is installed, also while discovery is refused to others."""
    before = _swap_scan(scan)
    try:
        return finding.find(environ)
    finally:
        _swap_scan(before)


def _swap_scan(other: Any) -> Any:
    """Put another function in the place of the one that reads metadata; gives the one before."""
    before = vars(finding)["scan"]
    setattr(finding, "scan", other)  # noqa: B010  (it is no export of that module)
    return before


@contextmanager
def refused_discovery() -> Iterator[None]:
    """Whoever looks for installed plugins meanwhile gets a UserError: a test that has a catalogue
    of its own must not depend on what else is installed."""

    def refuse(path: Any = None) -> NoReturn:
        raise UserError(
            "this test has a throw-away catalogue, and something looks for installed plugins.",
            code="discovery_refused",
            remedy="Hand the catalogue on: make_plan(options, catalog=...).",
        )

    before = _swap_scan(refuse)
    try:
        yield
    finally:
        _swap_scan(before)


@contextmanager
def local_plugin(
    name: str, *records: Any, contracts: Mapping[str, int] | None = None, **attributes: Any
) -> Iterator[ModuleType]:
    """A module with the hooks of a plugin, importable as `local_<name>` until the end.

    Args:
        name: of the plugin.
        records: what it brings.
        contracts: the versions that it speaks; by default the newest of each kind that it brings.
        attributes: further things in the module, for targets such as `local_<name>:Thing`.
    """
    module = ModuleType(PREFIX + name.replace("-", "_"), f"A plugin {name!r} made for a test.")
    kinds: dict[str, list[Any]] = {}
    for record in records:
        hook = next((hook for hook, (_, kind) in HOOKS.items() if isinstance(record, kind)), None)
        if hook is None:
            raise TypeError(f"{record!r} is no record of sgld.api")
        kinds.setdefault(hook, []).append(record)
    if contracts is None:
        contracts = {HOOKS[hook][0]: CONTRACTS[HOOKS[hook][0]][1] for hook in kinds}
    vars(module).update(attributes, sgld_plugin=_hook(Plugin(name, contracts)))
    vars(module).update({hook: _hook(rows) for hook, rows in kinds.items()})
    if module.__name__ in sys.modules:
        raise ValueError(f"a module {module.__name__} is there already")
    sys.modules[module.__name__] = module
    try:
        yield module
    finally:
        # At the interpreter's exit it may be gone already.
        sys.modules.pop(module.__name__, None)


def _hook(value: Any) -> Any:
    def hook() -> Any:
        return value

    return hookimpl(hook)
