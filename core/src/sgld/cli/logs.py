"""Where the log of a command goes: warnings to standard error, never among the results."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

import structlog

from sgld.api.errors import UserError
from sgld.params.nearest import did_you_mean

LEVELS = ("debug", "info", "warning", "error")


def log_to_stderr() -> None:
    """Send log lines of the level in SGLD_LOG_LEVEL (default: warning) to standard error."""
    level = os.environ.get("SGLD_LOG_LEVEL", "") or "warning"
    if level.lower() not in LEVELS:
        raise UserError(f"SGLD_LOG_LEVEL={level!r}: unknown.", remedy=did_you_mean(level, LEVELS))
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=_stderr_logger,
    )


def _stderr_logger(*_: Any) -> structlog.PrintLogger:
    # Looked up at each use: the stream is replaced by tests and by the live display.
    return structlog.PrintLogger(sys.stderr)
