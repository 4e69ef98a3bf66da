"""Plugin distributions that are known to exist, for one purpose: the hint in an error message.

This is data, not a registry: nothing is loaded, chosen or allowed because of it.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Final, NamedTuple


class Known(NamedTuple):
    """A distribution and shell patterns of the class names and model names it serves."""

    dist: str
    classes: tuple[str, ...]
    names: tuple[str, ...]


KNOWN: Final = (
    Known("sgld-wan", ("wan*",), ("*wan2*", "*wan-*", "*fastwan*", "*turbowan*")),
    Known("sgld-flux", ("flux*",), ("*flux*",)),
    Known("sgld-sana", ("sana*",), ("*sana*",)),
    Known("sgld-lingbot", ("lingbot*",), ("*lingbot*",)),
)
GENERIC: Final = "sgld-diffusers"
"""Serves any checkpoint that has a model_index.json, more slowly."""
BACKENDS: Final = {"diffusers": GENERIC}
"""Name of a fallback → the distribution that brings it."""


def suggest(class_name: str, name: str) -> list[str]:
    """Distributions that probably serve a checkpoint, the most likely one first."""
    class_name, name = class_name.lower(), name.lower()
    by_class = [row.dist for row in KNOWN if _any(class_name, row.classes)]
    by_name = [row.dist for row in KNOWN if _any(name, row.names)]
    generic = [GENERIC] if class_name else []
    return list(dict.fromkeys(by_class + by_name + generic))


def _any(text: str, patterns: tuple[str, ...]) -> bool:
    return bool(text) and any(fnmatchcase(text, pattern) for pattern in patterns)
