"""Pin every version that the workspace locks, without naming any download host.

    uv run tools/pin.py            rewrite `[tool.uv] constraint-dependencies` in pyproject.toml
    uv run tools/pin.py --upgrade  take the newest versions that the ranges admit
    uv run tools/pin.py --check    exit 1 when the lock and the pins differ

`uv.lock` itself is not committed, because its lines name the hosts it was made from; with every
version constrained, locking again anywhere gives the same versions.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROJECT = ROOT / "pyproject.toml"
EXPORT = [
    "uv",
    "export",
    "--quiet",
    "--all-groups",
    "--no-hashes",
    "--no-emit-workspace",
    "--no-annotate",
    "--no-header",
]
BLOCK = re.compile(r"^constraint-dependencies = \[\n.*?^\]\n", re.M | re.S)


def locked() -> list[str]:
    """The versions of the present lock, with their environment markers, sorted."""
    text = subprocess.run(EXPORT, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return sorted(line.strip() for line in text.splitlines() if "==" in line)


def pinned(text: str) -> list[str]:
    """The versions that pyproject.toml constrains."""
    return tomllib.loads(text)["tool"]["uv"].get("constraint-dependencies", [])


def with_pins(text: str, pins: list[str]) -> str:
    """pyproject.toml with other pins."""
    rows = "".join(f"  {toml_string(pin)},\n" for pin in pins)
    block = f"constraint-dependencies = [\n{rows}]\n"
    if BLOCK.search(text):
        return BLOCK.sub(lambda _: block, text)
    return text.replace("[tool.uv]\n", f"[tool.uv]\n{block}", 1)


def toml_string(text: str) -> str:
    """A TOML basic string; markers hold single quotes, which need no escape there."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def main(arguments: list[str]) -> int:
    """Run with the given arguments; returns the exit code."""
    text = PROJECT.read_text()
    if "--check" in arguments:
        differing = sorted(set(locked()) ^ set(pinned(text)))
        print("\n".join(differing) or f"{len(pinned(text))} pins, the lock agrees")
        return 1 if differing else 0
    if "--upgrade" in arguments:
        PROJECT.write_text(with_pins(text, []))
        subprocess.run(["uv", "lock", "--quiet", "--upgrade"], cwd=ROOT, check=True)
    pins = locked()
    PROJECT.write_text(with_pins(text, pins))
    print(f"{len(pins)} versions pinned")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
