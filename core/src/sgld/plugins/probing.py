"""Ask a platform's probe, with a time limit: it may be anybody's code, and a dead driver may never
answer. Public: `ask(entry, load, limit_s=)`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

from sgld.api.errors import PluginError
from sgld.api.specs import PlatformSpec
from sgld.plugins.failures import failure, innermost
from sgld.plugins.resolve import Entry

LIMIT_S: Final = 5.0
"""Seconds that a probe may take; those of the core take milliseconds."""


class ProbeTimeoutError(Exception):
    """A probe did not answer in time."""


def ask(
    entry: Entry[PlatformSpec],
    load: Callable[[str, Entry[Any]], Any],
    *,
    limit_s: float = LIMIT_S,
) -> Any:
    """What the probe of a platform answers: a `Probe`, or whatever has its two first fields.

    Raises PluginError: SGLD-P007 when its target cannot be imported; SGLD-P010 when it raises, ends
    the process, answers with something else, or does not answer within `limit_s` seconds. Then its
    thread is left behind; it ends with the process.
    """
    function = load(entry.spec.probe, entry)
    try:
        probe = _within(function, limit_s)
        if not (isinstance(probe.available, bool) and isinstance(probe.reason, str)):
            raise TypeError(f"gave {probe!r}, not a Probe")
    except (Exception, SystemExit) as error:
        row = failure(
            "SGLD-P010",
            entry.plugin,
            f"the probe of platform {entry.spec.id!r} failed: {innermost(error)}",
            dist=entry.dist,
            version=entry.version,
            cause=innermost(error),
            hint=f"Use --device cpu to run without it, or SGLD_PLUGINS=-{entry.plugin} to leave "
            "the plugin out.",
        )
        raise PluginError(str(row), failures=(row,)) from error
    return probe


def _within(function: Callable[[], Any], limit_s: float) -> Any:
    answers: list[Any] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(function())
        except BaseException as error:
            errors.append(error)

    # A daemon, so that a probe that hangs does not keep the process from ending.
    thread = threading.Thread(target=run, name="sgld-probe", daemon=True)
    thread.start()
    thread.join(limit_s)
    if errors:
        raise errors[0]
    if not answers:
        raise ProbeTimeoutError(f"it did not answer within {limit_s:g} s")
    return answers[0]
