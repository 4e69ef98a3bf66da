"""One session as the server sees it: between the engine that makes its chunks and the socket, if
there is one now, that takes them.

A task reads the engine's reports, encodes chunks and turns answers into messages; it lives as long
as the engine's session. What a socket should send stands in `stream`, in order; what need not keep
its place goes to `tell`.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import structlog

from sgld.api.errors import ParameterError, Problem, SgldError
from sgld.realtime.messages import CommandKind, SessionCommand, SessionReport, SessionRequest
from sgld.server.realtime import replies
from sgld.server.realtime.batches import FrameWriter, Picture
from sgld.server.realtime.home import Home, Owed
from sgld.server.realtime.messages import ClientMessage
from sgld.server.realtime.opening import Wanted
from sgld.server.realtime.replies import BAD_EVENT, Refused
from sgld.server.realtime.stream import End, ReadyChunk, Stream

log = structlog.get_logger("sgld.server")

CLOSE_SECONDS: Final = 10.0
"""How long the engine may take to let a session go before it is no longer waited for."""
GOES_BACK: Final = ("rewind", "reset")
Tell = Callable[[Mapping[str, Any]], None]


class LiveSession:
    """A session that was asked for; `open` makes it real.

    Args:
        wanted: what its client asked for.
    """

    def __init__(self, home: Home, wanted: Wanted) -> None:
        self.id = uuid.uuid4().hex
        self.token = secrets.token_urlsafe(24)
        self.wanted = wanted
        self.began = time.monotonic()
        self.opened: Mapping[str, Any] = {}
        """What the engine said of the open session."""
        self.parameters: Mapping[str, Any] = {}
        self.ended: SessionReport | None = None
        self.closing: ClientMessage | None = None
        """The client's wish to end it."""
        self.tell: Tell | None = None
        """Takes messages for the socket that is attached now."""
        settings = wanted.settings
        keep = settings.waiting if wanted.protocol == 2 and home.resumable else 0
        self.stream = Stream(keep, settings.acknowledge and bool(keep))
        self._home = home
        self._numbers = itertools.count(1)
        self._owed: dict[int, Owed] = {}
        self._begun = -1
        """Index of the newest chunk whose sending has begun, on the present line of time."""
        self._newest = -1
        """Index of the newest chunk that the engine has reported."""
        self._first = -1
        """Index of the chunk from which `max_chunks` counts; -1: not known yet."""
        self._put = -1
        """Index of the newest chunk that was given to the stream."""
        self._done: int | None = None
        """Newest chunk that the client is done with, not told to the engine yet."""
        self._writer: FrameWriter | None = None
        self._reports = home.engine.join(self.id)
        self._opening: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run(), name=f"session-{self.id[:8]}")

    @property
    def owing(self) -> int:
        """How many answers the engine owes to the client."""
        return len(self._owed)

    @property
    def resumable(self) -> bool:
        """Whether it outlives its socket."""
        return self.stream.keep > 0

    @property
    def next_index(self) -> int | None:
        """Index of the chunk that is sent next; None when none follows."""
        waiting = self.stream.next_index
        if waiting is not None:
            return waiting
        most, index = self.wanted.settings.max_chunks, self._put + 1
        over = self.ended is not None or (most is not None and index - self._first >= most)
        return None if over else index

    async def open(self, request: SessionRequest) -> None:
        """Have the engine open it; `request.id` must be `self.id`.

        Raises:
            Refused: with the engine's reason; nothing of the session is left.
        """
        self.parameters = request.params
        try:
            self._command("open", {"request": request})
            await asyncio.shield(self._opening)
        except BaseException:
            await self.close()
            raise

    def order(self, message: ClientMessage) -> None:
        """Do what a client says; the answer comes by `tell` or stands in the stream.

        Raises:
            SgldError: it cannot be done; nothing has changed.
        """
        answered = self.wanted.protocol == 2 and message.type not in ("received", "close")
        if self.ended is not None and answered:
            raise _too_late(message.type, self.ended)
        if message.type == "received":
            self._received(message.values["request_id"])
        elif message.type == "rewind":
            self._rewind(message.event_id, message.values["chunks"])
        elif message.type == "fork":
            self._fork(message.event_id)
        elif message.type == "close":
            self.closing = message
            self._command("close", {})
        else:
            owed = Owed(message.type, message.event_id)
            kind: Any = message.type
            values = dict(message.values)
            if kind == "event":
                values["event_id"] = message.event_id
            self._command(kind, values, owed if self.wanted.protocol == 2 else None)

    def begun(self, chunk: ReadyChunk) -> None:
        """The sending of a chunk begins."""
        if not chunk.stale:
            self._begun = chunk.index

    def sent(self, item: Any) -> None:
        """An item of the stream was sent completely."""
        self._taken(self.stream.sent(item))

    async def close(self) -> None:
        """End the session and wait for the engine to let it go. Safe to call again."""
        if not self._task.done():
            self._let_go()
            await asyncio.wait([self._task], timeout=CLOSE_SECONDS)
            if not self._task.done():
                log.error("the engine has not let a session go", session=self.id)
                self._task.cancel()
                await asyncio.wait([self._task])

    # What follows belongs to the task that reads the engine's reports.

    async def _run(self) -> None:
        try:
            while self.ended is None:
                await self._take(await self._reports.get())
        except Exception as error:  # a fault here must not leave the engine's session behind
            log.exception("a session failed", session=self.id)
            self._end(_fault(error))
            self._let_go()
            await self._wait_for_end()
        finally:
            self._home.engine.leave(self.id)
            for owed in self._owed.values():
                if owed.fork is not None:
                    owed.fork._task.cancel()
            if not self._opening.done():
                self._opening.cancel()
            self._home.ended(self)

    async def _wait_for_end(self) -> None:
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                while (await self._reports.get()).kind != "closed":
                    pass
        except TimeoutError:
            log.error("the engine has not let a session go", session=self.id)

    async def _take(self, report: SessionReport) -> None:
        if report.kind == "chunk":
            await self._chunk(report)
        elif report.kind == "opened":
            self._open(report)
        elif report.kind == "closed":
            self._end(report)
        elif report.code:
            self._refused(report)
        else:
            self._answered(report)

    def _open(self, report: SessionReport) -> None:
        if report.code:
            self.ended = report
            self._opening.set_exception(Refused(report))
            self._opening.exception()  # a fork's is told to its parent instead
            return
        self.opened = dict(report.values)
        settings = self.wanted.settings
        picture = Picture(
            format=settings.realtime_output_format,
            width=int(self.opened["width"]),
            height=int(self.opened["height"]),
            fps=float(self.opened["fps"]),
            quality=settings.quality,
            max_width=settings.realtime_preview_max_width or 0,
        )
        self._writer = FrameWriter(picture, self._home.threads)
        self._begun = self._newest = self._put = int(self.opened.get("chunk", 0)) - 1
        if self._first < 0:
            self._first = self._put + 1
        self._opening.set_result(None)

    async def _chunk(self, report: SessionReport) -> None:
        assert self._writer is not None
        self._newest = report.chunk
        self._home.chunk(report)
        now = time.monotonic
        arrived, frames = now(), report.frames
        batches = None if frames is None else await self._writer.write(frames)
        self.stream.put(
            ReadyChunk(
                request_id=f"{self.id}_{uuid.uuid4().hex}",
                report=replace(report, frames=None),
                batches=batches,
                frames=0 if frames is None else len(frames),
                raw_bytes=0 if frames is None else frames.nbytes,
                build_seconds=now() - arrived,
                arrived=arrived,
            )
        )
        self._put = report.chunk

    def _end(self, report: SessionReport) -> None:
        self.ended = report
        if not self._opening.done():
            self._opening.set_exception(Refused(report))
            self._opening.exception()
        self.stream.hold(False)
        for owed in self._owed.values():
            self._say(replies.error(BAD_EVENT, _too_late(owed.of, report), owed.event_id))
        if self.closing is not None:
            self.stream.cut()
        self.stream.put(End(report))

    def _refused(self, report: SessionReport) -> None:
        owed = self._owed.pop(report.number, None)
        if owed is None:
            return
        if owed.fork is not None:
            owed.fork._task.cancel()
        if owed.of in GOES_BACK:
            self.stream.hold(self._going_back)
            self._taken(self._done)
        self._say(replies.error(BAD_EVENT, Refused(report), owed.event_id))

    def _answered(self, report: SessionReport) -> None:
        owed = self._owed.pop(report.number, None)
        if owed is None:
            return
        chunk = report.values.get("chunk")
        message = replies.ack(owed.of, owed.event_id, chunk)
        if owed.of in GOES_BACK:
            self._went_back(owed, int(chunk or 0), message)
        elif owed.of == "snapshot":
            self._say(replies.snapshot(owed.event_id, report, self._home.snapshot_bytes))
        elif owed.fork is not None:
            self._home.forked(owed.fork)
            self._say(replies.forked(owed.event_id, chunk, owed.fork.id, owed.fork.token))
        else:
            self._say(message)

    def _went_back(self, owed: Owed, chunk: int, message: Mapping[str, Any]) -> None:
        further = chunk - owed.target if owed.of == "rewind" else 0
        self._done, self._newest, self._put = None, chunk - 1, chunk - 1
        if owed.of == "reset":
            self._first = 0
        self._begun = min(self._begun, chunk - 1)
        if further > 0:
            # The engine had gone on while the command was on its way.
            self.stream.rewound(chunk, None)
            self._command("rewind", {"chunks": further}, owed)
        else:
            self.stream.rewound(chunk, message)
        self.stream.hold(self._going_back)

    def _say(self, message: Mapping[str, Any]) -> None:
        if self.tell is not None:
            self.tell(message)

    # What follows may be called by the socket's tasks, too.

    def _command(
        self, kind: CommandKind, values: Mapping[str, Any], owed: Owed | None = None
    ) -> None:
        number = next(self._numbers)
        if owed is None and kind == "event":
            number = 0  # nobody waits for the answer
        if owed is not None:
            self._owed[number] = owed
            self.stream.hold(self._going_back)
        try:
            self._home.engine.command(SessionCommand(self.id, kind, number, values))
        except BaseException:
            self._owed.pop(number, None)
            self.stream.hold(self._going_back)
            raise

    @property
    def _going_back(self) -> bool:
        return any(owed.of in GOES_BACK for owed in self._owed.values())

    def _let_go(self) -> None:
        try:
            self._command("close", {})
        except SgldError as error:  # the engine is gone, and the session with it
            log.info("a session could not be closed", session=self.id, reason=str(error))
            self._task.cancel()

    def _received(self, request_id: str) -> None:
        if not request_id.startswith(f"{self.id}_"):
            text = "is not that of a chunk of this session."
            raise ParameterError([Problem("request_id", request_id[:80], text)])
        self._taken(self.stream.received(request_id))

    def _taken(self, chunk: int | None) -> None:
        if chunk is None:
            return
        if self._going_back:
            # The engine may be back already, and would take it for one of the new chunks.
            self._done = chunk
            return
        self._done = None
        if self.ended is None:
            self._home.engine.command(SessionCommand(self.id, "taken", 0, {"chunk": chunk}))

    def _rewind(self, event_id: int | None, chunks: int) -> None:
        most = self.wanted.settings.rewind_chunks
        if chunks > most:
            remedy = "Ask for more with rewind_chunks in init."
            text = f"this session can go back by {most} chunks at most."
            raise ParameterError([Problem("chunks", chunks, text, remedy)])
        target = self._begun + 1 - chunks
        if target < int(self.opened.get("chunk", 0)):
            first = int(self.opened.get("chunk", 0))
            text = f"only {self._begun + 1 - first} chunks have been sent."
            raise ParameterError([Problem("chunks", chunks, text)])
        values = {"chunks": self._newest + 1 - target}
        self._command("rewind", values, Owed("rewind", event_id, target=target))

    def _fork(self, event_id: int | None) -> None:
        if not self.resumable:
            raise SgldError(
                "a fork needs --session-grace-seconds above 0, for it waits for its client.",
                code="unsupported_feature",
            )
        fork = LiveSession(self._home, self.wanted)
        fork.parameters, fork._first = self.parameters, self._first
        try:
            self._command("fork", {"id": fork.id}, Owed("fork", event_id, fork=fork))
        except BaseException:
            fork._task.cancel()
            raise


def _too_late(kind: str, report: SessionReport) -> SgldError:
    """Why nothing is done any more after the end `report`."""
    if kind == "step" and report.values.get("reason") == "complete":
        return SgldError("the last chunk has been made.", code="session_complete")
    return SgldError("the session has ended.", code="session_ended")


def _fault(error: Exception) -> SessionReport:
    if isinstance(error, SgldError):
        return SessionReport("", "closed", code=error.code, message=str(error))
    text = "the server made a mistake."
    return SessionReport("", "closed", code="internal_error", message=text)
