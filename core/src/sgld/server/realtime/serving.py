"""An open session on a socket: three tasks until one of them is at an end.

One reads what the client says, one sends the stream of chunks, one sends what may come between.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import structlog

from sgld.api.errors import SgldError
from sgld.server.realtime import replies
from sgld.server.realtime.channel import FAULT, NORMAL, POLICY, Channel, Close, Left
from sgld.server.realtime.live import LiveSession
from sgld.server.realtime.messages import FIELDS, event_id_of, read_message
from sgld.server.realtime.opening import UNSEEN, check_adapter
from sgld.server.realtime.pacing import FrameClock
from sgld.server.realtime.replies import BAD_EVENT
from sgld.server.realtime.stream import End, Note, ReadyChunk
from sgld.server.services import Services

log = structlog.get_logger("sgld.server")

MOST_OWED: Final = 64
"""Answers that a client may wait for before its next message is read."""


class Begin(NamedTuple):
    """How a session comes to its socket: `event_id` is that of the init message."""

    resumed: bool
    event_id: int | None


class Serving:
    """One session on one socket.

    Args:
        channel: the socket.
        stop: done when the socket is to be closed from elsewhere; how.
    """

    def __init__(
        self,
        services: Services,
        channel: Channel,
        session: LiveSession,
        stop: asyncio.Future[Close],
    ) -> None:
        self._services = services
        self._sessions = services.sessions
        self._channel = channel
        self._session = session
        self._stop = stop
        self._urgent: deque[Mapping[str, Any]] = deque()
        self._told = asyncio.Event()
        self._room = asyncio.Event()

    async def run(self, begin: Begin) -> None:
        """Serve until the client leaves or the session ends; always raises `Left` or `Close`, or
        what went wrong."""
        session = self._session
        session.tell = self._tell
        try:
            if session.wanted.protocol == 2:
                await self._channel.send(self._session_message(session, begin))
            work = [self._read(session), self._write(session), self._write_urgent()]
            tasks = [asyncio.create_task(one) for one in work]
            try:
                await asyncio.wait([*tasks, self._stop], return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                results = await asyncio.gather(*tasks, return_exceptions=True)
            raise _first(results) or self._stop.result()
        finally:
            if session.tell == self._tell:
                session.tell = None

    def _session_message(self, session: LiveSession, begin: Begin) -> dict[str, Any]:
        settings, opened = session.wanted.settings, session.opened
        model = self._sessions.model
        return {
            "type": "session",
            "event_id": begin.event_id,
            "protocol": 2,
            "session_id": session.id,
            "resume_token": session.token if session.resumable else None,
            "resumed": begin.resumed,
            "chunk_index": session.next_index,
            "model": self._services.name,
            **{
                name: opened[name]
                for name in ("width", "height", "fps", "first_frames", "chunk_frames")
            },
            "chunk_latents": opened.get("chunk_latents"),
            "events": list(model.adapter.events) if model else [],
            "commands": [name for name in FIELDS if name != "event"],
            "format": settings.realtime_output_format,
            "seed": settings.seed,
            "max_chunks": settings.max_chunks,
            "queue_chunks": settings.waiting,
            "rewind_chunks": settings.rewind_chunks,
            "acknowledge": session.stream.acknowledged,
            "free_running": settings.free_running,
            "grace_seconds": self._services.options.session_grace_seconds,
            "session_bytes": opened.get("bytes", 0),
            "live": self._sessions.live,
            "parameters": {
                name: value for name, value in session.parameters.items() if name not in UNSEEN
            },
            "warnings": list(session.wanted.warnings),
        }

    async def _read(self, session: LiveSession) -> None:
        """What the client says, until it leaves."""
        idle = self._services.options.session_idle_seconds or None
        while True:
            message: Mapping[str, Any] = {}
            try:
                message = await self._channel.message(idle)
                await self._take(session, message)
            except TimeoutError:
                text = f"nothing was heard from the client for {idle:g} seconds."
                error = replies.error(BAD_EVENT, SgldError(text, code="idle_timeout"))
                raise Close(POLICY, "idle_timeout", error) from None
            except SgldError as error:
                await self._channel.send(replies.error(BAD_EVENT, error, event_id_of(message)))

    async def _take(self, session: LiveSession, message: Mapping[str, Any]) -> None:
        model = check_adapter(self._sessions.model, self._services.name)
        said = read_message(message, model.adapter, session.wanted.protocol)
        if said.type == "ping":
            await self._channel.send({"type": "pong", "event_id": said.event_id})
            return
        while session.owing + len(self._urgent) >= MOST_OWED:
            self._room.clear()
            await self._room.wait()
        session.order(said)

    async def _write(self, session: LiveSession) -> None:
        """Send the session's stream, to its end."""
        fps, settings = float(session.opened["fps"]), session.wanted.settings
        clock = FrameClock(fps, time.monotonic)
        warnings = list(session.wanted.warnings) if session.wanted.protocol == 1 else []
        while True:
            item = await session.stream.next()
            if isinstance(item, End):
                await session.stream.settled()
                session.sent(item)
                raise self._ended(session, item)
            if isinstance(item, Note):
                await self._channel.send(item.message)
                self._room.set()
            elif not item.stale:
                wait = clock.wait(item.report.event_id) if settings.realtime_output_pacing else 0.0
                await asyncio.sleep(wait)
                if session.stream.held:
                    continue  # a rewind that was asked for meanwhile does not count this chunk
                if not item.stale:
                    clock.sent(item.frames)
                    stats = await self._send_chunk(session, item, wait)
                    await self._channel.send(stats | ({"warnings": warnings} if warnings else {}))
                    warnings = []
            session.sent(item)

    async def _send_chunk(
        self, session: LiveSession, chunk: ReadyChunk, waited: float
    ) -> dict[str, Any]:
        """Send the frames of a chunk; gives its stats."""
        session.begun(chunk)
        sending = replies.Sending()
        sending.pace = waited
        now = time.monotonic
        for batch in chunk.batches or ():
            head = {"type": "frame_batch", **replies.batch_head(chunk, batch.head)}
            await self._channel.send(head, batch.payload, sending)
        self._services.metrics.bytes_out(sending.bytes)
        format = session.wanted.settings.realtime_output_format
        return replies.chunk_stats(session.id, chunk, format, sending, now())

    def _ended(self, session: LiveSession, end: End) -> Close:
        report = end.report
        if report.code:
            log.warning("a session ended", session=session.id, code=report.code)
            return Close(FAULT, report.code, replies.failure(report))
        if report.values.get("reason") == "complete":
            return Close(NORMAL, "generation complete")
        said = session.closing
        message = None if said is None else {"type": "closed", "event_id": said.event_id}
        return Close(NORMAL, "closed", message)

    async def _write_urgent(self) -> None:
        while True:
            while self._urgent:
                await self._channel.send(self._urgent[0])
                self._urgent.popleft()
                self._room.set()
            self._told.clear()
            await self._told.wait()

    def _tell(self, message: Mapping[str, Any]) -> None:
        self._urgent.append(message)
        self._told.set()
        self._room.set()


def _first(results: list[Any]) -> BaseException | None:
    """Why a session is not served any more: a fault before all, then a close, then a leave."""
    raised = [one for one in results if isinstance(one, Exception)]
    ranks = {Left: 2, Close: 1}
    return min(raised, key=lambda error: ranks.get(type(error), 0), default=None)
