"""What describing a plugin costs and gives, seen from a process of its own.

seen = described_apart("acme")      modules, records, what it printed, which targets need torch
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

HEAVY: Final = (
    "torch", "numpy", "transformers", "diffusers", "pydantic", "PIL", "av", "scipy", "cv2",
    "pandas", "jax", "tensorflow", "triton",
    "fastapi", "typer", "rich", "sqlalchemy", "requests", "httpx",
)  # fmt: skip
"""Packages that a plugin's module must not import: each costs more than all plugins together."""
TORCH: Final = ("torch", "transformers", "diffusers")
"""Packages that the HTTP process never has."""
PATIENCE: Final = 120.0

CHILD: Final = """
import contextlib, io, json, sys, warnings
from sgld.plugins.describe import describe, new_manager
from sgld.plugins.find import Found
import base64, importlib, pickle

wish = json.loads(sys.argv[1])
found = Found(*wish["found"])
before = set(sys.modules)
printed, warned = io.StringIO(), io.StringIO()
with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(warned):
    outcome = describe(found, new_manager())
brought = sorted(set(sys.modules) - before)
described = outcome.described
heavy, failed = {}, {}
for target in wish["light"]:
    try:
        importlib.import_module(target.partition(":")[0])
    except BaseException as error:
        failed[target] = f"{type(error).__name__}: {error}"
    new = {name.partition(".")[0] for name in set(sys.modules) - before} & set(wish["torch"])
    if new:
        heavy[target] = sorted(new)
        before |= set(sys.modules)  # only the first one is to blame
records = None if described is None else (described.plugin, dict(described.records))
print(json.dumps({
    "modules": brought,
    "failure": "" if outcome.failure is None else str(outcome.failure),
    "notes": [note for note in outcome.notes if not note.startswith("took ")],
    "stderr": warned.getvalue(),
    "heavy": heavy,
    "failed": failed,
    "records": base64.b64encode(pickle.dumps(records)).decode(),
}))
"""


class Seen(NamedTuple):
    """What a process of its own saw when it described a plugin.

    Args:
        modules: imported by it.
        failure: why it could not be described, or empty.
        notes: what it printed to standard output, and its warnings.
        stderr: what it printed to standard error.
        heavy: light target → packages that its module imports and must not.
        failed: light target → why its module does not import.
        plugin: the `Plugin` record, None with a failure.
        records: kind → records.
    """

    modules: tuple[str, ...]
    failure: str
    notes: tuple[str, ...]
    stderr: str
    heavy: Mapping[str, list[str]]
    failed: Mapping[str, str]
    plugin: Any
    records: Mapping[str, tuple[Any, ...]]


@lru_cache(maxsize=32)
def described_apart(found: tuple[str, ...], light: tuple[str, ...], path: tuple[str, ...]) -> Seen:
    """Describe one plugin in a new process, then import the modules of its `light` targets.

    Args:
        found: the fields of a `sgld.plugins.find.Found`.
        light: targets that must not need torch.
        path: `sys.path` of that process.

    Raises RuntimeError with the process's last words when it dies.
    """
    wish = json.dumps({"found": found, "light": light, "torch": TORCH})
    done = subprocess.run(
        [sys.executable, "-c", CHILD, wish],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(entry or "." for entry in path)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"describing {found[0]} ended with {done.returncode}:\n{done.stderr}")
    told = json.loads(done.stdout.splitlines()[-1])
    records = pickle.loads(base64.b64decode(told["records"]))  # of a process that is ours
    plugin, kinds = records or (None, {})
    return Seen(
        tuple(told["modules"]),
        told["failure"],
        tuple(told["notes"]),
        told["stderr"] + done.stderr,
        told["heavy"],
        told["failed"],
        plugin,
        kinds,
    )
