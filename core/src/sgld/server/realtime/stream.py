"""What is on its way to a client, in order: sent, kept for a resume, or still to be sent.

    items:   [ sent and kept … | being sent | waiting … ]
                               ^ cursor

Chunks stay after they were sent until they are acknowledged, or until `keep` newer ones were sent.
A note is a message whose place between the chunks matters. Nothing here waits for a socket.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sgld.api.errors import SgldError
from sgld.realtime.messages import SessionReport
from sgld.server.realtime.batches import Batch


@dataclass(slots=True, eq=False)
class ReadyChunk:
    """A chunk that can be sent.

    Args:
        report: the engine's, without its frames.
        batches: None: the engine sent no frames at all.
        build_seconds: for encoding.
        arrived: when the engine's report came, `time.monotonic`.
        stale: the session has gone back behind it.
    """

    request_id: str
    report: SessionReport
    batches: list[Batch] | None
    frames: int
    raw_bytes: int
    build_seconds: float
    arrived: float
    stale: bool = False

    @property
    def index(self) -> int:
        """Index of the chunk."""
        return self.report.chunk


@dataclass(slots=True, eq=False)
class Note:
    """A message at its place between chunks; `covers` are the chunks that it made obsolete."""

    message: Mapping[str, Any]
    covers: frozenset[str] = frozenset()


@dataclass(slots=True, eq=False)
class End:
    """Nothing follows: how the session ended."""

    report: SessionReport


Item = ReadyChunk | Note | End


class ResumeGap(SgldError):
    """What follows the client's last chunk is not there any more."""

    code = "resume_gap"


@dataclass(slots=True)
class Stream:
    """The items of one session; `acknowledged`: only the client's word lets a chunk go.

    Args:
        keep: chunks that stay after they were sent; 0: none, for clients that cannot resume.
    """

    keep: int
    acknowledged: bool = False
    held: bool = False
    """Whether chunks wait although they could be sent: perhaps they are about to be obsolete."""
    _items: list[Item] = field(default_factory=list)
    _cursor: int = 0
    _last_gone: str = ""
    _covered: set[str] = field(default_factory=set)
    """Chunks that a going back made obsolete which is not over yet."""
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def waiting(self) -> int:
        """Chunks that were not sent completely."""
        return sum(isinstance(item, ReadyChunk) for item in self._items[self._cursor :])

    @property
    def held_bytes(self) -> int:
        """Bytes of all payloads that are kept or wait."""
        chunks = [item for item in self._items if isinstance(item, ReadyChunk)]
        return sum(len(batch.payload) for chunk in chunks for batch in chunk.batches or ())

    @property
    def next_index(self) -> int | None:
        """Index of the chunk that is sent next; None while none waits."""
        rest = self._items[self._cursor :]
        return next((item.index for item in rest if isinstance(item, ReadyChunk)), None)

    @property
    def delivered(self) -> bool:
        """Whether everything was sent, the end included."""
        return self._cursor == len(self._items) and any(isinstance(i, End) for i in self._items)

    @property
    def unacknowledged(self) -> bool:
        """Whether chunks were sent for which the client has not said `received` and has to."""
        kept = self._items[: self._cursor]
        return self.acknowledged and any(isinstance(item, ReadyChunk) for item in kept)

    async def settled(self) -> None:
        """Wait until nothing is unacknowledged."""
        while self.unacknowledged:
            self._changed.clear()
            await self._changed.wait()

    def put(self, item: Item) -> None:
        """Add an item at the end."""
        self._items.append(item)
        self._changed.set()

    async def next(self) -> Item:
        """The item that is to be sent now; waits for one. It stays the same until `sent`."""
        while self._cursor >= len(self._items) or self._holds(self._items[self._cursor]):
            self._changed.clear()
            await self._changed.wait()
        return self._items[self._cursor]

    def hold(self, held: bool) -> None:
        """Begin with no further chunk from now on, or go on."""
        self.held = held
        self._changed.set()

    def _holds(self, item: Item) -> bool:
        return self.held and isinstance(item, ReadyChunk)

    def sent(self, item: Item) -> int | None:
        """An item was sent completely; gives the index of a chunk that the engine need not count as
        waiting any more."""
        if self._cursor >= len(self._items) or self._items[self._cursor] is not item:
            return None  # a resume went back behind it
        self._cursor += 1
        if not isinstance(item, ReadyChunk):
            if not self.keep:
                self._forget(self._cursor)
            return None
        if item.stale:
            self._cursor -= 1
            del self._items[self._cursor]
            return None
        if self.acknowledged:
            return None
        sent = [at for at in range(self._cursor) if isinstance(self._items[at], ReadyChunk)]
        if len(sent) > self.keep:
            self._forget(sent[-self.keep - 1] + 1)
        return item.index

    def received(self, request_id: str) -> int | None:
        """The client has this chunk and all before it; gives its index if it was kept."""
        for at in range(self._cursor):
            item = self._items[at]
            if isinstance(item, ReadyChunk) and item.request_id == request_id:
                self._forget(at + 1)
                self._changed.set()
                return item.index if self.acknowledged else None
        return None

    def rewound(self, to: int, message: Mapping[str, Any] | None) -> None:
        """The session went back: chunk `to` comes next. Older chunks from there on are obsolete;
        `message` stands where the new ones begin (None: more is to follow before that)."""
        covered = self._covered
        kept: list[Item] = []
        cursor = self._cursor
        for at, item in enumerate(self._items):
            if isinstance(item, ReadyChunk) and (item.index >= to or item.stale):
                covered.add(item.request_id)
                if at == self._cursor:
                    item.stale = True  # perhaps half sent: it is finished, and then forgotten
                    kept.append(item)
                elif at < self._cursor:
                    cursor -= 1
            else:
                kept.append(item)
        self._items, self._cursor = kept, cursor
        if message is not None:
            self._covered = set()
            self.put(Note(message, frozenset(covered)))

    def cut(self) -> None:
        """Nothing of what waits is wanted any more, but for what is being sent."""
        del self._items[self._cursor + 1 :]
        if self._cursor < len(self._items):
            item = self._items[self._cursor]
            if isinstance(item, ReadyChunk):
                item.stale = True
        self.acknowledged = False
        self._changed.set()

    def resume(self, last_request_id: str | None) -> None:
        """Go on behind the last chunk that the client has; None: with everything that is kept.

        Raises:
            ResumeGap: chunks are missing in between.
        """
        items = [i for i in self._items if not (isinstance(i, ReadyChunk) and i.stale)]
        cursor = self._found(items, last_request_id)
        if cursor is None:
            raise ResumeGap(
                "chunks that follow last_request_id are not kept any more.",
                remedy="Send null to go on with what there is.",
            )
        self._items, self._cursor = items, cursor
        self._changed.set()

    def _found(self, items: list[Item], last: str | None) -> int | None:
        if last is None or last == self._last_gone:
            return 0
        for at, item in enumerate(items):
            if isinstance(item, ReadyChunk) and item.request_id == last:
                return at + 1
            if isinstance(item, Note) and last in item.covers:
                return at
        return None

    def _forget(self, count: int) -> None:
        """Let the first items go."""
        for item in self._items[:count]:
            if isinstance(item, ReadyChunk):
                self._last_gone = item.request_id
        del self._items[:count]
        self._cursor -= count
