"""Names of what a device may be able to do: `DeviceFacts.abilities`, `Requires.abilities`.

The strings are open: a platform may have more. A kernel asks for an ability, never for a device
family's name, so that it also runs on families that nobody has thought of yet.
"""

from __future__ import annotations

from typing import Final

STREAMS: Final = "streams"
"""Work can run beside the computation: `Platform.stream` yields a stream of the device's own."""
PINNED: Final = "pinned"
"""Copies from and to pinned host memory run beside the host's work."""
GRAPHS: Final = "graphs"
"""A sequence of kernels can be captured once and replayed."""
