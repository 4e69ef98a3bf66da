"""The sessions that are measured: several that run free at once, then one that is stepped.

free_running(open_client, init, wishes, said)   rate, chunk times, what a person feels
stepping(open_client, init, wishes, said)       a key, a step, and the wait for its frames
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from itertools import pairwise
from typing import Any, NamedTuple

from sgld.bench.client import WorldClient
from sgld.bench.figures import Arrival, Key, answer, press_times

WORTH_SECONDS = 20.0
"""How long is measured where no number of chunks is given."""
FEWEST = 8
"""Chunks that are measured at least then."""

OpenClient = Callable[[], AbstractContextManager[WorldClient]]
Said = Callable[[str, int, int], None]
"""Told of progress: what is done, how many chunks are through, how many there are in all."""


class Wishes(NamedTuple):
    """How much is measured.

    Args:
        sessions: at once.
        warm: chunks of each before it counts.
        chunks: of each that count; None: about `WORTH_SECONDS` of them.
        steps: chunks of the session that is stepped.
    """

    sessions: int
    warm: int
    chunks: int | None
    steps: int


class Run(NamedTuple):
    """What one session saw.

    Args:
        facts: its `session` message.
        begin: when its last warm chunk had come.
        chunks: those that count.
        keys: events that were sent while they came.
    """

    facts: Mapping[str, Any]
    begin: float
    chunks: tuple[Arrival, ...]
    keys: tuple[Key, ...]


class Together:
    """Holds sessions to each other: none counts before all are warm, none ends before all have
    counted, so that each is measured beside all others."""

    def __init__(self, sessions: int) -> None:
        self._lock = threading.Lock()
        self._cold, self._open = sessions, sessions
        self.all_warm, self.all_done = threading.Event(), threading.Event()
        self.may_end = threading.Event()
        """Set when nothing more is asked of the sessions."""
        self.failed = False
        """Whether one of them has; set before anybody who waits goes on."""

    def warm(self) -> None:
        """One more session is warm."""
        with self._lock:
            self._cold -= 1
            if not self._cold:
                self.all_warm.set()

    def done(self) -> None:
        """One more session has all its chunks."""
        with self._lock:
            self._open -= 1
            if not self._open:
                self.all_done.set()

    def fail(self) -> None:
        """One has failed: nobody waits any longer."""
        self.failed = True
        self.end()

    def end(self) -> None:
        """Nothing more is asked, and nobody waits any longer."""
        for event in (self.may_end, self.all_warm, self.all_done):
            event.set()


def free_running(
    open_client: OpenClient,
    init: Mapping[str, Any],
    wishes: Wishes,
    said: Said,
    at_work: Callable[[], None] = lambda: None,
) -> list[Run]:
    """Sessions side by side, each as fast as it can while a key is pressed now and then.

    Args:
        open_client: connects a session.
        init: fields of its init message; the seed is counted up.
        wishes: how much.
        said: told of the first session's progress.
        at_work: called once when all chunks have come and all sessions are still open and busy.

    Raises SgldError as the sessions do; the others are ended first.
    """
    together = Together(wishes.sessions)

    def one(number: int) -> Run:
        own = {**init, "seed": _seed(init, number), "free_running": True}
        tell: Said = said if number == 0 else lambda *_: None
        try:
            with open_client() as client:
                client.open(own)
                return _run(client, wishes, together, tell)
        except BaseException:
            together.fail()
            raise

    with ThreadPoolExecutor(wishes.sessions, "sgld-bench") as pool:
        futures = [pool.submit(one, number) for number in range(wishes.sessions)]
        try:
            together.all_done.wait()
            if not together.failed:
                at_work()
        finally:
            together.end()
        return [future.result() for future in futures]


def _seed(init: Mapping[str, Any], number: int) -> Any:
    """The seed of one of several sessions; one that is no number is for the server to refuse."""
    seed = 1 if init.get("seed") is None else init["seed"]
    return seed + number if isinstance(seed, int) and not isinstance(seed, bool) else seed


def _run(client: WorldClient, wishes: Wishes, together: Together, said: Said) -> Run:
    before = _warm_up(client, wishes, together, said)
    if together.may_end.is_set():
        return Run(client.facts, 0.0, (), ())  # another session tells why
    begin, chunk_seconds = before[-1].last, _typical(before)
    total = wishes.chunks or max(FEWEST, round(WORTH_SECONDS / chunk_seconds))
    chunks: list[Arrival] = []
    keys: list[Key] = []
    waiting: Key | None = None
    press_at = begin + press_times(0, chunk_seconds)
    counted = False
    while not together.may_end.is_set():
        if waiting is None and not counted and time.perf_counter() >= press_at:
            waiting = client.press()
            keys.append(waiting)
        until = press_at if waiting is None and not counted else None
        chunk = client.chunk(until)
        if chunk is None or counted:
            continue
        chunks.append(chunk)
        said("measuring", len(chunks), total)
        if waiting is not None and answer(waiting, [chunk]) is not None:
            waiting, press_at = None, chunk.last + press_times(len(keys), chunk_seconds)
        if len(chunks) == total:
            counted = True
            together.done()
    return Run(client.facts, begin, tuple(chunks), tuple(keys))


def _warm_up(client: WorldClient, wishes: Wishes, together: Together, said: Said) -> list[Arrival]:
    """Chunks until every session has its warm ones, or until one has failed."""
    before: list[Arrival] = []
    while not together.may_end.is_set() and (
        len(before) < wishes.warm or not together.all_warm.is_set()
    ):
        chunk = client.chunk()
        assert chunk is not None  # without a time to wait until, it raises instead
        before.append(chunk)
        said("warming up", min(len(before), wishes.warm), wishes.warm)
        if len(before) == wishes.warm:
            together.warm()
    return before


def _typical(chunks: Sequence[Arrival]) -> float:
    """Seconds of a chunk, as far as can be told; the first ones were not typical."""
    ends = [chunk.last for chunk in chunks[-4:]]
    if len(ends) > 1:
        return max(statistics.median(b - a for a, b in pairwise(ends)), 1e-3)
    return max(float(chunks[-1].stats["chunk_total_ms"]) / 1e3, 1e-3)


def stepping(open_client: OpenClient, init: Mapping[str, Any], wishes: Wishes, said: Said) -> Run:
    """One session whose chunks are made when they are asked for, each with a new key.

    Raises SgldError as the session does.
    """
    chunks: list[Arrival] = []
    keys: list[Key] = []
    begin = 0.0
    with open_client() as client:
        client.open({**init, "free_running": False})
        for turn in range(wishes.warm + wishes.steps):
            key = client.press()
            client.step()
            chunk = client.chunk()
            assert chunk is not None
            if turn < wishes.warm:
                begin = chunk.last
                continue
            keys.append(key)
            chunks.append(chunk)
            said("stepping", len(chunks), wishes.steps)
        return Run(client.facts, begin, tuple(chunks), tuple(keys))
