"""Runs a platform's probe in a fresh process, where nothing heavy is imported yet."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import lru_cache
from typing import Any, Final, NamedTuple

import pytest

from sgld.plugins.probing import LIMIT_S
from sgld.testing.conformance.base import broken

VALUES: Final = (None, "", "-1", "0", "99", "GPU-0123,,x", None)
"""Of the variable of visible devices; the last is as the first, to see whether the answer is."""
PROCESS_S: Final = 120.0
"""A process that takes longer is killed; each question in it has its own, short limit."""
MARK: Final = "sgld-probed:"
SCRIPT: Final = """
import json, os, sys
from sgld.api.errors import PluginError
from sgld.api.specs import PlatformSpec
from sgld.plugins.catalog import load_target
from sgld.plugins.describe import HEAVY
from sgld.plugins.probing import ask
from sgld.plugins.resolve import Entry

job = json.loads(sys.argv[1])
spec = PlatformSpec("probed", "none:none", job["probe"])
entry = Entry(spec, job["plugin"], job["plugin"], "")

def question(value):
    if job["variable"]:
        os.environ.pop(job["variable"], None)
        if value is not None:
            os.environ[job["variable"]] = value
    row = {"value": value, "error": "", "available": False, "reason": "", "devices": []}
    try:
        answer = ask(entry, load_target, limit_s=job["limit_s"])
        row.update(available=answer.available, reason=answer.reason)
        row["devices"] = [
            [d.index, d.name, d.arch, d.memory, sorted(d.dtypes), sorted(d.abilities)]
            for d in answer.devices
        ]
    except Exception as error:
        row["error"] = str(error)
    return row

rows = [question(value) for value in job["values"]]
heavy = sorted(name for name in HEAVY if name in sys.modules)
print(job["mark"] + json.dumps({"rows": rows, "heavy": heavy}), flush=True)
os._exit(0)  # a probe that hangs is left behind
"""


class Probed(NamedTuple):
    """What a probe did.

    Args:
        rows: one for each of `VALUES`: value, error, available, reason, devices.
        heavy: heavy modules that are imported afterwards.
        noise: what was printed besides.
    """

    rows: list[dict[str, Any]]
    heavy: list[str]
    noise: str

    @property
    def plain(self) -> dict[str, Any]:
        """The answer without a variable; an error ends the test."""
        if self.rows[0]["error"]:
            broken(
                expected="a probe that answers",
                got=self.rows[0]["error"],
                remedy="See test_probe_answers.",
            )
        return self.rows[0]

    @property
    def answers(self) -> list[dict[str, Any]]:
        """All that are no errors."""
        return [row for row in self.rows if not row["error"]]


@lru_cache(maxsize=16)
def probe_apart(probe: str, plugin: str, variable: str) -> Probed:
    """Ask a probe with each of `VALUES` in its variable, in a process of its own.

    Args:
        probe: its target; skipped when its module is in no file.
        plugin: whose it is.
        variable: of visible devices; empty: none.
    """
    module = sys.modules.get(probe.partition(":")[0])
    if module is not None and not getattr(module, "__file__", None):
        pytest.skip(f"module {module.__name__} is in no file, so no other process can import it")
    job = {"probe": probe, "plugin": plugin, "variable": variable}
    job |= {"values": VALUES, "mark": MARK, "limit_s": LIMIT_S}
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)}
    try:
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, json.dumps(job)],
            env=environ,
            capture_output=True,
            text=True,
            timeout=PROCESS_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return _nothing(f"its process was silent for {PROCESS_S:g} s: it keeps Python's lock")
    printed, mark, told = done.stdout.partition(MARK)
    if not mark:
        last = done.stderr.strip()[-400:] or "no word"
        return _nothing(f"its process ended with status {done.returncode}: {last}")
    found = json.loads(told)
    return Probed(found["rows"], found["heavy"], (printed + done.stderr).strip())


def _nothing(error: str) -> Probed:
    row = {"error": error, "available": False, "reason": "", "devices": []}
    return Probed([{"value": value, **row} for value in VALUES], [], "")
