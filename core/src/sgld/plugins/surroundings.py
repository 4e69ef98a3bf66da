"""What a plugin may change around it while it is imported and described, kept and put back:
describing a plugin has no effect on the process or on other plugins.

Public: `Surroundings`.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import ModuleType
from typing import Any, Final

HOOKS: Final = (
    (sys, "stdin"),
    (sys, "stdout"),
    (sys, "stderr"),
    (sys, "excepthook"),
    (sys, "unraisablehook"),
    (threading, "excepthook"),
)
"""Attributes of the interpreter that belong to whoever runs the process."""

FRESH_LOGGER: Final = (list[Any](), 30, 0)
"""The root logger before anybody has touched it: no handlers, warnings."""


class Surroundings:
    """The process as it is now.

    around = Surroundings()
    ...                          # foreign code
    around.restore()             # what it changed, in words; it is undone
    """

    def __init__(self) -> None:
        self._path = list(sys.path)
        self._environ = dict(os.environ)
        self._folder = _folder()
        self._hooks = [(owner, name, getattr(owner, name)) for owner, name in HOOKS]
        self._modules: dict[str, ModuleType] = dict(sys.modules)
        self._root = _root_logger()

    def restore(self) -> list[str]:
        """Undo what was changed; the result says what, one clause for each."""
        return [f"changed {what}; undone" for what in self._undo()]

    def _undo(self) -> list[str]:
        steps: list[tuple[str, Callable[[], bool]]] = [
            ("sys.path", self._undo_path),
            ("os.environ", self._undo_environ),
            ("the current folder", self._undo_folder),
            ("modules that were there", self._undo_modules),
            ("the root logger", self._undo_logging),
        ]
        return self._undo_hooks() + [what for what, step in steps if step()]

    def _undo_path(self) -> bool:
        if sys.path == self._path:
            return False
        sys.path[:] = self._path
        return True

    def _undo_environ(self) -> bool:
        if dict(os.environ) == self._environ:
            return False
        for name in set(os.environ) - set(self._environ):
            del os.environ[name]
        for name, value in self._environ.items():
            if os.environ.get(name) != value:
                os.environ[name] = value
        return True

    def _undo_folder(self) -> bool:
        if self._folder is None or _folder() == self._folder:
            return False
        with suppress(OSError):
            os.chdir(self._folder)
        return True

    def _undo_hooks(self) -> list[str]:
        changed: list[str] = []
        for owner, name, value in self._hooks:
            if getattr(owner, name, None) is not value:
                setattr(owner, name, value)
                changed.append(f"{owner.__name__}.{name}")
        return changed

    def _undo_modules(self) -> bool:
        replaced = [
            name for name, module in self._modules.items() if sys.modules.get(name) is not module
        ]
        for name in replaced:
            sys.modules[name] = self._modules[name]
        return bool(replaced)

    def _undo_logging(self) -> bool:
        now = _root_logger()
        if now is None or now == (self._root or FRESH_LOGGER):
            return False
        import logging  # noqa: PLC0415  (somebody has imported it already)

        root = logging.getLogger()
        handlers, level, disabled = self._root or FRESH_LOGGER
        root.handlers[:] = handlers
        root.setLevel(level)
        logging.disable(disabled)
        return True


def _folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # it was deleted
        return None


def _root_logger() -> tuple[list[Any], int, int] | None:
    """Handlers, level and general limit of the root logger; None while nobody uses logging."""
    modules: Mapping[str, Any] = sys.modules
    logging = modules.get("logging")
    if logging is None:
        return None
    root = logging.getLogger()
    return list(root.handlers), root.level, root.manager.disable
