"""Memory promised to sessions: reserved before anything is allocated, given back when they end."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from sgld.api.errors import RequestError

RETRY_AFTER: Final = 5
"""Seconds after which it is worth asking again. Nobody knows when a session ends."""


class Refusal(RequestError):
    """A command that is not done; `values` go into its answer."""

    def __init__(self, message: str, *, code: str, remedy: str = "", **values: object) -> None:
        super().__init__(message, code=code, remedy=remedy)
        self.values = values


class Budget:
    """Who holds how many bytes of the device's memory for sessions.

    Args:
        total: bytes for all sessions together.
        most: how many sessions at once.
    """

    def __init__(self, total: int, most: int) -> None:
        self.total = total
        self.most = most
        self._held: dict[Hashable, int] = {}

    @property
    def live(self) -> int:
        """Sessions that hold a reservation."""
        return len(self._held)

    @property
    def reserved(self) -> int:
        """Bytes promised."""
        return sum(self._held.values())

    def reserve(self, owner: Hashable, needed: int) -> None:
        """Promise `needed` bytes to `owner`.

        Raises:
            Refusal: `busy` when others hold them, `out_of_memory` when they never can be had.
        """
        free = self.total - self.reserved
        facts = {"live": self.live, "needed": needed, "free": max(free, 0)}
        if needed > self.total:
            raise Refusal(
                f"a session like this needs {_shown(needed)}; the memory for all sessions is "
                f"{_shown(self.total)}.",
                code="out_of_memory",
                remedy="Try a smaller size, a smaller window of the cache or fewer chunks to "
                "rewind, or serve with more --session-memory.",
                **facts,
            )
        if self.live >= self.most:
            raise Refusal(
                f"{self.live} sessions are live, which is the most that --max-sessions allows.",
                code="busy",
                remedy="Try again when one has ended.",
                retry_after=RETRY_AFTER,
                **facts,
            )
        if needed > free:
            raise Refusal(
                f"a session like this needs {_shown(needed)}; {self.live} live sessions leave "
                f"{_shown(free)}.",
                code="busy",
                remedy="Try again when one has ended.",
                retry_after=RETRY_AFTER,
                **facts,
            )
        self._held[owner] = needed

    def release(self, owner: Hashable) -> None:
        """Give a reservation back. Safe to call again."""
        self._held.pop(owner, None)


def _shown(number: int) -> str:
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if number >= unit:
            return f"{number / unit:.1f} {name}"
    return f"{number} bytes"
