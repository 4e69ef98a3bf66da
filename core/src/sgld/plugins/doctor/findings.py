"""From the answers of a plugin's process to rows: what is well and what is not.

Public: `ProbeAnswer`, `DeviceAnswer`, `probe_answer(answer)`, `describing(...)`,
`probe_row(name, probe)`, `totals(...)`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from sgld.api.contracts import CONTRACTS
from sgld.plugins.describe import HOOKS, SLOW_MS, Described, Outcome
from sgld.plugins.doctor.process import Ended
from sgld.plugins.doctor.rows import Row, counted, from_failure
from sgld.plugins.doctor.wire import unpack

SLOW_WALL_MS: Final = 10 * SLOW_MS
"""Waiting is slow too, but on a busy machine anything waits a little."""


class DeviceAnswer(NamedTuple):
    """One device as a probe told of it."""

    name: str
    arch: int
    dtypes: frozenset[str]
    abilities: frozenset[str]


class ProbeAnswer(NamedTuple):
    """What a platform's probe said, or why it said nothing (`error`)."""

    available: bool
    reason: str
    devices: tuple[DeviceAnswer, ...] = ()
    seconds: float = 0.0
    torch: bool = False
    error: str = ""


def probe_answer(answer: Mapping[str, Any]) -> ProbeAnswer:
    """Read what the worker wrote down of a probe."""
    if "error" in answer:
        return ProbeAnswer(False, "", error=f"failed: {answer['error']}")
    return ProbeAnswer(
        answer["available"],
        answer["reason"],
        tuple(DeviceAnswer._make(unpack(device)) for device in answer["devices"]),
        answer["seconds"],
        answer["torch"],
    )


def describing(outcome: Outcome, facts: Mapping[str, Any], ended: Ended) -> list[Row]:
    """Import and description: heavy modules, noise, time, bytecode, then failure or contracts."""
    rows = [*_heavy(outcome, facts["heavy"]), *map(_noise, _loud(outcome, ended))]
    if facts["cpu_ms"] > SLOW_MS or outcome.ms > SLOW_WALL_MS:
        rows.append(_slow(outcome))
    if outcome.failure is not None:
        return [*rows, *_bytecode(outcome, facts), from_failure(outcome.failure)]
    if not rows:
        text = "the module imports; nothing heavy, nothing printed"
        rows.append(Row("ok", "import", text, seconds=outcome.ms / 1000))
    rows += _bytecode(outcome, facts)
    rows.append(Row("ok", "hooks", "every hook is known and asks for no argument"))
    if outcome.described is not None:
        rows += _contracts(outcome.described)
    return rows


def _heavy(outcome: Outcome, places: Mapping[str, str]) -> Iterator[Row]:
    told = ", ".join(f"{name} at {place}" for name, place in places.items() if place)
    for remark in outcome.remarks:
        row = from_failure(remark, "import")
        yield row._replace(message=f"{row.message} First asked for: {told}.") if told else row


def _slow(outcome: Outcome) -> Row:
    return Row(
        "note",
        "import",
        f"importing and describing it takes {outcome.ms:.0f} ms and slows every command.",
        "SGLD-P018",
        "Its plugin module should only name things; move work into the targets.",
    )


def _bytecode(outcome: Outcome, facts: Mapping[str, Any]) -> Iterator[Row]:
    """Nothing for a module that has none, such as one written in C."""
    if facts.get("bytecode"):
        yield Row("ok", "bytecode", "the compiled module is stored")
    elif is_uncompiled(facts):
        yield Row("ok", "bytecode", "not stored, as PYTHONDONTWRITEBYTECODE wants it")
    elif "bytecode" in facts:
        yield Row(
            "note",
            "bytecode",
            f"no bytecode of {outcome.found.module} is stored, nor can Python store it, so every "
            "start compiles it.",
            "SGLD-P022",
            "Run python -m compileall on its folder.",
        )


def is_uncompiled(facts: Mapping[str, Any]) -> bool:
    """Whether the module is not stored compiled because the user forbids it."""
    return facts.get("bytecode") is False and bool(facts.get("forbidden"))


def _contracts(described: Described) -> Iterator[Row]:
    """A kind without a record is mostly a hook that is missing or not marked."""
    spoken = described.plugin.contracts
    bare = [kind for kind in spoken if not described.records[kind]]
    for kind in bare:
        hook = next(name for name, (own, _) in HOOKS.items() if own == kind)
        yield Row(
            "bad",
            "contract",
            f"it states a contract for kind {kind!r} and brings no record of it.",
            "SGLD-P004",
            f"Its author should give one from {hook} (marked with hookimpl), or take {kind!r} out "
            "of Plugin.contracts.",
        )
    ranges = ((kind, version, *CONTRACTS[kind]) for kind, version in spoken.items())
    texts = [f"{kind} {version} of {low}..{high}" for kind, version, low, high in ranges]
    if not bare:
        yield Row("ok", "contract", ", ".join(texts) or "it speaks none")


def _loud(outcome: Outcome, ended: Ended) -> list[str]:
    rows = list(outcome.noise)
    for name, text in (("output", ended.stdout), ("error", ended.stderr)):
        if text:
            shown = text if len(text) <= 200 else f"{text[:120]} ... {text[-60:]}"
            rows.append(f"wrote to standard {name}: {shown!r}")
    return rows


def _noise(text: str) -> Row:
    return Row(
        "note",
        "import",
        f"importing or describing it {text}.",
        "SGLD-P017",
        "Its plugin module should only name things; programs read our output.",
    )


def probe_row(name: str, probe: ProbeAnswer) -> Row:
    """What a platform's probe said; that a device is not there is no fault."""
    if probe.error:
        remedy = "Mend its driver or plugin, or run with --device cpu."
        text = f"the probe of platform {name!r} {probe.error}."
        return Row("bad", "probe", text, "SGLD-P010", remedy)
    if probe.torch:
        return Row(
            "bad",
            "probe",
            f"the probe of platform {name!r} imports torch, but who asks it has to do without.",
            "SGLD-P007",
            "A probe should ask the driver, not torch.",
            probe.seconds,
        )
    found = ", ".join(device.name for device in probe.devices)
    said = f"there ({found})" if probe.available else f"not there: {probe.reason}"
    return Row("ok", "probe", f"{name} is {said}", seconds=probe.seconds)


def totals(rows: Sequence[Row], facts: Mapping[str, Any], deep: bool) -> list[Row]:
    """An `ok` for each check that found nothing wrong."""
    seen = {row.check for row in rows}
    count = facts.get("targets", 0)
    text = f"{counted(count, 'target')}, the module of each can be found"
    totals = [Row("ok", "targets", text)]
    if deep and "targets" not in seen:  # what is not there was not imported
        text = f"{counted(count, 'target')}, each imports and is what its contract says"
        totals.append(Row("ok", "deep", text))
    return [row for row in totals if row.check not in seen]
