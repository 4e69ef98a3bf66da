"""Runs a Python program, or sgld's command line, in a process of its own and keeps what it says.

done = python("-m", "sgld", "plugins", "list", environ=environ)
done = sgld("plugins", "list", environ=environ)
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

SECONDS: Final = 300
"""Far beyond what any takes, also on a busy machine."""


def python(
    *arguments: str, environ: Mapping[str, str], cwd: Path | None = None, given: str | None = None
) -> subprocess.CompletedProcess[str]:
    """This interpreter with these arguments, this whole environment and `given` as its input; which
    exit status is right, the caller knows."""
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        input=given,
        env=dict(environ),
        cwd=cwd,
        check=False,
        timeout=SECONDS,
    )


def sgld(*arguments: str, environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """The command line."""
    return python("-m", "sgld", *arguments, environ=environ)
