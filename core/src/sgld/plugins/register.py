"""Hand a plugin's module to the plugin manager, once every hook in it is one that the core calls.

Public: `register(module, manager)`.
"""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any, Final

import pluggy

from sgld.api import hooks
from sgld.plugins.failures import meant, shown
from sgld.plugins.importing import Fault

CODE: Final = "SGLD-P002"


def register(module: ModuleType, manager: pluggy.PluginManager) -> None:
    """Register the hooks of a module.

    Raises Fault for a hook that is unknown, not marked with `hookimpl`, or asks for an argument.
    """
    known = [name for name in vars(hooks) if hasattr(getattr(hooks, name), "sgld_spec")]
    for name in dir(module):
        options = manager.parse_hookimpl_opts(module, name)
        if options is None:
            _check_unmarked(module, name, known)
        elif name not in known and not options.get("optionalhook"):
            hint = f"Known hooks: {', '.join(known)}."
            text = f"unknown hook {name!r} in module {module.__name__!r}."
            raise Fault(CODE, text, hint=f"{meant(name, known)} {hint}".strip())
        elif name in known:
            _check_arguments(getattr(module, name), name)
    try:
        manager.register(module)
        manager.check_pending()
    except (pluggy.PluginValidationError, ValueError) as error:
        if manager.is_registered(module):
            manager.unregister(module)
        text = f"a hook is not one that the core calls: {shown(error).rstrip('.')}."
        hint = f"Known hooks: {', '.join(known)}; none takes an argument."
        raise Fault(CODE, text, hint=hint) from error


def _check_unmarked(module: ModuleType, name: str, known: list[str]) -> None:
    """A function that is called like a hook and never called is a mistake, not a choice."""
    if name in known and callable(getattr(module, name)):
        raise Fault(
            CODE,
            f"{name} of module {module.__name__!r} is not marked with hookimpl, so it would never "
            "be called.",
            hint="Write @hookimpl (from sgld.api) above it, or give it another name.",
        )


def _check_arguments(hook: Any, name: str) -> None:
    asked = [
        row.name
        for row in inspect.signature(hook).parameters.values()
        if row.kind in (row.POSITIONAL_ONLY, row.POSITIONAL_OR_KEYWORD, row.KEYWORD_ONLY)
        and row.default is row.empty
    ]
    if asked:
        raise Fault(
            CODE,
            f"hook {name} asks for {', '.join(map(repr, asked))}, but the core gives no argument.",
            hint="Take the arguments away; a hook only returns records.",
        )
