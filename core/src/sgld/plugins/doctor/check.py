"""The doctor's round: find, examine each plugin in its own process, resolve, look at the machine.

Public: `check(environ, ...) -> Report`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from sgld.api.ops import OPS
from sgld.api.specs import Failure, Requires
from sgld.plugins.catalog import PREFER, Catalog, assemble, parse_prefer, unknown
from sgld.plugins.choose import ANY_CACHE
from sgld.plugins.doctor.examine import Examined, Settings, examine
from sgld.plugins.doctor.findings import ProbeAnswer
from sgld.plugins.doctor.machine import look
from sgld.plugins.doctor.models import model_rows
from sgld.plugins.doctor.rows import (
    MachineReport,
    PluginReport,
    Report,
    Row,
    from_failure,
    in_order,
)
from sgld.plugins.doctor.targets import Missing
from sgld.plugins.doctor.wheels import wheel_rows
from sgld.plugins.failures import failure, is_fatal
from sgld.plugins.find import ALLOW, Discovery, Found, find
from sgld.plugins.resolve import Entry
from sgld.plugins.scan import normalise

TIMEOUT: Final = 30.0
"""Seconds that each step of examining a plugin may take."""
CHOSEN: Final = ("platform", "attention", "kernel")
"""Kinds among which `auto` chooses."""


def check(
    environ: Mapping[str, str],
    *,
    name: str = "",
    deep: bool = False,
    timeout: float = TIMEOUT,
    prefer: Mapping[str, str] | None = None,
) -> Report:
    """Examine all plugins, or tell only of those called `name` (a plugin or distribution).

    The others are still described then, for whether an id is free depends on them.
    Raises UserError for a name that nothing has; nothing that a plugin does makes it raise.
    """
    began = time.perf_counter()
    discovery = find(environ)
    pins = parse_prefer(text for text in environ.get(PREFER, "").split(",") if text.strip())
    settings = Settings(timeout, threading.Event())
    examined = _examine_all(discovery.found, settings, name, deep)
    catalog = assemble(discovery, [row.outcome for row in examined], {**pins, **(prefer or {})})
    chosen = [row for row in examined if not name or _is_called(row.outcome.found, name)]
    described = [row.outcome.described for row in examined if row.outcome.described is not None]
    carried = {
        row.outcome.described.found: model_rows(row.outcome.described, described, catalog, settings)
        for row in chosen
        if row.outcome.described is not None
    }
    machine = None
    if not name or any(map(_brings_choices, chosen)):
        probes: dict[str, ProbeAnswer] = {}
        for row in examined:
            probes |= row.probes
        machine = look(catalog, probes, settings, deep=deep)
    plugins = list(_reports(discovery, examined, catalog, machine, carried))
    known = {(row.found.name, row.found.dist) for row in plugins}
    if name:
        plugins = [row for row in plugins if _is_called(row.found, name)]
        if not plugins:
            raise unknown("plugin", name, {plugin for plugin, _ in known})
    general = () if name else (*_general(catalog, known), *_uncompiled(examined))
    return Report(tuple(plugins), machine, general, deep, time.perf_counter() - began)


def _is_called(found: Found, name: str) -> bool:
    return normalise(name) in (normalise(found.name), normalise(found.dist))


def _examine_all(
    found: Sequence[Found], settings: Settings, name: str, deep: bool
) -> list[Examined]:
    """Each plugin in its own process, a few at a time; Ctrl-C ends them all."""

    def meant(row: Found) -> bool:
        # A local package tells its plugin's name only when it is described.
        return not name or _is_called(row, name) or row.source == "local"

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        waiting = [pool.submit(examine, row, settings, deep=deep and meant(row)) for row in found]
        try:
            return [future.result() for future in waiting]
        except BaseException:
            settings.stop.set()
            pool.shutdown(cancel_futures=True)
            raise


def _reports(
    discovery: Discovery,
    examined: Sequence[Examined],
    catalog: Catalog,
    machine: MachineReport | None,
    carried: Mapping[Found, Sequence[Row]],
) -> Iterator[PluginReport]:
    """A report for each plugin: examined, set aside before import, or left out."""
    early = list(discovery.failures)
    told = [*early, *(row.outcome.failure for row in examined)]
    told += [remark for row in examined for remark in row.outcome.remarks]
    late = [row for row in catalog.failures if row not in told]
    late += list(_dangling(catalog))
    shown: set[tuple[str, str]] = set()
    for row in examined:
        found = row.outcome.found
        shown.add((found.name, found.dist))
        rows = [_entry_point(found), *row.rows, *wheel_rows(found), *_packages(row, machine)]
        rows += carried.get(found, ())
        rows += [from_failure(item, "find") for item in early if _is_about(item, found)]
        rows += [from_failure(item) for item in late if _is_about(item, found)]
        if row.outcome.described is not None:
            rows += _agreed(rows, row)
        yield PluginReport(found, in_order(rows))
    for item in early:
        if is_fatal(item) and (item.plugin, item.dist) not in shown:
            shown.add((item.plugin, item.dist))
            source = "installed" if item.dist else "local"
            found = Found(item.plugin, "", item.dist, item.version, source)
            same = [from_failure(other, "find") for other in early if _is_about(other, found)]
            yield PluginReport(found, in_order(same))
    for found in discovery.denied:
        row = Row("ok", "find", f"left out by {ALLOW}, so it is not examined")
        yield PluginReport(found, (row,))


def _entry_point(found: Found) -> Row:
    where = {
        "installed": f"entry point {found.name} = {found.module}, made for this loader",
        "local": f"package {found.module}, named by the environment",
        "builtin": f"part of {found.dist}",
    }
    return Row("ok", "find", where[found.source])


def _is_about(row: Failure, found: Found) -> bool:
    return row.plugin == found.name and row.dist == found.dist


def _agreed(rows: Sequence[Row], examined: Examined) -> Iterator[Row]:
    """What is well between plugins."""
    seen = {row.check for row in rows}
    if "resolve" not in seen:
        yield Row("ok", "resolve", "no other plugin claims its ids")
    described = examined.outcome.described
    needs = described.plugin.needs if described else ()
    if needs and "needs" not in seen:
        yield Row("ok", "needs", f"{', '.join(needs)}: usable")


def _dangling(catalog: Catalog) -> Iterator[Failure]:
    """Names of cache policies and ops that nobody brings."""
    for entry in catalog.pipelines.values():
        for cache in entry.spec.caches:
            if cache != ANY_CACHE and cache not in catalog.caches:
                yield _names(entry, f"pipeline {entry.spec.id!r} takes cache policy {cache!r}")
    for entry in catalog.kernels.values():
        if entry.spec.op not in OPS:
            yield _names(entry, f"kernel {entry.spec.id!r} is for op {entry.spec.op!r}")


def _names(entry: Entry[Any], what: str) -> Failure:
    return failure(
        "SGLD-P006",
        entry.plugin,
        f"its {what}, which is not there.",
        dist=entry.dist,
        version=entry.version,
        hint="Correct the name, or install what brings it.",
    )


def _packages(row: Examined, machine: MachineReport | None) -> Iterator[Row]:
    """Packages that records require. One that is missing matters where the device is there."""
    described = row.outcome.described
    if described is None:
        return
    missing = {(item.kind, item.id, item.package): item for item in row.missing}
    for kind, records in described.records.items():
        for record in records:
            for name in getattr(record, "requires", Requires()).packages:
                item = missing.get((kind, record.id, name))
                what = f"{kind} {record.id!r} requires package {name!r}"
                if item is None:
                    yield Row("ok", "packages", f"{what}: installed")
                elif _is_needed(item, row, machine):
                    text = f"{what}, which is not installed, so it cannot be used."
                    remedy = f"Install what provides {name!r} to use it."
                    yield Row("note", "packages", text, "SGLD-P019", remedy)
                else:
                    text = f"{what}: not installed, and its device is not here either"
                    yield Row("ok", "packages", text)


def _is_needed(item: Missing, row: Examined, machine: MachineReport | None) -> bool:
    if item.kind == "platform":
        probe = row.probes.get(item.id)
        return probe is None or probe.available or bool(probe.error)
    device = machine.facts.get("device") if machine is not None else None
    return item.device == "any" or device in (None, item.device)


def _brings_choices(row: Examined) -> bool:
    described = row.outcome.described
    return described is not None and any(described.records.get(kind) for kind in CHOSEN)


def _uncompiled(examined: Sequence[Examined]) -> Iterator[Row]:
    """One note for all plugins, for it is one setting."""
    names = [row.outcome.found.name for row in examined if row.uncompiled]
    if names:
        yield Row(
            "note",
            "bytecode",
            f"PYTHONDONTWRITEBYTECODE is set and no bytecode is stored for {', '.join(names)}, so "
            "every start compiles them.",
            "SGLD-P022",
            "Unset it, or run python -m compileall on their folders.",
        )


def _general(catalog: Catalog, about: set[tuple[str, str]]) -> Iterator[Row]:
    """Failures that belong to no plugin, such as a wrong name in `SGLD_PLUGINS`."""
    for row in catalog.failures:
        if (row.plugin, row.dist) not in about:
            yield from_failure(row)
