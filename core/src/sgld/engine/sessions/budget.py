"""Memory promised to sessions and to causal requests: reserved before anything is allocated, given
back when they end.

Both draw on one account of the device. Who could not be served is not overtaken by the other kind:
a request that waits keeps its bytes from sessions that come later, and a session that was refused
because of requests keeps its bytes from requests that would begin later, for as long as its client
can be expected to ask again. So whatever streams in, each kind has its turn.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from itertools import count
from typing import Final, NamedTuple

from sgld.api.errors import RequestError

RETRY_AFTER: Final = 5
"""Seconds after which it is worth asking again. Nobody knows when a session ends."""
WISH_SECONDS: Final = RETRY_AFTER + 1.0
"""For how long a session that was refused because of requests keeps its place before them."""


class Refusal(RequestError):
    """A command that is not done; `values` go into its answer."""

    def __init__(self, message: str, *, code: str, remedy: str = "", **values: object) -> None:
        super().__init__(message, code=code, remedy=remedy)
        self.values = values


class Account:
    """Who holds how many bytes of one memory."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.held: dict[Hashable, int] = {}

    @property
    def free(self) -> int:
        """Bytes that nobody holds."""
        return max(self.total - sum(self.held.values()), 0)


@dataclass(frozen=True, slots=True)
class Undo:
    """Host memory of the chunks that a session may take back.

    Args:
        chunks: so many.
        ahead: of these, what was not asked for: chunks that the client has not seen yet.
        size: chunks → bytes, never falling.
    """

    chunks: int = 0
    ahead: int = 0
    size: Callable[[int], int] = lambda chunks: 0

    def fit(self, room: int) -> int:
        """How many of the chunks that were asked for would fit into `room` bytes."""
        chunks = bisect_right(range(1, self.chunks + 1), room, key=self.size)
        return max(chunks - self.ahead, 0)


class _Claim(NamedTuple):
    """Bytes that somebody could not have. The smaller `number` came first."""

    number: int
    owner: Hashable
    needed: int
    until: float = 0.0


