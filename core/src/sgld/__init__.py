"""sgld serves image, video and realtime world models; see `sgld.load` for the Python way in.

Importing `sgld` loads nothing heavy: the public names below are resolved on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from sgld.model import Model, Result, load

__all__ = ["Model", "Result", "__version__", "load"]


def __getattr__(name: str) -> Any:
    if name in ("load", "Model", "Result"):
        return getattr(importlib.import_module("sgld.model"), name)
    raise AttributeError(f"module 'sgld' has no attribute {name!r}")
