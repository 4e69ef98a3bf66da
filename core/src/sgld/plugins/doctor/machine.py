"""What `auto` chooses on this machine: the platform, and for each op and role who does it.

Public: `look(catalog, probes, settings) -> MachineReport`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sgld.api.contracts import DeviceFacts
from sgld.api.errors import DeviceError, FeatureError, PluginError
from sgld.plugins.binding import Decision, decide_all, facts_of
from sgld.plugins.catalog import Catalog
from sgld.plugins.choose import PlatformChoice, choose_platform
from sgld.plugins.doctor.examine import Settings
from sgld.plugins.doctor.findings import ProbeAnswer
from sgld.plugins.doctor.process import run
from sgld.plugins.doctor.rows import MachineReport, Row
from sgld.plugins.resolve import Entry


def look(
    catalog: Catalog, probes: Mapping[str, ProbeAnswer], settings: Settings, *, deep: bool
) -> MachineReport:
    """Choose as a server without options would; the probes were asked by the plugins' processes.

    The device is opened, in a process of its own, if `deep` or if its probe does not tell enough.
    """

    def recorded(target: str, entry: Entry[Any]) -> Callable[[], ProbeAnswer]:
        answer = probes.get(entry.spec.id, ProbeAnswer(False, "", error="was not asked"))
        if answer.error:
            raise PluginError(f"the probe of platform {entry.spec.id!r} {answer.error}.")
        return lambda: answer

    try:
        choice = choose_platform(catalog.platforms.values(), load=recorded)
    except PluginError as error:
        text = f"device: none is taken, because {error.message} `auto` passes no accelerator over."
        row = Row("bad", "choose", text, "SGLD-P010", "Name one, for example --device cpu.")
        return MachineReport("", {}, (row,), ())
    except (DeviceError, FeatureError) as error:
        row = Row("bad", "choose", f"device: {error.message}", "SGLD-P021", error.remedy)
        return MachineReport("", {}, (row,), ())
    name = choice.entry.spec.id
    facts, problem = facts_of(choice.probe, name), ""
    if facts is None or deep:
        facts, problem = _open(choice.entry, settings)
    if facts is None:
        row = Row(
            "bad",
            "choose",
            f"device = {name} ({choice.entry.owner}), but it cannot be opened: {problem}.",
            "SGLD-P007",
            "Mend its driver or torch, or choose another with --device.",
        )
        return MachineReport(name, {}, (row,), ())
    device = Row("ok", "choose", _device(choice, facts))
    decisions = decide_all(
        catalog.attention,
        catalog.kernels.values(),
        facts,
        platform=choice.entry.spec.attention,
    )
    rows = (device, *(_decision(row) for row in decisions))
    return MachineReport(name, plain_facts(facts), rows, decisions)


def _open(entry: Entry[Any], settings: Settings) -> tuple[DeviceFacts | None, str]:
    """What the platform's own object says of the device, asked in a process that may use torch."""
    ended = run(
        {"platform": entry.spec.id, "target": entry.spec.target}, settings.timeout, settings.stop
    )
    for row in ended.answers:
        if "facts" in row:
            got = row["facts"]
            sets = frozenset(got["dtypes"]), frozenset(got["abilities"])
            return DeviceFacts(got["device"], got["arch"], *sets), ""
        if "error" in row:
            return None, str(row["error"]).rstrip(".")
    last = ended.stderr.rpartition("\n")[2]
    return None, f"the process ended with {ended.how or 'no answer'} {last}".rstrip()


def plain_facts(facts: DeviceFacts) -> dict[str, Any]:
    """Facts as JSON values."""
    return {
        "device": facts.device,
        "arch": facts.arch,
        "dtypes": sorted(facts.dtypes),
        "abilities": sorted(facts.abilities),
    }


def _device(choice: PlatformChoice, facts: DeviceFacts) -> str:
    arch = f", arch {facts.arch}" if facts.arch else ""
    text = f"device = {choice.entry.spec.id} ({', '.join(sorted(facts.dtypes))}{arch})"
    return text + "".join(f"; not {name}: {why}" for name, why in choice.losers)


def _decision(row: Decision) -> Row:
    if row.choice is not None:
        return Row("ok", "choose", row.explain())
    return Row(
        "bad",
        "choose",
        row.explain(),
        "SGLD-P021",
        "Until then every model that uses it is refused here.",
    )