class Budget:
    """Reserves for sessions and causal requests.

    Args:
        total: bytes of the device for all of them together.
        most: how many sessions at once.
        host: bytes of host memory for the chunks that sessions may take back; None: the device's
            memory is the host's, and they come out of `total`.
        clock: seconds, never going back.
        alarm: called with seconds after which a request that waits must be tried again.
    """

    def __init__(
        self,
        total: int,
        most: int,
        host: int | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        alarm: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self.total = total
        self.most = most
        self._device = Account(total)
        self._jobs: dict[Hashable, int] = {}
        """What requests hold of it."""
        self._host = self._device if host is None else Account(host)
        self._undo: dict[Hashable, int] = {}
        self._sessions: set[Hashable] = set()
        self._clock = clock
        self._alarm = alarm
        self._alarmed = 0.0
        self._numbers = count()
        self._waits: _Claim | None = None
        """The request that waits for memory."""
        self._wish: _Claim | None = None
        """The session that was refused because of requests."""

    @property
    def live(self) -> int:
        """Sessions that hold a reservation."""
        return len(self._sessions)

    @property
    def reserved(self) -> int:
        """Bytes promised, on the device and on the host."""
        return sum(self._device.held.values()) + sum(self._undo.values())

    # -- sessions ---------------------------------------------------------------------------------

    def reserve(self, owner: Hashable, needed: int, undo: Undo = Undo()) -> int:
        """Promise a session `needed` bytes of the device, and what `undo` takes of the host's;
        the latter is returned.

        Raises:
            Refusal: `busy` when others hold them; `out_of_memory`, or `rewind_too_large` where it
                is for the sake of the chunks to take back, when they never can be had.
        """
        shared = self._host is self._device
        extra = undo.size(undo.chunks) if undo.chunks else 0
        room = self._host.total - (needed if shared else 0)
        if needed > self.total:
            raise self._refused(
                f"a session like this needs {shown(needed)}; the memory for all sessions and "
                f"requests is {shown(self.total)}.",
                "out_of_memory",
                "Try a smaller size, a smaller window of the cache, or serve with more "
                "--session-memory.",
                needed,
                self._device.free,
            )
        if extra > room:
            raise self._too_far(undo, extra, room, "rewind_too_large")
        if self.live >= self.most:
            raise self._refused(
                f"{self.live} sessions are live, which is the most that --max-sessions allows.",
                "busy",
                "Try again when one has ended.",
                needed,
                self._device.free,
            )
        free = self._free_for_session()
        if needed > free:
            self._wish_for(owner, needed + (extra if shared else 0))
            raise self._refused(
                f"a session like this needs {shown(needed)}; {self.live} live sessions and the "
                f"requests leave {shown(free)}.",
                "busy",
                "Try again when one has ended.",
                needed,
                free,
            )
        room = free - needed if shared else self._host.free
        if extra > room:
            if shared:
                self._wish_for(owner, needed + extra)
            raise self._too_far(undo, extra, room, "busy")
        self._wish = None
        self._sessions.add(owner)
        self._device.held[owner] = needed + (extra if shared else 0)
        if not shared:
            self._host.held[owner] = self._undo[owner] = extra
        return extra

    # -- requests ---------------------------------------------------------------------------------

    def begin(self, job: Hashable, needed: int) -> bool:
        """Promise a request's job `needed` bytes; False: it waits, and those that ask later must
        not have them before it. One job waits at a time; `release` also ends its waiting."""
        wish = self._live_wish()
        first = wish is not None and (self._waits is None or wish.number < self._waits.number)
        held_back = wish.needed if wish is not None and first else 0
        if needed <= self._device.free - held_back:
            self._device.held[job] = self._jobs[job] = needed
            if self._waits is not None and self._waits.owner == job:
                self._waits = None
            return True
        if self._waits is None:
            self._waits = _Claim(next(self._numbers), job, needed)
        if wish is not None and needed <= self._device.free and self._alarmed != wish.until:
            self._alarmed = wish.until  # nothing else may happen before that
            self._alarm(max(wish.until - self._clock(), 0.0))
        return False

    # -- both -------------------------------------------------------------------------------------

    def release(self, owner: Hashable) -> None:
        """Give a reservation back, or stop waiting for one. Safe to call again."""
        if self._waits is not None and self._waits.owner == owner:
            self._waits = None
        self._sessions.discard(owner)
        for held in (self._device.held, self._jobs, self._host.held, self._undo):
            held.pop(owner, None)

    # -- inside -----------------------------------------------------------------------------------

    def _free_for_session(self) -> int:
        """Without what a request waits for that came before the session."""
        waits, wish = self._waits, self._live_wish()
        if waits is None or (wish is not None and wish.number < waits.number):
            return self._device.free
        return max(self._device.free - waits.needed, 0)

    def _wish_for(self, owner: Hashable, needed: int) -> None:
        """A session is refused. If requests are the reason the next one is let in before them."""
        if self._waits is None and not self._jobs:
            return
        wish = self._live_wish()
        number = next(self._numbers) if wish is None else wish.number
        self._wish = _Claim(number, owner, needed, self._clock() + WISH_SECONDS)

    def _live_wish(self) -> _Claim | None:
        """None once it was not asked again in time, or while the sessions that live leave it no
        room, whatever requests do."""
        wish = self._wish
        if wish is not None and self._clock() >= wish.until:
            wish = self._wish = None
        if wish is None:
            return None
        of_jobs = sum(self._jobs.values())
        return wish if wish.needed <= self._device.free + of_jobs else None

    def _too_far(self, undo: Undo, extra: int, room: int, code: str) -> Refusal:
        fit, room = undo.fit(room), max(room, 0)
        whole = code != "busy"
        left = "the host memory for this is" if whole else "what is left of the host memory is"
        remedy = f"At most rewind_chunks={fit} would fit" + ("." if whole else " now.")
        message = (
            f"rewind_chunks={undo.chunks - undo.ahead} needs {shown(extra)} to be taken back; "
            f"{left} {shown(room)}."
        )
        facts = {"field": "rewind_chunks", "fits": fit}
        return self._refused(message, code, remedy, extra, room, **facts)

    def _refused(
        self, message: str, code: str, remedy: str, needed: int, free: int, **facts: object
    ) -> Refusal:
        if code == "busy":
            facts["retry_after"] = RETRY_AFTER
        facts |= {"live": self.live, "needed": needed, "free": free}
        return Refusal(message, code=code, remedy=remedy, **facts)


def shown(number: int) -> str:
    """Bytes for people."""
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if number >= unit:
            return f"{number / unit:.1f} {name}"
    return f"{number} bytes"
