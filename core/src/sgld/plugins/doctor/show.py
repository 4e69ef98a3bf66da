"""The doctor's report as text for people and as JSON for programs.

Public: `text(report, strict)`, `as_json(report, strict)`; the JSON is described in
`docs/plugin-errors.md`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from sgld import __version__
from sgld.plugins.binding import Decision
from sgld.plugins.doctor.rows import PluginReport, Report, Row, counted, worst
from sgld.plugins.failures import DOCS, section

VERSION: Final = 1
"""Of the JSON form; raised when a key changes its meaning or goes."""


def text(report: Report, strict: bool) -> str:
    """Plugin by plugin, then the machine, then one line that sums up."""
    blocks = ["\n".join(_plugin(plugin)) for plugin in report.plugins]
    if report.machine is not None:
        lines = [f"this machine: {worst(report.machine.rows)}"]
        blocks.append("\n".join([*lines, *(_line(row, "") for row in report.machine.rows)]))
    if report.general:
        lines = [f"settings: {worst(report.general)}"]
        blocks.append("\n".join([*lines, *(_line(row, "") for row in report.general)]))
    return "\n\n".join([*blocks, summary(report, strict)])


def _plugin(plugin: PluginReport) -> Iterator[str]:
    found = plugin.found
    owner = f"{found.dist} {found.version}".strip()
    yield f"{found.name} ({owner}): {plugin.level}"
    for row in plugin.rows:
        yield _line(row, owner)


def _line(row: Row, owner: str) -> str:
    """One finding in one line: what, who, why, what to do."""
    took = f" ({row.seconds * 1000:.0f} ms)" if row.seconds is not None else ""
    who = f"{row.code} {owner}".strip() + ": " if row.code else ""
    said = " ".join(f"{who}{row.message}{took} {row.remedy}".split())
    return f"  {row.level:<4}  {row.check:<8}  {said}"


def summary(report: Report, strict: bool) -> str:
    """The last line: how many of what, and where the codes are explained."""
    levels = Counter(row.level for row in report.rows())
    line = (
        f"{counted(len(report.plugins), 'plugin')} in {report.seconds:.1f} s: "
        f"{levels['ok']} ok, {counted(levels['note'], 'note')}, {levels['bad']} bad"
    )
    if levels["note"] and not levels["bad"] and strict:
        line += " (notes count, because of --strict)"
    if not report.deep:
        models = " but those of carried models" if _has_models(report) else ""
        line += f". No target was imported{models}; --deep does that."
    if levels["note"] or levels["bad"]:
        line = f"{line.rstrip('.')}. Each code has a section in {DOCS}."
    return line


def _has_models(report: Report) -> bool:
    return any(row.check == "models" for row in report.rows())


def as_json(report: Report, strict: bool) -> dict[str, Any]:
    """The whole report as JSON values."""
    levels = Counter(row.level for row in report.rows())
    machine = report.machine
    return {
        "version": VERSION,
        "core": __version__,
        "deep": report.deep,
        "plugins": [_plugin_json(plugin) for plugin in report.plugins],
        "machine": None
        if machine is None
        else {
            "platform": machine.platform,
            "facts": dict(machine.facts),
            "rows": [_row_json(row) for row in machine.rows],
            "decisions": [_decision_json(row) for row in machine.decisions],
        },
        "general": [_row_json(row) for row in report.general],
        "summary": {
            "plugins": len(report.plugins),
            "ok": levels["ok"],
            "notes": levels["note"],
            "bad": levels["bad"],
            "seconds": round(report.seconds, 3),
        },
        "exit_code": report.exit_code(strict),
    }


def _plugin_json(plugin: PluginReport) -> dict[str, Any]:
    found = plugin.found
    return {
        "name": found.name,
        "distribution": found.dist,
        "version": found.version,
        "module": found.module,
        "source": found.source,
        "level": plugin.level,
        "rows": [_row_json(row) for row in plugin.rows],
    }


def _row_json(row: Row) -> dict[str, Any]:
    return {**row._asdict(), "section": section(row.code)}


def _decision_json(row: Decision) -> dict[str, Any]:
    choice = row.choice
    return {
        "op": row.op,
        "chosen": choice.id if choice else "",
        "distribution": choice.entry.dist if choice and choice.entry else "",
        "why": choice.why if choice else row.refusal,
        "losers": [{"id": name, "why": why} for name, why in choice.losers] if choice else [],
    }
