"""Examine one plugin in a process of its own and turn the answers, or the death, into rows.

Public: `examine(found, settings, deep) -> Examined`, `death(ended, timeout)`, `Settings`,
`ProbeAnswer`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, cast

from sgld.api.specs import Failure
from sgld.plugins.describe import Described, Outcome
from sgld.plugins.doctor.findings import (
    ProbeAnswer,
    describing,
    is_uncompiled,
    probe_answer,
    probe_row,
    totals,
)
from sgld.plugins.doctor.process import Ended, run
from sgld.plugins.doctor.rows import Row, counted, from_failure
from sgld.plugins.doctor.targets import Missing
from sgld.plugins.doctor.wire import pack, unpack
from sgld.plugins.failures import failure
from sgld.plugins.find import Found
from sgld.plugins.probing import LIMIT_S

MOST_DEATHS: Final = 5
"""When so many targets of a plugin have killed their process, the others are not tried."""


class Settings(NamedTuple):
    """Seconds that each step may take, and the event that ends everything."""

    timeout: float
    stop: threading.Event


class Examined(NamedTuple):
    """One plugin: what describing it gave, its own rows, and the probes of its platforms."""

    outcome: Outcome
    rows: tuple[Row, ...]
    probes: Mapping[str, ProbeAnswer]
    missing: tuple[Missing, ...] = ()
    uncompiled: bool = False


def examine(found: Found, settings: Settings, *, deep: bool) -> Examined:
    """Import, describe, probe and, if `deep`, import every target; never raises for a plugin."""
    skip: list[str] = []
    answers: list[Mapping[str, Any]] = []
    deaths: list[Row] = []
    foreign = 0
    probes: dict[str, ProbeAnswer] = {}
    while True:
        job = {"found": pack(found), "deep": deep, "skip": skip}
        ended = run(job, settings.timeout, settings.stop)
        answers += ended.answers
        foreign += ended.foreign
        if not ended.how:
            break
        word, _, name = ended.at.partition(" ")
        if word not in ("probe", "target"):
            return _died(found, ended, settings.timeout)
        if word == "probe":
            skip.append(ended.at)
            how = death(ended, min(settings.timeout, LIMIT_S))
            probes[name] = ProbeAnswer(False, "", error=how)
            continue
        skip += [name, *(str(row["deep"]) for row in ended.answers if "deep" in row)]
        deaths.append(_bad_target(name, death(ended, settings.timeout)))
        if len(deaths) == MOST_DEATHS:
            deaths.append(_given_up())
            break
    if foreign:
        deaths.append(_foreign(foreign))
    return _examined(found, answers, ended, deaths, probes, deep)


def death(ended: Ended, timeout: float) -> str:
    """How a process ended, as a predicate."""
    word, _, what = ended.how.partition(" ")
    text = {
        "timeout": f"was not done within {timeout:g} s",
        "signal": f"was killed by {what}",
        "exit": f"left the process with exit code {what}",
    }[word]
    if ended.place and word != "exit":
        text += f" (at {ended.place})"
    last = ended.stderr.rpartition("\n")[2].strip()
    return f"{text}: {last[:200]}" if last and word != "timeout" else text


def _bad_target(name: str, death: str) -> Row:
    return Row(
        "bad",
        "deep",
        f"import of the target of {name} {death}.",
        "SGLD-P007",
        "Whatever needs it will end the same way; this is for its author to mend.",
    )


def _given_up() -> Row:
    return Row(
        "bad",
        "deep",
        f"its targets have ended {MOST_DEATHS} processes; the others are not tried.",
        "SGLD-P007",
        "Mend these first.",
    )


def _foreign(count: int) -> Row:
    text = f"{counted(count, 'line')} among the answers of its process cannot be read: it changed "
    return Row(
        "bad",
        "describe",
        f"{text}what belongs to the whole process.",
        "SGLD-P003",
        "Its author should change neither the standard library nor open files of others.",
    )


STEPS: Final = {
    "start": ("import", "the start of the examining process"),
    "describe": ("describe", "a hook"),
    "describe again": ("describe", "a hook, asked for the second time,"),
    "targets": ("targets", "the search for its targets"),
}
"""Step → the check that it belongs to, and what it is called."""


def _died(found: Found, ended: Ended, timeout: float) -> Examined:
    """The plugin never came to describe itself."""
    check, what = STEPS.get(ended.at, ("import", f"import of {found.module}"))
    word = ended.how.partition(" ")[0]
    code = {"signal": "SGLD-P014", "timeout": "SGLD-P015"}.get(word, "SGLD-P001")
    if word == "exit" and ended.at != "import":
        code = "SGLD-P014" if ended.at == "start" else "SGLD-P003"
    row = failure(
        code,
        found.name,
        f"{what} {death(ended, timeout)}.",
        dist=found.dist,
        version=found.version,
        cause=ended.how,
        hint=f"Leave it out with SGLD_PLUGINS=-{found.name}."
        if found.source == "installed"
        else "Take it out of SGLD_EXTERNAL_MODEL_PACKAGE.",
    )
    outcome = Outcome(found, None, row, 0.0, ())
    return Examined(outcome, (from_failure(row, check),), {})


def _examined(
    found: Found,
    answers: Iterable[Mapping[str, Any]],
    ended: Ended,
    deaths: Iterable[Row],
    probes: dict[str, ProbeAnswer],
    deep: bool,
) -> Examined:
    """All runs together; what several of them told is told once."""
    rows: list[Row] = []
    missing: list[Missing] = []
    facts: dict[str, Any] = {}
    for answer in answers:
        if "row" in answer:
            rows.append(Row(**answer["row"]))
        elif "probe" in answer:
            probes[answer["probe"]] = probe_answer(answer)
        elif "missing" in answer:
            missing.append(Missing(*answer["missing"]))
        facts = {**answer, **facts}  # the first run saw the plugin as a server would
    outcome = _outcome(found, facts)
    rows = [*dict.fromkeys(rows), *deaths]
    rows += describing(outcome, facts, ended)
    rows += [probe_row(name, probe) for name, probe in probes.items()]
    if outcome.described is not None:
        rows += totals(rows, facts, deep)
    return Examined(
        outcome, tuple(rows), probes, tuple(dict.fromkeys(missing)), is_uncompiled(facts)
    )


def _outcome(found: Found, facts: Mapping[str, Any]) -> Outcome:
    plain = cast("Mapping[str, Any]", facts["outcome"])
    own = cast("Found", unpack(plain["found"]))
    described = None
    if plain["plugin"] is not None:
        described = Described(own, unpack(plain["plugin"]), unpack(plain["records"]))
    return Outcome(
        own,
        described,
        cast("Failure | None", unpack(plain["failure"])),
        float(plain["ms"]),
        unpack(plain["notes"]),
        unpack(plain["remarks"]),
        unpack(plain["noise"]),
    )
