"""How a session's chunks reach its reader: in order, at most so many unread, none after the end."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sgld.realtime.messages import SessionReport


class Outlet:
    """A bounded queue whose far end is the reader. Any thread may `offer`.

    Args:
        emit: hands a report over.
        limit: chunks that may be unread.
        drop: when the limit is reached, keep only the newest chunk until there is room; else
            whoever makes chunks is to look at `waiting` first.
    """

    def __init__(self, emit: Callable[[SessionReport], Any], limit: int, drop: bool) -> None:
        self._emit = emit
        self._limit = limit
        self._drop = drop
        self._unread: deque[int] = deque()
        self._held: SessionReport | None = None
        self._dropped = 0
        self._closed = False
        # Reentrant: who hears of a chunk may answer with a command at once.
        self._lock = threading.RLock()

    @property
    def waiting(self) -> int:
        """Chunks that the reader was given and is not done with."""
        return len(self._unread)

    def offer(self, report: SessionReport) -> None:
        """Hand a chunk over, or keep it until there is room. After `close` nothing happens."""
        with self._lock:
            if self._closed:
                return
            if self._drop and len(self._unread) >= self._limit:
                self._dropped += self._held is not None
                self._held = report
            else:
                self._send(report)

    def taken(self, chunk: int) -> None:
        """The reader is done with all chunks up to this index."""
        with self._lock:
            while self._unread and self._unread[0] <= chunk:
                self._unread.popleft()
            if self._held is not None and len(self._unread) < self._limit:
                self._send_held()

    def forget(self, index: int) -> None:
        """The session goes back to chunk `index`: nobody reads it and what followed any more."""
        with self._lock:
            self._unread = deque(chunk for chunk in self._unread if chunk < index)
            if self._held is not None and self._held.chunk >= index:
                self._held = None

    def flush(self) -> None:
        """Hand over what was kept, room or not: nothing follows it."""
        with self._lock:
            if self._held is not None and not self._closed:
                self._send_held()

    def close(self) -> None:
        """Let nothing more through. Safe to call again."""
        with self._lock:
            self._closed, self._held = True, None

    def _send_held(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            self._send(held)

    def _send(self, report: SessionReport) -> None:
        dropped, self._dropped = self._dropped, 0
        self._unread.append(report.chunk)
        self._emit(replace(report, values={**report.values, "dropped": dropped}))
