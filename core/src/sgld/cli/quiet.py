"""Keep standard output clean while foreign code is imported: `--json` must stay parseable.

Public: `quiet_stdout()`, `write(text)`, `write_json(value)`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any


@contextmanager
def quiet_stdout() -> Iterator[None]:
    """Within the block whatever writes to standard output, in any language, goes to stderr."""
    try:
        sys.stdout.flush()
        saved = os.dup(1)
    except (OSError, ValueError):  # standard output is closed or not a file
        with redirect_stdout(sys.stderr):
            yield
        return
    try:
        os.dup2(2, 1)
        with redirect_stdout(sys.stderr):
            yield
    finally:
        sys.stdout.flush()
        os.dup2(saved, 1)
        os.close(saved)


def write(text: str) -> None:
    """One answer to standard output."""
    sys.stdout.write(text.rstrip("\n") + "\n")


def write_json(value: Any) -> None:
    """One JSON document to standard output."""
    write(json.dumps(value, indent=2, ensure_ascii=False))
