"""All realtime sessions of a server: opened, kept for a while without a socket, ended.

Everything here happens on the event loop.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import structlog

from sgld.api.errors import SgldError
from sgld.observe.metrics import Metrics
from sgld.observe.requests import RequestLog
from sgld.params.sampling import SamplingParams
from sgld.params.server import ServerOptions
from sgld.realtime.messages import SessionReport, SessionRequest
from sgld.server.engine import EngineClient
from sgld.server.realtime.home import Home
from sgld.server.realtime.live import LiveSession
from sgld.server.realtime.opening import RealtimeModel, Wanted
from sgld.server.realtime.replies import Refused

log = structlog.get_logger("sgld.server")

BUSY: Final = "busy"
TAKEN_OVER: Final = "taken_over"
BUSY_SECONDS: Final = 1.0
BUSY_POLL: Final = 0.1
"""How long, and how often, a full server is asked again before a client hears that it is full."""
MOST_THREADS: Final = 8


class Attached(Protocol):
    """A socket."""

    async def stop(self, code: int, error_code: str, reason: str) -> None:
        """Close it with an error; returns when it has let go of its session."""
        ...

    async def gone(self) -> None:
        """Wait until it is closed."""
        ...


class Sessions:
    """The sessions of one server.

    Args:
        model: what its sessions are; None: the model has none.
        engine: makes their chunks.
    """

    def __init__(
        self,
        model: RealtimeModel | None,
        options: ServerOptions,
        engine: EngineClient,
        metrics: Metrics,
        request_log: RequestLog,
    ) -> None:
        self.model = model
        self._options = options
        self._engine = engine
        self._metrics = metrics
        self._log = request_log
        self._live: dict[str, LiveSession] = {}
        self._sockets: dict[str, Attached] = {}
        """Session id → the socket that it is attached to."""
        self._grace: dict[str, asyncio.TimerHandle] = {}
        """Session id → its end, while it has no socket."""
        self._strangers: set[Attached] = set()
        """Sockets without a session."""
        self._ending: set[asyncio.Task[None]] = set()
        self._opening = 0
        self._stopping: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()
        self._threads: ThreadPoolExecutor | None = None

    @property
    def live(self) -> int:
        """Sessions that the engine holds, or is asked to open."""
        return len(self._live) + self._opening

    @property
    def sockets(self) -> int:
        """Open sockets."""
        return len(self._sockets) + len(self._strangers)

    @property
    def bytes_kept(self) -> int:
        """Bytes of frames that are on their way to clients, or kept for them."""
        return sum(session.stream.held_bytes for session in self._live.values())

    def enter(self, socket: Attached) -> None:
        """A socket was opened. Raises `Refused` when the server is stopping."""
        if self._stopping is not None:
            raise _refused("server_stopping", "the server is stopping.")
        self._strangers.add(socket)
        self._count()

    def leave(self, socket: Attached) -> None:
        """A socket without a session is gone."""
        self._strangers.discard(socket)
        self._count()

    async def open(
        self, wanted: Wanted, params: SamplingParams, frame: npt.NDArray[np.uint8] | None
    ) -> LiveSession:
        """Open a session in the engine.

        Raises:
            Refused: `busy`, `server_stopping`, or what the engine says; nothing is left of it.
        """
        assert self.model is not None
        values = params.model_dump(mode="json")
        loop = asyncio.get_running_loop()
        end = loop.time() + BUSY_SECONDS
        while True:
            try:
                return await self._open(self.model, wanted, values, frame)
            except Refused as refusal:
                if refusal.code != BUSY or loop.time() >= end:
                    self._metrics.session_ended(refusal.code)
                    raise
            await asyncio.sleep(BUSY_POLL)

    async def _open(
        self,
        model: RealtimeModel,
        wanted: Wanted,
        values: dict[str, Any],
        frame: npt.NDArray[np.uint8] | None,
    ) -> LiveSession:
        if self._stopping is not None:
            raise _refused("server_stopping", "the server is stopping.")
        session = LiveSession(self._home(), wanted)
        request = SessionRequest(
            id=session.id,
            adapter=model.id,
            params=values,
            seed=wanted.settings.seed,
            images=() if frame is None else (frame,),
            events=wanted.opening.events,
            options=wanted.options,
            snapshot=wanted.snapshot,
        )
        self._opening += 1
        try:
            await session.open(request)
        finally:
            self._opening -= 1
        self._enter(session)
        return session

    def _home(self) -> Home:
        if self._threads is None:
            count = min(MOST_THREADS, os.cpu_count() or 1)
            self._threads = ThreadPoolExecutor(count, "sgld-frames")
        return Home(
            engine=self._engine,
            threads=self._threads,
            resumable=self._options.session_grace_seconds > 0,
            snapshot_bytes=self._options.session_message_mib * 2**20,
            forked=self._forked,
            ended=self._ended,
            chunk=self._chunk,
        )

    def _chunk(self, report: SessionReport) -> None:
        frames = 0 if report.frames is None else len(report.frames)
        values = report.values
        self._metrics.session_chunk(frames, values.get("seconds", {}))
        self._metrics.session_memory(report.session_id, held=int(values.get("bytes", 0)))
        self._metrics.chunks_dropped(int(values.get("dropped", 0)))

    def _enter(self, session: LiveSession) -> None:
        if session.ended is None:
            reserved = int(session.opened.get("bytes", 0))
            self._metrics.session_memory(session.id, reserved=reserved)
        if session.ended is None or not session.stream.delivered:
            self._live[session.id] = session
        self._log.received(
            session.id,
            kind="session",
            model=self.model.facts.name if self.model else "",
            parameters=session.parameters,
        )
        self._count()

    def _forked(self, fork: LiveSession) -> None:
        self._enter(fork)
        self.detach(fork)

    def find(self, token: str) -> LiveSession:
        """The session of a token. Raises `SgldError` (`session_not_found`) when there is none."""
        for session in self._live.values():
            if secrets.compare_digest(session.token.encode(), token.encode()):
                return session
        raise SgldError(
            "there is no session with this resume_token (any more).",
            code="session_not_found",
            remedy="Open a new one with init.",
        )

    async def attach(self, session: LiveSession, socket: Attached) -> None:
        """Give a session to a socket; another one that has it is closed first."""
        while (other := self._sockets.get(session.id)) is not None:
            await other.stop(1008, TAKEN_OVER, "the session was resumed on another socket.")
        timer = self._grace.pop(session.id, None)
        if timer is not None:
            timer.cancel()
        self._strangers.discard(socket)
        self._sockets[session.id] = socket
        self._count()

    def detach(self, session: LiveSession) -> None:
        """A session has no socket (any more); it ends unless one comes within the grace time."""
        self._sockets.pop(session.id, None)
        if session.id in self._live:
            loop, seconds = asyncio.get_running_loop(), self._options.session_grace_seconds
            self._grace[session.id] = loop.call_later(seconds, self._expire, session)
        self._count()

    async def end(self, session: LiveSession) -> None:
        """End a session; returns when the engine has let it go."""
        self._sockets.pop(session.id, None)
        timer = self._grace.pop(session.id, None)
        if timer is not None:
            timer.cancel()
        await session.close()
        self._live.pop(session.id, None)
        self._count()

    def _expire(self, session: LiveSession) -> None:
        self._grace.pop(session.id, None)
        log.info("a session was not resumed in time", session=session.id)
        task = asyncio.get_running_loop().create_task(self.end(session))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def _ended(self, session: LiveSession) -> None:
        """The engine has let a session go; it stays for what its client has not been sent."""
        self._metrics.session_released(session.id)
        if not session.opened or session.ended is None:
            return
        code, message = session.ended.code, session.ended.message
        self._metrics.session_ended(code or "ok")
        self._log.finished(
            session.id,
            kind="session",
            status="failed" if code else "completed",
            seconds=time.monotonic() - session.began,
            code=code,
            message=message,
            seeds=[session.wanted.settings.seed],
        )

    def begin_stop(self, drain_seconds: float) -> None:
        """Open no more sessions and end those there are; see `stop`."""
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._end_all(drain_seconds), name="end-sessions")

    async def stop(self, drain_seconds: float) -> None:
        """Let sessions with `max_chunks` end within `drain_seconds`; tell the clients of the others
        and close them at once."""
        self.begin_stop(drain_seconds)
        assert self._stopping is not None
        await asyncio.shield(self._stopping)

    def hurry(self) -> None:
        """End the wait of `stop` now."""
        self._hurry.set()

    async def _end_all(self, drain_seconds: float) -> None:
        finite = [
            self._live[key] for key in self._sockets if self._live[key].wanted.settings.max_chunks
        ]
        await self._close_sockets(keep=frozenset(session.id for session in finite))
        if finite:
            log.info("waiting for sessions", sessions=len(finite), seconds=drain_seconds)
            hurry = asyncio.create_task(self._hurry.wait())
            gone = asyncio.create_task(self._all_gone(finite))
            await asyncio.wait([hurry, gone], timeout=drain_seconds, return_when="FIRST_COMPLETED")
            for task in (hurry, gone):
                task.cancel()
            await asyncio.gather(hurry, gone, return_exceptions=True)
            await self._close_sockets()
        await asyncio.gather(*[self.end(session) for session in list(self._live.values())])
        await asyncio.gather(*self._ending, return_exceptions=True)
        if self._threads is not None:
            self._threads.shutdown(wait=False)

    async def _all_gone(self, sessions: list[LiveSession]) -> None:
        while any(session.id in self._sockets for session in sessions):
            await asyncio.sleep(BUSY_POLL)

    async def _close_sockets(self, keep: frozenset[str] = frozenset()) -> None:
        sockets = [socket for key, socket in self._sockets.items() if key not in keep]
        closing = [*sockets, *self._strangers]
        text = "the server is stopping."
        await asyncio.gather(*[socket.stop(1012, "server_stopping", text) for socket in closing])
        await asyncio.gather(*[socket.gone() for socket in closing])

    def _count(self) -> None:
        self._metrics.sessions(len(self._live), self.sockets)


def _refused(code: str, message: str) -> Refused:
    return Refused(SessionReport("", "opened", code=code, message=message))
