"""Who has the device next: sessions by deadline, and ordinary jobs in between.

A session's deadline is the moment its reader has shown everything it was given. The most urgent one
goes first, call by call. Nobody starves: a chunk that is handed over moves its session's deadline
behind now, so that whoever waits becomes the most urgent; and ordinary jobs have at least one turn
in `ORDINARY_EVERY` while sessions are hungry, and every other turn while they are not.
"""

from __future__ import annotations

from typing import Final

ORDINARY_EVERY: Final = 4


class Turns:
    """Shares turns between sessions and ordinary jobs. A turn is one forward.

    Args:
        every: ordinary jobs have one turn in so many while a session is hungry.
    """

    def __init__(self, every: int = ORDINARY_EVERY) -> None:
        self._every = every
        self._in_a_row = 0

    def session_next(self, *, ordinary: bool, hungry: bool) -> bool:
        """Whether a session that could run has this turn.

        `ordinary`: a job waits as well. `hungry`: the session's reader is about to run dry.
        """
        most = self._every - 1 if hungry else 1
        if ordinary and self._in_a_row >= most:
            self._in_a_row = 0
            return False
        # Turns that nobody else wanted are not held against a session.
        self._in_a_row = self._in_a_row + 1 if ordinary else 0
        return True


class Reader:
    """When a session's reader has shown everything that was made for it.

    Args:
        now: seconds of a monotonic clock.
        fps: frames that the reader shows in a second.
    """

    def __init__(self, now: float, fps: float) -> None:
        self.dry = now
        self._fps = fps

    def given(self, now: float, frames: int) -> None:
        """So many frames were made for the reader."""
        self.dry = max(self.dry, now) + frames / self._fps

    def hungry(self, now: float, frames: int) -> bool:
        """Whether it has less left to show than the next chunk, of `frames`, will give it."""
        return self.dry - now < frames / self._fps
