"""Who is in the engine's care: which requests wait, which were sent, and what becomes of them when
the engine is lost. Pure bookkeeping, without threads or processes.

A request that was running when its engine was lost runs once more; if it is running at a loss
again, it fails. Such suspects run one at a time, so that one that kills the engine does not take
another one's second life.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from sgld.messages import Event, Request

LAST: Final = ("done", "failed", "cancelled")
LIVES: Final = 2
"""Losses that a running request may see before it is given up."""
WAITS: Final = 4
"""Losses that a request may see while it waits inside an engine: one that kills it on arrival."""


@dataclass(slots=True)
class _Entry:
    request: Request
    sent: bool = False
    started: bool = False
    cancelled: bool = False
    losses: int = 0
    waits: int = 0
    delivered: set[int] = field(default_factory=set)
    parts: dict[int, int] = field(default_factory=dict)
    """Output → parts of its clip that were handed out."""


class Ledger:
    """All open requests in order of arrival. Not thread-safe: its owner holds a lock."""

    def __init__(self) -> None:
        self._open: dict[str, _Entry] = {}

    def add(self, requests: Sequence[Request]) -> list[Event]:
        """Take requests in; returns their `queued` events. ValueError if an id is open already."""
        ids = [request.id for request in requests]
        twice = [id for place, id in enumerate(ids) if id in self._open or id in ids[:place]]
        if twice:
            raise ValueError(f"request id {twice[0]!r} is already open")
        self._open |= {request.id: _Entry(request) for request in requests}
        return [Event("queued", id) for id in ids]

    def take(self) -> list[Request]:
        """Requests to be sent now, which from now on count as sent."""
        taken: list[Request] = []
        suspected = any(entry.sent and entry.losses for entry in self._open.values())
        for entry in self._open.values():
            if entry.sent or (entry.losses and suspected):
                continue
            suspected = suspected or entry.losses > 0
            entry.sent = True
            taken.append(entry.request)
        return taken

    def note(self, event: Event) -> Event | None:
        """Take in an event of the engine; returns it if its owner should see it.

        `queued` was told at arrival, and an output, like a part of one, comes once even when its
        request ran twice.
        """
        entry = self._open.get(event.request_id)
        if entry is None or event.kind == "queued":
            return None
        if event.kind == "started":
            entry.started = True
        if event.kind == "output":
            if event.index in entry.delivered:
                return None
            entry.delivered.add(event.index)
        if event.kind == "frames":
            if event.step <= entry.parts.get(event.index, 0):
                return None
            entry.parts[event.index] = event.step
        if event.kind in LAST:
            del self._open[event.request_id]
        return event

    def cancel(self, request_id: str) -> tuple[Event | None, bool]:
        """The `cancelled` event if the request was still here, and whether the engine must be
        told instead. Unknown ids are nobody's business any more."""
        entry = self._open.get(request_id)
        if entry is None:
            return None, False
        if entry.sent:
            entry.cancelled = True
            return None, True
        del self._open[request_id]
        return _cancelled(request_id), False

    def lose(self, reason: str) -> list[Event]:
        """The engine is gone: everything sent waits again or ends; tells the owners."""
        events: list[Event] = []
        for entry in list(self._open.values()):
            if entry.sent:
                events += self._lose(entry, reason)
        return events

    def _lose(self, entry: _Entry, reason: str) -> list[Event]:
        id = entry.request.id
        was_running = entry.started
        entry.losses += was_running
        entry.waits += not was_running
        entry.sent = entry.started = False
        if entry.cancelled:
            del self._open[id]
            return [_cancelled(id)]
        if entry.losses >= LIVES or entry.waits >= WAITS:
            del self._open[id]
            times = "twice" if entry.losses >= LIVES else "again and again"
            message = f"The engine was lost {times} while it had this request: {reason}"
            return [Event("failed", id, code="engine_lost", message=message)]
        return [Event("queued", id)] if was_running else []

    def end(self, reason: str = "") -> list[Event]:
        """Nothing runs any more: every request is failed with `reason`, or cancelled without."""
        ended = list(self._open)
        self._open.clear()
        if not reason:
            return [_cancelled(id) for id in ended]
        return [Event("failed", id, code="engine_lost", message=reason) for id in ended]

    def __len__(self) -> int:
        return len(self._open)


def _cancelled(request_id: str) -> Event:
    return Event("cancelled", request_id, code="cancelled")
