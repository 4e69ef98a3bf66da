"""What the doctor found: rows of `ok`, `note` and `bad`, per plugin and for the machine.

Public: `Row`, `PluginReport`, `MachineReport`, `Report`, `from_failure(row, check)`,
`in_order(rows)`, `worst(rows)`, `counted(count, noun)`, `CHECKS`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple

from sgld.api.specs import Failure
from sgld.plugins.binding import Decision
from sgld.plugins.failures import is_fatal
from sgld.plugins.find import Found

Level = Literal["ok", "note", "bad"]

CHECKS: Final = (
    "find",
    "import",
    "hooks",
    "contract",
    "describe",
    "bytecode",
    "resolve",
    "needs",
    "targets",
    "deep",
    "models",
    "packages",
    "wheel",
    "probe",
    "choose",
)
"""What is checked, in the order in which it is told; programs may rely on these words."""

OF_PHASE: Final[Mapping[str, str]] = {
    "find": "find",
    "import": "import",
    "examine": "import",
    "register": "hooks",
    "describe": "describe",
    "contract": "contract",
    "resolve": "resolve",
    "needs": "needs",
    "probe": "probe",
}
"""Phase of a failure → the check that it belongs to; the others name their own."""


class Row(NamedTuple):
    """One finding. `code` is empty where all is well; `remedy` says what to do about it."""

    level: Level
    check: str
    message: str
    code: str = ""
    remedy: str = ""
    seconds: float | None = None


class PluginReport(NamedTuple):
    """One plugin and its rows in the order of `CHECKS`."""

    found: Found
    rows: tuple[Row, ...]

    @property
    def level(self) -> Level:
        """The worst of its rows."""
        return worst(self.rows)


class MachineReport(NamedTuple):
    """The platform that `auto` takes here with its facts, and what it takes for each op."""

    platform: str
    facts: Mapping[str, Any]
    rows: tuple[Row, ...]
    decisions: tuple[Decision, ...]


class Report(NamedTuple):
    """Everything the doctor found; `machine` is None when only some plugins were asked for."""

    plugins: tuple[PluginReport, ...]
    machine: MachineReport | None
    general: tuple[Row, ...]
    """What belongs to no plugin, such as a name in `SGLD_PLUGINS` that nothing has."""
    deep: bool
    seconds: float

    def rows(self) -> Iterator[Row]:
        """All rows, for counting."""
        for plugin in self.plugins:
            yield from plugin.rows
        if self.machine is not None:
            yield from self.machine.rows
        yield from self.general

    def exit_code(self, strict: bool) -> int:
        """2 when a row is bad, 1 when there is a note and `strict` is asked for, else 0."""
        level = worst(tuple(self.rows()))
        return 2 if level == "bad" else int(level == "note" and strict)


def worst(rows: tuple[Row, ...]) -> Level:
    """The gravest level among the rows; `ok` when there are none."""
    levels = {row.level for row in rows}
    return "bad" if "bad" in levels else "note" if "note" in levels else "ok"


def from_failure(row: Failure, check: str = "") -> Row:
    """A failure of the catalog as a row."""
    level: Level = "bad" if is_fatal(row) else "note"
    return Row(level, check or OF_PHASE[row.phase], row.message, row.code, row.hint)


def counted(count: int, noun: str) -> str:
    """`1 note`, `2 notes`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def in_order(rows: list[Row]) -> tuple[Row, ...]:
    """Rows in the order of `CHECKS`; those of one check stay as they came."""
    return tuple(sorted(rows, key=lambda row: CHECKS.index(row.check)))
