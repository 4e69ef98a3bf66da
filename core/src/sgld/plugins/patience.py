"""Describe a plugin with a time limit: one that hangs must not keep the others from being used.

Public: `describe_in_time(found, manager)`. The plugin runs on a thread of its own, so it cannot
install signal handlers either, and Ctrl-C always reaches the command.
"""

from __future__ import annotations

import threading
import warnings
from typing import Final

import pluggy

from sgld.plugins.describe import Outcome, describe
from sgld.plugins.failures import failure, innermost
from sgld.plugins.find import Found
from sgld.plugins.surroundings import Surroundings

LIMIT_S: Final = 30.0
"""Seconds for import and hooks of one plugin; good ones take a millisecond."""


def describe_in_time(
    found: Found, manager: pluggy.PluginManager, limit_s: float = LIMIT_S
) -> Outcome:
    """As `describe`, but a plugin that takes longer than `limit_s` seconds is set aside
    (SGLD-P015); its thread is left behind and ends with the process."""
    outcomes: list[Outcome] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            outcomes.append(describe(found, manager))
        except BaseException as error:  # even a KeyboardInterrupt here is the plugin's own
            errors.append(error)

    around = Surroundings()
    # A thread that is left behind must not leave its redirected output and filters behind too.
    with warnings.catch_warnings():
        thread = threading.Thread(target=work, name=f"sgld-describe-{found.name}", daemon=True)
        thread.start()
        thread.join(limit_s)
        if outcomes:
            return outcomes[0]
        notes = tuple(around.restore())
    if errors:
        code, what = "SGLD-P001", f"import of {found.module} failed: {innermost(errors[0])}."
    else:
        code, what = "SGLD-P015", f"importing and describing it takes more than {limit_s:g} s."
    row = failure(
        code,
        found.name,
        what,
        dist=found.dist,
        version=found.version,
        cause=innermost(errors[0]) if errors else "",
        hint=f"Leave it out with SGLD_PLUGINS=-{found.name}.",
    )
    return Outcome(found, None, row, limit_s * 1000 if not errors else 0.0, notes)
