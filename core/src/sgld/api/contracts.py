"""Contract versions per kind, and the small protocols that targets satisfy.

A plugin states one version for each kind it provides; the core accepts a range. Raising a maximum
is a minor release of the core, raising a minimum a major one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

CONTRACTS: Final[Mapping[str, tuple[int, int]]] = {
    "platform": (1, 1),
    "pipeline": (1, 1),
    "model": (1, 1),
    "stage": (1, 1),
    "realtime": (1, 1),
    "attention": (1, 1),
    "kernel": (1, 1),
    "cache": (1, 1),
    "executor": (1, 1),
    "postprocessor": (1, 1),
    "command": (1, 1),
    "route": (1, 1),
}
"""Kind → the lowest and highest contract version this core takes (both inclusive)."""


class DeviceFacts(NamedTuple):
    """What is known of a device without torch: its family (`cpu`, `cuda`, ...), architecture
    number (CUDA 9.0 is 90, 0 when there is none), dtypes (`float32`, ...) and abilities."""

    device: str
    arch: int = 0
    dtypes: frozenset[str] = frozenset({"float32"})
    abilities: frozenset[str] = frozenset()
