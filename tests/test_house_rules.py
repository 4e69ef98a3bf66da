"""Rules of the house that no linter knows."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted([*ROOT.glob("core/src/**/*.py"), *ROOT.glob("plugins/*/src/**/*.py")])
PROJECTS = [ROOT / "core", *sorted(ROOT.glob("plugins/*"))]
LONGEST = 400
LONG_BY_NATURE = {"dit.py", "vae.py", "engine.py"}
FORBIDDEN_NAMES = {"utils", "util", "common", "helpers", "helper", "manager", "misc"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_module(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= LONGEST or path.name in LONG_BY_NATURE, "too long to read"
    assert path.stem not in FORBIDDEN_NAMES, "a name that says nothing"
    tree = ast.parse(text)
    assert ast.get_docstring(tree), "a module says what it is for"
    names = [n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    assert not [n for n in names if n.startswith("get_global")], "no global state behind a function"


def test_public_functions_are_typed_and_documented() -> None:
    missing: list[str] = []
    for path in SOURCES:
        for node in ast.parse(path.read_text()).body:
            if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name.startswith("_"):
                continue
            if not ast.get_docstring(node):
                missing.append(f"{path.name}: {node.name} has no docstring")
            if isinstance(node, ast.FunctionDef) and node.returns is None:
                missing.append(f"{path.name}: {node.name} has no return type")
    assert not missing, "\n".join(missing)


def test_pins_are_what_the_workspace_locks() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "pin.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_download_host_is_committed() -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    assert "uv.lock" not in tracked
    pins = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["uv"]
    assert not re.search(r"https?://", "".join(pins["constraint-dependencies"]))
    assert "index" not in pins


@pytest.mark.parametrize("project", PROJECTS, ids=lambda p: p.name)
def test_distribution(project: Path) -> None:
    data = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    assert (project / "README.md").read_text().strip()
    assert "Apache License" in (project / "LICENSE").read_text()
    assert data["license"] == "Apache-2.0"
    assert SpecifierSet(data["requires-python"]).contains("3.11")
    for row in data["dependencies"]:
        assert "==" not in row, f"{row}: exact versions belong into the workspace's constraints"
    core = next((row for row in data["dependencies"] if row.startswith("sgld-core")), None)
    if project.name != "core":
        assert core is not None
        version = tomllib.loads((ROOT / "core" / "pyproject.toml").read_text())["project"][
            "version"
        ]
        assert SpecifierSet(core.removeprefix("sgld-core")).contains(version)


def test_version_is_the_same_everywhere() -> None:
    import sgld

    data = tomllib.loads((ROOT / "core" / "pyproject.toml").read_text())["project"]
    assert sgld.__version__ == data["version"]
