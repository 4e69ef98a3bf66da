"""Decide which record holds each id once all records are in; the order of plugins never matters.

Public: `resolve(described, prefer) -> Resolved`, `Entry`. An id claimed twice is used by neither,
unless one record names the other's distribution in `replaces`, or the user pins one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

from sgld.api.specs import Claims, Failure, PipelineSpec
from sgld.plugins.describe import KINDS, Described, record_id
from sgld.plugins.failures import failure
from sgld.plugins.scan import normalise

Spec = TypeVar("Spec")
ANY: Final = "*"


class Entry(NamedTuple, Generic[Spec]):
    """A record that is in use, and whose it is. `replaced` names the records it took over."""

    spec: Spec
    plugin: str
    dist: str
    version: str
    replaced: tuple[str, ...] = ()

    @property
    def owner(self) -> str:
        """Distribution and version for messages."""
        return f"{self.dist or self.plugin} {self.version}".strip()


Table = Mapping[str, Mapping[str, Entry[Any]]]


class Resolved(NamedTuple):
    """Kind → id → entry, the tombstones (`retired` pipelines), and what could not be decided."""

    entries: Table
    retired: Mapping[str, Entry[PipelineSpec]]
    failures: tuple[Failure, ...]


def resolve(described: Sequence[Described], prefer: Mapping[str, str]) -> Resolved:
    """Give each id one owner; `prefer` maps `kind:id` to a distribution or plugin name."""
    claims: dict[tuple[str, str], list[Entry[Any]]] = defaultdict(list)
    for plugin in described:
        for kind, records in plugin.records.items():
            for record in records:
                claims[kind, record_id(kind, record)].append(_entry(plugin, record))
    entries: dict[str, dict[str, Entry[Any]]] = {kind: {} for kind in KINDS}
    retired: dict[str, Entry[PipelineSpec]] = {}
    failures: list[Failure] = []
    for (kind, name), rows in sorted(claims.items(), key=lambda item: item[0]):
        live = [row for row in rows if not getattr(row.spec, "retired", "")]
        if not live:
            retired[name] = rows[0]
            continue
        pin = prefer.get(f"{kind}:{name}", "")
        winner, remarks = _winner(kind, name, live, pin)
        failures.extend(remarks)
        if winner is not None:
            entries[kind][name] = winner
    failures.extend(_missing_pins(prefer, claims))
    failures.extend(_orphans(entries))
    return Resolved(entries, retired, tuple(failures))


def _entry(plugin: Described, record: Any) -> Entry[Any]:
    return Entry(record, plugin.plugin.name, plugin.found.dist, plugin.found.version)


def _winner(
    kind: str, name: str, rows: Sequence[Entry[Any]], pin: str
) -> tuple[Entry[Any] | None, list[Failure]]:
    """The entry that holds the id, or none with a row for each claimant."""
    remarks = [_no_victim(kind, name, row) for row in rows if not _victims(row, rows)]
    remarks = [remark for remark in remarks if remark is not None]
    if pin:
        pinned = [row for row in rows if _is_owner(row, pin)]
        if len(pinned) == 1:
            return _take_over(pinned[0], [row for row in rows if row is not pinned[0]]), remarks
        remarks.append(_no_such_pin(kind, name, pin, rows))
    beaten = [other for row in rows for other in _victims(row, rows)]
    standing = [row for row in rows if not any(row is other for other in beaten)]
    if len(standing) == 1:
        others = [row for row in rows if row is not standing[0]]
        return _take_over(standing[0], others), remarks
    return None, remarks + [_clash(kind, name, row, rows) for row in rows]


def _is_owner(row: Entry[Any], name: str) -> bool:
    return normalise(name) in (normalise(row.dist), normalise(row.plugin))


def _victims(row: Entry[Any], rows: Sequence[Entry[Any]]) -> list[Entry[Any]]:
    """The other claimants that this record says it replaces."""
    replaces = getattr(row.spec, "replaces", "")
    if not replaces:
        return []
    others = [other for other in rows if other is not row]
    return [other for other in others if replaces == ANY or _is_owner(other, replaces)]


def _take_over(row: Entry[Any], others: Sequence[Entry[Any]]) -> Entry[Any]:
    """The winner; a pipeline that replaces another is recognised by the other's claims too."""
    victims = [other for other in others if getattr(row.spec, "replaces", "")]
    if not victims:
        return row
    spec = row.spec
    if isinstance(spec, PipelineSpec):
        for other in victims:
            spec = spec._replace(claims=_join(spec.claims, other.spec.claims))
    return row._replace(spec=spec, replaced=tuple(other.owner for other in victims))


def _join(mine: Claims, theirs: Claims) -> Claims:
    return Claims(
        repos=tuple(dict.fromkeys(mine.repos + theirs.repos)),
        aliases=tuple(dict.fromkeys(mine.aliases + theirs.aliases)),
        rules=mine.rules + tuple(rule for rule in theirs.rules if rule not in mine.rules),
        files=tuple(dict.fromkeys(mine.files + theirs.files)),
        patterns=tuple(dict.fromkeys(mine.patterns + theirs.patterns)),
        detect=mine.detect or theirs.detect,
    )


def _clash(kind: str, name: str, row: Entry[Any], rows: Sequence[Entry[Any]]) -> Failure:
    owners = sorted(other.owner for other in rows)
    first = sorted(rows, key=lambda other: other.owner)[0]
    return failure(
        "SGLD-P005",
        row.plugin,
        f"{kind} {name!r} is claimed by {' and '.join(owners)}; neither is used.",
        dist=row.dist,
        version=row.version,
        hint=f"Pin one with --prefer {kind}:{name}={first.dist}, "
        f"or leave one out with SGLD_PLUGINS=-{row.plugin}.",
    )


def _no_victim(kind: str, name: str, row: Entry[Any]) -> Failure | None:
    replaces = getattr(row.spec, "replaces", "")
    if not replaces or replaces == ANY:
        return None
    return failure(
        "SGLD-P006",
        row.plugin,
        f"its {kind} {name!r} replaces that of {replaces!r}, which has none; it is used as it is.",
        dist=row.dist,
        version=row.version,
    )


def _no_such_pin(kind: str, name: str, pin: str, rows: Sequence[Entry[Any]]) -> Failure:
    owners = ", ".join(sorted(row.dist for row in rows))
    return failure(
        "SGLD-P006",
        pin,
        f"--prefer {kind}:{name}={pin} names no one plugin that brings it.",
        hint=f"Those that do: {owners}.",
    )


def _missing_pins(
    prefer: Mapping[str, str], claims: Mapping[tuple[str, str], object]
) -> list[Failure]:
    known = {f"{kind}:{name}" for kind, name in claims}
    return [
        failure("SGLD-P006", pin, f"--prefer {key}={pin} names {key!r}, which no plugin brings.")
        for key, pin in prefer.items()
        if key not in known
    ]


def _orphans(entries: Table) -> list[Failure]:
    """Realtime adapters of pipelines that are not there."""
    return [
        failure(
            "SGLD-P006",
            row.plugin,
            f"realtime adapter {name!r} is for pipeline {row.spec.pipeline!r}, which is not there.",
            dist=row.dist,
            version=row.version,
        )
        for name, row in entries["realtime"].items()
        if row.spec.pipeline not in entries["pipeline"]
    ]
