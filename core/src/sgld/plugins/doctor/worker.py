"""`python -m sgld.plugins.doctor.worker JOB`: examine one plugin, or a model that it carries, or
read a platform's facts.

Everything that it finds is a JSON line in the job's `answers` file, written at once: `{"at": step}`
before each step, `{"row": ...}`, `{"outcome": ...}`, `{"probe": ...}`, `{"facts": ...}`,
`{"faults": ...}`, and `{"done": true}` at the end. Standard output and error are the plugin's.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import time
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, cast

from sgld.plugins.catalog import build, load_target
from sgld.plugins.describe import Described, Outcome, describe, new_manager
from sgld.plugins.doctor import fits, targets
from sgld.plugins.doctor.heavy import Watch
from sgld.plugins.doctor.left import Left
from sgld.plugins.doctor.rows import counted
from sgld.plugins.doctor.wire import pack, unpack
from sgld.plugins.find import Discovery, Found
from sgld.plugins.probing import LIMIT_S
from sgld.plugins.resolve import Entry


class Answers:
    """The file of answers; each line is there as soon as `say` returns."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND)
        # Bound before a plugin is imported, which may replace them.
        self._encode, self._write = json.dumps, os.write

    def say(self, **row: Any) -> None:
        """Write one line."""
        self._write(self._file, self._encode(row).encode() + b"\n")

    def row(self, level: str, check: str, message: str, **more: Any) -> None:
        """Write a finding; `code`, `remedy` and `seconds` are optional."""
        self.say(row={"level": level, "check": check, "message": message, **more})


def main(path: str) -> None:
    """Do the job that the file at `path` describes, and end without the plugin's exit handlers."""
    job = cast("Mapping[str, Any]", json.loads(Path(path).read_text(encoding="utf-8")))
    answers = Answers(job["answers"])
    _prepare(job["trace"])
    sys.path[:] = job["path"]
    if "platform" in job:
        _facts(job, answers)
    elif "model" in job:
        _model(job, answers)
    else:
        _examine(job, answers)
    answers.say(done=True)
    _flush()
    # Threads and exit handlers of a plugin have no say in when this process ends.
    os._exit(0)


def _prepare(trace: str) -> None:
    """Have the place of a crash or a hang written down, and no core dump."""
    file = open(trace, "w")  # noqa: SIM115  (stays open for the fault handler until the end)
    faulthandler.enable(file, all_threads=False)
    if hasattr(faulthandler, "register"):
        import resource  # noqa: PLC0415  (not on every system)
        import signal  # noqa: PLC0415

        faulthandler.register(signal.SIGUSR1, file, all_threads=False)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _examine(job: Mapping[str, Any], answers: Answers) -> None:
    found = cast("Found", unpack(job["found"]))
    skip = set(cast("list[str]", job["skip"]))
    answers.say(at="import")
    watch = Watch()
    left = Left()
    cpu = time.process_time()
    with watch:
        outcome = describe(found, new_manager(), lambda name: answers.say(at=name))
    cpu_ms = (time.process_time() - cpu) * 1000
    outcome = outcome._replace(noise=(*outcome.noise, *left.told()))
    answers.say(outcome=_outcome(outcome), cpu_ms=cpu_ms, heavy=watch.places)
    compiled = _bytecode(found)
    if compiled is not None:
        answers.say(bytecode=compiled, forbidden=sys.dont_write_bytecode)
    if outcome.described is None:
        return
    _again(outcome.described, answers)
    _hush()
    for entry in _entries(outcome.described, "platform"):
        if f"probe {entry.spec.id}" not in skip:
            _probe(entry, answers)
    _targets(outcome.described, skip, bool(job["deep"]), answers)


def _hush() -> None:
    """Only importing and describing has to be silent; torch and its like warn as they please."""
    _flush()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # a plugin may have put anything there
            stream.flush()


def _outcome(outcome: Outcome) -> dict[str, Any]:
    described = outcome.described
    return {
        "found": pack(outcome.found),
        "plugin": pack(described.plugin) if described else None,
        "records": pack(described.records) if described else None,
        "failure": pack(outcome.failure),
        "ms": outcome.ms,
        "notes": pack(outcome.notes),
        "remarks": pack(outcome.remarks),
        "noise": pack(outcome.noise),
    }


def _bytecode(found: Found) -> bool | None:
    """Whether the module is stored compiled; None where that is not a question."""
    spec = targets.locate(found.module)
    if spec is None or not spec.cached or not (spec.origin or "").endswith(".py"):
        return None
    return os.path.exists(spec.cached)


