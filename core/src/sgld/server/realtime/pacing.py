"""When a chunk's frames may go out, so that they are not shown faster than they are made for."""

from __future__ import annotations

from collections.abc import Callable


class FrameClock:
    """Spreads chunks over time.

    Args:
        fps: frames per second.
        now: seconds on a clock that only goes forward.
    """

    def __init__(self, fps: float, now: Callable[[], float]) -> None:
        self._fps = fps
        self._now = now
        self._next = 0.0
        self._event: int | None = None

    def wait(self, event_id: int | None) -> float:
        """Seconds until a chunk that has seen `event_id` may go out; 0 for the first one, and for
        one that shows a new event: an answer to a key must not be delayed."""
        if event_id is not None and event_id != self._event:
            self._event = event_id
            self._next = min(self._next, self._now())
        return max(0.0, self._next - self._now())

    def sent(self, frames: int) -> None:
        """So many frames begin to go out now."""
        self._next = max(self._next, self._now()) + frames / self._fps
