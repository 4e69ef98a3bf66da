"""Who imports heavy modules: a finder that finds nothing and remembers who asked.

Public: `Watch`, a context; `Watch.places` maps a heavy module to the `file:line` that asked first.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType

from sgld.plugins.describe import HEAVY


class Watch:
    """While it is entered, the first import of each heavy module is noted with its place."""

    def __init__(self) -> None:
        self.places: dict[str, str] = {}

    def __enter__(self) -> Watch:
        sys.meta_path.insert(0, self)
        return self

    def __exit__(self, *_: object) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Never finds anything; the import goes on with the next finder."""
        if name in HEAVY and name not in self.places:
            self.places[name] = _asker(inspect.currentframe())
        return None


def _asker(frame: FrameType | None) -> str:
    """The innermost frame that is not of this module nor of the import machinery."""
    while frame is not None and (
        frame.f_code.co_filename == __file__ or "importlib" in frame.f_code.co_filename
    ):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else ""
