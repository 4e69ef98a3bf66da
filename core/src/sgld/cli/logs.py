"""Where the log of a command goes: warnings to standard error, never among the results."""

from __future__ import annotations

import os

from sgld.observe.logs import configure_from_environment


def log_to_stderr() -> None:
    """Send log lines of the level in SGLD_LOG_LEVEL (default: warning) to standard error."""
    configure_from_environment(os.environ, level="warning")
