"""Turn the catalog into what people and programs read: JSON values and plain text tables.

Public: `plugin_json(row)`, `plugins_json(catalog)`, `plugins_text(catalog, kind)`,
`plugin_text(catalog, row)`, `why_text(answer)`, `pipeline_json(entry)`, `table(header, rows)`,
`summary_line(catalog)`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from sgld.api.contracts import CONTRACTS
from sgld.api.hooks import GROUP
from sgld.api.specs import Failure, PipelineSpec
from sgld.plugins.catalog import Catalog
from sgld.plugins.failures import DOCS, is_fatal
from sgld.plugins.match import show
from sgld.plugins.resolve import Entry
from sgld.plugins.rows import PluginRow

if TYPE_CHECKING:
    from sgld.plugins.why import Answer


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Columns of text, two spaces apart, the last one ragged."""
    texts = [list(header), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in texts) for column in range(len(header))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in texts
    ]
    return "\n".join(lines)


def plain(value: Any) -> Any:
    """A record as JSON values: tuples become lists, sets sorted lists, records mappings."""
    if hasattr(value, "_asdict"):
        return {key: plain(item) for key, item in value._asdict().items()}
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {str(key): plain(item) for key, item in items}
    if isinstance(value, set | frozenset):
        return sorted(str(item) for item in cast("frozenset[Any]", value))
    if isinstance(value, tuple | list):
        return [plain(item) for item in cast("tuple[Any, ...]", value)]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return repr(value)


def plugin_json(row: PluginRow) -> dict[str, Any]:
    """One plugin as JSON values."""
    return cast("dict[str, Any]", plain(row))


def plugins_json(catalog: Catalog, kind: str = "") -> dict[str, Any]:
    """All plugins and failures, with the loader's group and the contract ranges of this core."""
    return {
        "group": GROUP,
        "contracts": {name: list(limits) for name, limits in CONTRACTS.items()},
        "plugins": [plugin_json(row) for row in _of_kind(catalog, kind)],
        "failures": [plain(row) for row in catalog.failures],
    }


def _of_kind(catalog: Catalog, kind: str) -> list[PluginRow]:
    """Plugins that provide a kind; those that could not say what they provide stay in."""
    return [row for row in catalog.plugins if not kind or kind in row.provides or not row.provides]


def plugins_text(catalog: Catalog, kind: str = "") -> str:
    """The table of `sgld plugins list`, then one line for each failure and note."""
    rows = [
        (
            row.name,
            row.dist,
            row.version or "-",
            row.core or "-",
            _contracts(row),
            _provides(row, kind),
            row.state,
            f"{row.ms:.1f}",
        )
        for row in _of_kind(catalog, kind)
    ]
    header = ("NAME", "DISTRIBUTION", "VERSION", "CORE", "CONTRACTS", "PROVIDES", "STATE", "MS")
    lines = [table(header, rows)]
    fatal = [row for row in catalog.failures if is_fatal(row)]
    mild = [row for row in catalog.failures if not is_fatal(row)]
    lines += [f"{_label(row)}" for row in fatal]
    lines += [f"note: {row}" for row in mild]
    own = {str(row) for row in catalog.failures}
    for row in catalog.plugins:
        lines += [f"note: {row.name}: {note}" for note in row.notes if note not in own]
    if catalog.failures:
        lines.append(f"`sgld plugins check` tells more; {DOCS} explains every code")
    return "\n".join(lines)


def _label(row: Failure) -> str:
    return str(row)


def _contracts(row: PluginRow) -> str:
    return ",".join(f"{kind}={version}" for kind, version in row.contracts.items()) or "-"


def _provides(row: PluginRow, kind: str) -> str:
    kinds = {name: ids for name, ids in row.provides.items() if not kind or name == kind}
    if kind:
        return ",".join(next(iter(kinds.values()), ())) or "-"
    return ", ".join(f"{len(ids)} {name}" for name, ids in kinds.items()) or "-"


def plugin_text(catalog: Catalog, row: PluginRow) -> str:
    """Everything about one plugin, for `sgld plugins show`."""
    facts = [
        ("name", row.name),
        ("distribution", f"{row.dist} {row.version}".strip()),
        ("module", row.module),
        ("source", row.source),
        ("needs sgld-core", row.core or "-"),
        ("contracts", _contracts(row)),
        ("needs plugins", ", ".join(row.needs) or "-"),
        ("state", f"{row.state} {row.reason}".strip()),
        ("described in", f"{row.ms:.1f} ms"),
        ("summary", row.summary or "-"),
        ("homepage", row.homepage or "-"),
    ]
    lines = [f"{key + ':':<17}{value}" for key, value in facts]
    lines += [f"note:            {note}" for note in row.notes]
    for kind, names in row.provides.items():
        lines.append(f"\n{kind}")
        for name in names:
            lines.append(f"  {name:<24} {_target(catalog, kind, name, row)}")
    return "\n".join(lines)


def _target(catalog: Catalog, kind: str, name: str, row: PluginRow) -> str:
    entry = catalog.entries[kind].get(name)
    if entry is None:
        return "not in use"
    if entry.dist != row.dist:
        return f"not in use: {entry.owner} has it"
    instead = f" (replaces {', '.join(entry.replaced)})" if entry.replaced else ""
    if kind == "model":
        return f"{entry.spec.folder}, served by {entry.spec.pipeline}{instead}"
    return f"{entry.spec.target}{instead}"


def why_text(answer: Answer) -> str:
    """Everybody who was considered for a decision, then the decision."""
    note = answer.facts.get("note", "")
    lines = [f"{answer.question} ({note})" if note else answer.question]
    if answer.rows:
        lines.append(table(("RESULT", "NAME", "DISTRIBUTION", "WHY"), answer.rows))
    lines += [answer.text] if answer.text else []
    lines += [f"not usable: {row}" for row in answer.facts.get("failed_plugins", ())]
    return "\n".join(lines)


def pipeline_json(entry: Entry[PipelineSpec]) -> dict[str, Any]:
    """One pipeline as JSON values, with its owner."""
    spec = cast("dict[str, Any]", plain(entry.spec))
    owner = {"plugin": entry.plugin, "distribution": entry.dist, "version": entry.version}
    return {**spec, **owner, "replaced": list(entry.replaced)}


def claims_text(spec: PipelineSpec) -> list[str]:
    """How a family's checkpoints are recognised, one line for each kind of evidence."""
    claims = spec.claims
    lines = [f"repo id     {name}" for name in claims.repos]
    lines += [f"alias       {name}" for name in claims.aliases]
    for rule in claims.rules:
        lines.append("checkpoint  " + " and ".join(show(where) for where in rule))
    lines += [f"file        {name}" for name in claims.files]
    lines += [f"name like   {name}" for name in claims.patterns]
    if claims.detect:
        lines.append(f"detector    {claims.detect}")
    return lines


def summary_line(catalog: Catalog) -> str:
    """One warning line when something is not usable, else an empty string."""
    bad = [row for row in catalog.plugins if row.state in ("failed", "partial")]
    if not bad:
        return ""
    names = ", ".join(row.name for row in bad)
    noun = "plugin is" if len(bad) == 1 else "plugins are"
    return f"{len(bad)} {noun} not fully usable: {names} (sgld plugins list)"
