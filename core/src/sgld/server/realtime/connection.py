"""One socket: its messages until a session is open, then the session on it, then its end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import structlog
from starlette.websockets import WebSocket

from sgld.api.errors import SgldError
from sgld.media.fetch import fetch_media
from sgld.media.images import load_image
from sgld.server.realtime import replies
from sgld.server.realtime.channel import FAULT, NORMAL, POLICY, RESTART, Channel, Close, Left
from sgld.server.realtime.live import LiveSession
from sgld.server.realtime.messages import event_id_of
from sgld.server.realtime.opening import (
    Resume,
    Wanted,
    check_adapter,
    fit_first_frame,
    read_init,
    read_resume,
)
from sgld.server.realtime.replies import BAD_EVENT, BAD_INIT, OCCUPIED, Refused
from sgld.server.realtime.serving import Begin, Serving
from sgld.server.realtime.sessions import BUSY, TAKEN_OVER
from sgld.server.realtime.wire import MessageError, type_of
from sgld.server.services import Services

log = structlog.get_logger("sgld.server")

POLL_SECONDS: Final = 0.2


class Connection:
    """A client's socket, already accepted."""

    def __init__(self, services: Services, socket: WebSocket) -> None:
        self._services = services
        self._sessions = services.sessions
        self._channel = Channel(socket)
        self._stop: asyncio.Future[Close] = asyncio.get_running_loop().create_future()
        self._free = asyncio.Event()
        self._done = asyncio.Event()

    async def run(self) -> None:
        """Serve the client until it leaves or is sent away; never raises for what it does."""
        close: Close | None = None
        try:
            self._sessions.enter(self)
            session, begin = await self._open()
            await self._serve(session, begin)
        except Left:
            pass
        except Close as reason:
            close = reason
        except Refused as refusal:
            close = Close(RESTART, refusal.code, replies.error(BAD_INIT, refusal))
        except Exception as error:
            log.exception("a realtime socket failed")
            close = Close(FAULT, "internal_error", replies.error(BAD_EVENT, error))
        finally:
            self._free.set()
            try:
                if close is not None:
                    await self._channel.close(close)
            finally:
                await self._channel.free()
                self._sessions.leave(self)
                self._done.set()

    async def stop(self, code: int, error_code: str, reason: str) -> None:
        """Have the socket closed with an error; returns when its session is free."""
        if not self._stop.done():
            message = replies.error(BAD_EVENT, SgldError(reason, code=error_code))
            self._stop.set_result(Close(code, error_code, message))
        await self._free.wait()

    async def gone(self) -> None:
        """Wait until the socket is closed."""
        await self._done.wait()

    # Before a session is open.

    async def _open(self) -> tuple[LiveSession, Begin]:
        """Read messages until one opens a session; says what is wrong with the others."""
        left = self._services.options.session_init_seconds
        now = time.monotonic
        while True:
            begin = now()
            try:
                message = await self._beside_stop(self._channel.message(left))
            except TimeoutError:
                reason = SgldError("no session was opened in time.", code="init_timeout")
                error = replies.error(BAD_INIT, reason)
                raise Close(POLICY, "init_timeout", error) from None
            except MessageError as error:
                left -= now() - begin
                await self._channel.send(replies.error(BAD_INIT, error))
                continue
            left -= now() - begin
            try:
                return await self._beside_stop(self._watched(self._opened(message)))
            except Refused as refusal:
                if refusal.code == BUSY:
                    raise Close(POLICY, BUSY, replies.error(OCCUPIED, refusal)) from None
                if refusal.code == "server_stopping":
                    raise
                await self._channel.send(replies.error(BAD_INIT, refusal, event_id_of(message)))
            except (Left, Close):
                raise
            except Exception as error:
                if not isinstance(error, SgldError):
                    log.exception("an init message failed")
                await self._channel.send(replies.error(BAD_INIT, error, event_id_of(message)))

    async def _opened(self, message: Mapping[str, Any]) -> tuple[LiveSession, Begin]:
        model = check_adapter(self._sessions.model, self._services.name)
        kind = type_of(message)
        if kind != "init":
            raise MessageError(
                f"{kind[:40]!r} came before a session was open.",
                code="not_initialised",
                remedy="Send init first.",
            )
        resume = read_resume(message)
        if resume is not None:
            return await self._resumed(resume), Begin(True, event_id_of(message))
        wanted = read_init(message, model)
        frame = await self._first_frame(wanted)
        params = fit_first_frame(wanted, frame)
        while True:
            await self._ready(wanted.protocol)
            try:
                session = await self._sessions.open(wanted, params, frame)
            except Refused as refusal:
                if refusal.code != "not_ready":
                    raise
                # The engine was lost, and the server has not seen it yet.
                await asyncio.sleep(POLL_SECONDS)
                continue
            await self._attach(session)
            return session, Begin(False, event_id_of(message))

    async def _resumed(self, resume: Resume) -> LiveSession:
        session = self._sessions.find(resume.token)
        await self._attach(session)
        try:
            session.stream.resume(resume.last_request_id)
        except SgldError:
            self._sessions.detach(session)
            self._sessions.enter(self)
            raise
        return session

    async def _attach(self, session: LiveSession) -> None:
        try:
            await self._sessions.attach(session, self)
        except BaseException:
            self._sessions.detach(session)
            raise

    async def _first_frame(self, wanted: Wanted) -> npt.NDArray[np.uint8] | None:
        source, field = wanted.first_frame, "first_frame"
        if source is None:
            return None
        if isinstance(source, str):
            source = await fetch_media(source, policy=self._services.policy, field=field)
        limit = self._services.limits.max_input_pixels
        return await asyncio.to_thread(load_image, source, max_pixels=limit, field=field)

    async def _ready(self, protocol: int) -> None:
        """Wait until the model is ready; a client of protocol 2 hears why it has to wait."""
        ready, told = self._services.readiness, ""
        while not ready.ready:
            if ready.failed:
                raise SgldError(f"not ready: {ready.reason}.", code="not_ready")
            if protocol == 2 and ready.reason != told:
                told = ready.reason
                await self._channel.send(replies.waiting(told, ready.retry_after))
            await asyncio.sleep(POLL_SECONDS)

    async def _watched(self, opening: Any) -> Any:
        """Open a session, but not for a client that leaves meanwhile. A message that comes too
        early is read when the session is open."""
        task = asyncio.ensure_future(opening)
        try:
            await asyncio.wait(
                [task, self._channel.receiving()], return_when=asyncio.FIRST_COMPLETED
            )
            if not task.done() and (left := self._channel.left) is not None:
                raise left
            return await task
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def _beside_stop(self, work: Any) -> Any:
        """The result of `work`, unless the socket is told to stop before."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait([task, self._stop], return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise self._stop.result()
            return await task
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    # While a session is open.

    async def _serve(self, session: LiveSession, begin: Begin) -> None:
        over = False
        try:
            await Serving(self._services, self._channel, session, self._stop).run(begin)
        except Left as left:
            over = left.code == NORMAL
            raise
        except Close as close:
            # What the server itself ends is over, but for a client that went on elsewhere.
            over = close.reason != TAKEN_OVER
            raise
        finally:
            if over or not session.resumable or session.stream.delivered:
                await self._sessions.end(session)
            else:
                self._sessions.detach(session)
