"""Twenty installed plugins cost little: held by what is imported, never by a clock.

`bench/startup.py` measures the times.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sgld.testing.site import site_environment, write_dist

pytestmark = pytest.mark.multi_process

PLUGINS = 20
HEAVY = (
    "torch", "diffusers", "transformers", "numpy", "PIL", "av", "fastapi", "httpx", "pydantic",
    "rich", "structlog", "asyncio", "importlib.metadata", "email", "urllib.request", "ssl",
    "multiprocessing", "sqlite3", "xml",
)  # fmt: skip
"""None of these is needed to find, describe, list or explain."""

PROGRAM = """
import sys
from sgld.cli.main import main
code = main(sys.argv[1:])
print("\\nMODULES", code, *sorted(sys.modules))
"""
LIBRARY = """
import sys
from sgld.plugins.catalog import collect
found = collect({}, path=[sys.argv[1]])
assert len(found.pipelines) == 20 and not found.failures, found.failures
print("\\nMODULES", 0, *sorted(sys.modules))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    for number in range(PLUGINS):
        write_dist(folder, f"plugin{number}")
    return folder


def modules(site: Path, program: str, *arguments: str) -> set[str]:
    """What a process has imported in the end."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        env=site_environment(site),
        timeout=120,
    )
    code, *names = done.stdout.rpartition("MODULES ")[2].split()
    assert code == "0", done.stderr
    return set(names)


def test_finding_and_describing_imports_the_plugins_and_nothing_heavy(site: Path) -> None:
    names = modules(site, LIBRARY, str(site))
    assert sum(name.endswith("_plugin") and name.startswith("plugin") for name in names) == PLUGINS
    assert not names & set(HEAVY)
    assert "typer" not in names


@pytest.mark.parametrize(
    "arguments",
    [
        ["plugins", "list"],
        ["plugins", "why", "plugin3/plugin3"],
        ["plugins", "why", "--op", "norm.rms", "--device", "cuda"],
        ["plugins", "why", "--platform"],
        ["models", "list"],
        ["--help"],
    ],
)
def test_commands_import_nothing_heavy(site: Path, arguments: list[str]) -> None:
    names = modules(site, PROGRAM, *arguments)
    assert not names & set(HEAVY)
    described = {name for name in names if name.startswith("plugin") and name.endswith("_plugin")}
    assert len(described) == (0 if arguments == ["--help"] else PLUGINS)
