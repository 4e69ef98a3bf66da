"""What the parts of the realtime contract share."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from sgld.realtime.adapter import RealtimeAdapter
from sgld.testing.conformance.base import Contract, expect
from sgld.testing.live import Live, same_frames

OWN_STATE: Final = "Keep controls on the instance (`self`), and copy what you are given."


class OfAdapter(Contract):
    """Base of the parts of the realtime contract.

    Args:
        adapter: its id.
        init: fields of the init message, over those of the family's smallest request.
        samples: for each kind of event, a payload that takes effect.
        options: options of the load, as in `sgld.load`.
    """

    kind: ClassVar[str] = "realtime"
    named_by: ClassVar[str] = "adapter"
    told: ClassVar[tuple[str, ...]] = ("adapter", "init", "samples", "options")
    adapter: ClassVar[str] = ""
    init: ClassVar[Mapping[str, Any]] = {}
    samples: ClassVar[Mapping[str, Any]] = {}
    options: ClassVar[Mapping[str, Any]] = {}

    def _apply_all(self, live: Live, adapter: RealtimeAdapter, number: int) -> None:
        """Give an adapter one sample of each kind, numbered."""
        for kind, payload in self.samples.items():
            adapter.apply(kind, live.adapter.read_event(kind, payload), number)

    def _expect_same(self, left: Any, right: Any, what: str, remedy: str) -> None:
        __tracebackhide__ = True
        expect(
            same_frames(left, right),
            expected=f"{what}: the same to the bit",
            got="other frames",
            remedy=remedy,
        )


def is_json(value: Any) -> bool:
    """Whether a value is equal after it was written as JSON and read."""
    try:
        return json.loads(json.dumps(value, allow_nan=False)) == value
    except (TypeError, ValueError):
        return False