def _again(first: Described, answers: Answers) -> None:
    answers.say(at="describe again")
    second = describe(first.found, new_manager())
    count = sum(len(rows) for rows in first.records.values())
    remedy = "Its hooks should return the same records whenever they are asked."
    if second.described is None:
        why = second.failure.message if second.failure else "no reason is known"
        answers.row(
            "bad",
            "describe",
            f"describing it a second time fails: {why}",
            code="SGLD-P016",
            remedy=remedy,
        )
        return
    # Values that are no plain data, whose comparison may do anything, are compared as text.
    one = unpack(pack({"Plugin": first.plugin, **first.records}))
    two = unpack(pack({"Plugin": second.described.plugin, **second.described.records}))
    differing = [kind for kind, rows in one.items() if two[kind] != rows]
    if differing:
        text = f"asked twice it gives different {', '.join(differing)} records."
        answers.row("bad", "describe", text, code="SGLD-P016", remedy=remedy)
    else:
        answers.row("ok", "describe", f"{counted(count, 'record')}, the same when asked twice")


def _entries(described: Described, kind: str) -> list[Entry[Any]]:
    found = described.found
    return [
        Entry(record, described.plugin.name, found.dist, found.version)
        for record in described.records.get(kind, ())
    ]


def _probe(entry: Entry[Any], answers: Answers) -> None:
    """Ask a platform's probe; what it said goes to the parent, which chooses."""
    name = entry.spec.id
    answers.say(at=f"probe {name}", limit=LIMIT_S)
    torch_before, began = "torch" in sys.modules, time.perf_counter()
    try:
        probe = load_target(entry.spec.probe, entry)()
        if not (isinstance(probe.available, bool) and isinstance(probe.reason, str)):
            raise TypeError(f"gave {probe!r:.80}, not a Probe")
        devices = [_device(device) for device in probe.devices]
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        answers.say(probe=name, error=fits.reason(error))
        return
    seconds = time.perf_counter() - began
    brought = "torch" in sys.modules and not torch_before
    answers.say(
        probe=name,
        available=probe.available,
        reason=probe.reason,
        devices=devices,
        seconds=seconds,
        torch=brought,
    )


def _device(device: Any) -> Any:
    sets = (getattr(device, name, frozenset[str]()) for name in ("dtypes", "abilities"))
    return pack((str(device.name), int(device.arch), *(frozenset(each) for each in sets)))


def _targets(described: Described, skip: set[str], deep: bool, answers: Answers) -> None:
    answers.say(at="targets")
    rows = targets.of_plugin(described)
    for message, remedy in targets.unfound(rows):
        answers.row("bad", "targets", message, code="SGLD-P007", remedy=remedy)
    for missing in targets.missing_packages(described):
        answers.say(missing=list(missing))
    answers.say(targets=len(rows))
    if not deep:
        return
    # Those that must do without torch come first, while there is none in this process.
    for row in sorted(rows, key=lambda row: not row.light):
        if row.name in skip or targets.locate(row.module) is None:
            continue
        answers.say(at=f"target {row.name}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            faults = fits.faults(row)
        for fault in faults:
            answers.row(
                "bad",
                "deep",
                f"{row.label}: target {row.target!r} {fault.text}"
                + ("" if fault.text.endswith("?") else "."),
                code="SGLD-P007",
                remedy=fault.remedy,
            )
        answers.say(deep=row.name)


def _facts(job: Mapping[str, Any], answers: Answers) -> None:
    """Open the platform that was chosen and read what its device is and can do."""
    answers.say(at="open the platform")
    try:
        facts = load_target(job["target"])().facts()
        answers.say(
            facts={
                "device": str(facts.device),
                "arch": int(facts.arch),
                "dtypes": sorted(facts.dtypes),
                "abilities": sorted(facts.abilities),
            }
        )
    except Exception as error:
        answers.say(error=fits.reason(error))


EXAMINE: Final = "sgld.carried:examine"
"""Named as text, for it lives above this package."""


def _model(job: Mapping[str, Any], answers: Answers) -> None:
    """Examine a model that a plugin carries, beside the plugins that serve it."""
    found = tuple(cast("Found", unpack(row)) for row in job["plugins"])
    _hush()
    answers.say(at="examine the model")
    try:
        catalog = build(Discovery(found, (), ()), {})
        told = load_target(EXAMINE)(catalog.models[job["model"]], catalog)
    except Exception as error:
        answers.say(error=fits.reason(error))
        return
    answers.say(faults=[[row.text, row.remedy] for row in told.faults], size=told.summary)


if __name__ == "__main__":
    main(sys.argv[1])
