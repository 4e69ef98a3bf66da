"""One line per plugin: what `sgld plugins list` shows, made from what describing it gave.

Public: `PluginRow`, `plugin_rows(...)`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from sgld.api.specs import Failure, Plugin
from sgld.plugins.describe import Outcome, record_id
from sgld.plugins.failures import is_fatal
from sgld.plugins.find import ALLOW, Discovery, Found


class PluginRow(NamedTuple):
    """One line of `sgld plugins list`; state is `ok`, `partial`, `failed` or `denied`."""

    name: str
    dist: str
    version: str
    source: str
    module: str
    core: str
    contracts: Mapping[str, int]
    provides: Mapping[str, tuple[str, ...]]
    state: str
    reason: str
    ms: float
    notes: tuple[str, ...] = ()
    summary: str = ""
    homepage: str = ""
    needs: tuple[str, ...] = ()


def plugin_rows(
    discovery: Discovery,
    outcomes: Sequence[Outcome],
    unusable: Sequence[Failure],
    remarks: Sequence[Failure],
) -> list[PluginRow]:
    """A row for every plugin: described, set aside before import, or left out.

    `unusable` are failures of whole plugins found after describing; `remarks` all others.
    """
    rows = [_described(outcome, unusable, remarks) for outcome in outcomes]
    shown = {(row.name, row.dist) for row in rows}
    for failed in discovery.failures:
        if is_fatal(failed) and (failed.plugin, failed.dist) not in shown:
            rows.append(_set_aside(failed))
            shown.add((failed.plugin, failed.dist))
    rows.extend(_left_out(found) for found in discovery.denied)
    return rows


def _about(found: Found, failures: Iterable[Failure]) -> list[Failure]:
    return [row for row in failures if row.plugin == found.name and row.dist == found.dist]


def _described(
    outcome: Outcome, unusable: Sequence[Failure], remarks: Sequence[Failure]
) -> PluginRow:
    found, described = outcome.found, outcome.described
    whole = [outcome.failure] if outcome.failure else _about(found, unusable)
    partial = [row for row in _about(found, remarks) if is_fatal(row)]
    notes = [str(row) for row in _about(found, remarks) if not is_fatal(row)]
    first = next(iter([*whole, *partial]), None)
    plugin = described.plugin if described else Plugin(found.name, {})
    provides = described.records.items() if described else ()
    return PluginRow(
        name=found.name,
        dist=found.dist,
        version=found.version,
        source=found.source,
        module=found.module,
        core=found.core,
        contracts=plugin.contracts,
        provides={
            kind: tuple(record_id(kind, record) for record in records)
            for kind, records in provides
            if records
        },
        state="failed" if whole else "partial" if partial else "ok",
        reason=f"{first.code} {first.message}" if first else "",
        ms=round(outcome.ms, 2),
        notes=(*outcome.notes, *notes),
        summary=plugin.summary,
        homepage=plugin.homepage,
        needs=plugin.needs,
    )


def _set_aside(row: Failure) -> PluginRow:
    """A plugin that was not even imported."""
    return PluginRow(
        name=row.plugin,
        dist=row.dist,
        version=row.version,
        source="installed" if row.version else "local",
        module="",
        core="",
        contracts={},
        provides={},
        state="failed",
        reason=f"{row.code} {row.message}",
        ms=0.0,
    )


def _left_out(found: Found) -> PluginRow:
    return PluginRow(
        name=found.name,
        dist=found.dist,
        version=found.version,
        source=found.source,
        module=found.module,
        core=found.core,
        contracts={},
        provides={},
        state="denied",
        reason=f"left out by {ALLOW}",
        ms=0.0,
    )
