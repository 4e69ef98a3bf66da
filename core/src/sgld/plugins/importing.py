"""Import a plugin's module; whatever it raises becomes a `Fault` with a code and a reason.

Public: `Fault`, `guard(what, code, call)`, `import_plugin(found) -> module`, `version_in(module)`.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from functools import partial
from types import FunctionType, ModuleType
from typing import Any

from sgld.api import hooks
from sgld.plugins.failures import innermost
from sgld.plugins.find import Found


class Fault(Exception):
    """Why a plugin is set aside, on its way to a row."""

    def __init__(self, code: str, message: str, *, cause: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.code, self.message, self.cause, self.hint = code, message, cause, hint


def guard(what: str, code: str, call: Callable[[], Any]) -> Any:
    """Call foreign code; every exception but KeyboardInterrupt becomes a fault."""
    try:
        return call()
    except (KeyboardInterrupt, Fault):
        raise
    except SystemExit as error:
        raise Fault(code, f"{what} tried to leave the process (exit {error.code!r}).") from error
    except BaseException as error:
        cause = innermost(error)
        raise Fault(code, f"{what} failed: {cause}.", cause=cause) from error


def import_plugin(found: Found) -> ModuleType:
    """The module that holds the plugin's hooks; raises Fault."""
    try:
        module = guard(
            f"import of {found.module}", "SGLD-P001", lambda: importlib.import_module(found.module)
        )
    except Fault as fault:
        missing = fault.__cause__
        if isinstance(missing, ModuleNotFoundError) and missing.name:
            fault.hint = _missing_hint(found, missing.name)
        raise
    return _hook_module(module) if found.source == "local" else module


def _missing_hint(found: Found, name: str) -> str:
    """Tell `the plugin's own module is not there` from `something it imports is not there`."""
    if found.module == name or found.module.startswith(name + "."):
        return f"Module {name!r} is not there; reinstall {found.dist} or correct its name."
    out = "" if found.source == "local" else f", or leave it out with SGLD_PLUGINS=-{found.name}"
    return f"Install what provides {name!r}{out}."


def _hook_module(package: ModuleType) -> ModuleType:
    """The module of a local package that holds the hooks: itself, or its `plugin` module."""
    mark = f"{hooks.PROJECT}_impl"
    functions = [value for value in vars(package).values() if isinstance(value, FunctionType)]
    if any(hasattr(function, mark) for function in functions):
        return package
    for child in ("plugin", "sgld_plugin"):
        name = f"{package.__name__}.{child}"
        if hasattr(package, "__path__") and importlib.util.find_spec(name) is not None:
            return guard(f"import of {name}", "SGLD-P001", partial(importlib.import_module, name))
    raise Fault(
        "SGLD-P003",
        f"package {package.__name__!r} holds no hooks, and has no module 'plugin' that could.",
        hint="Mark its functions with `sgld.api.hookimpl`; `sgld_plugin` is required.",
    )


def version_in(module: ModuleType) -> str:
    """`__version__` of the package that a module belongs to, or an empty string."""
    package = sys.modules.get(module.__name__.partition(".")[0], module)
    version = getattr(package, "__version__", "")
    return version if isinstance(version, str) else ""
