"""A client's socket as maps in and maps out, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from typing import Any, Final

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from sgld.server.realtime.batches import SPLIT_BYTES
from sgld.server.realtime.replies import Sending
from sgld.server.realtime.wire import MessageError, pack, unpack

CLOSE_SECONDS: Final = 5.0
"""How long a client may take to receive a last message."""
LEFT_SECONDS: Final = 1.0
NORMAL, POLICY, FAULT, RESTART = 1000, 1008, 1011, 1012
"""Codes with which a socket is closed."""


class Left(Exception):
    """The client is gone; `code` as it closed the socket."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Close(Exception):
    """The socket is to be closed, after a last message if there is one."""

    def __init__(self, code: int, reason: str, message: Mapping[str, Any] | None = None) -> None:
        super().__init__(reason)
        self.code, self.reason, self.message = code, reason, message


class Channel:
    """Sends and receives on an accepted socket.

    Any task may send; header and payload are sent under a lock, so nothing parts them. One task
    receives at a time.
    """

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket
        self._lock = asyncio.Lock()
        self._torn = False
        """Whether a header was sent whose payload was not."""
        self._receiving: asyncio.Task[Any] | None = None
        self._left: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """The code with which the client has left."""

    @property
    def left(self) -> Left | None:
        """How the client left; None while it is here."""
        return Left(self._left.result()) if self._left.done() else None

    def receiving(self) -> asyncio.Task[Any]:
        """Done when there is a message, or when the client has left; asked for once."""
        if self._receiving is None:
            self._receiving = asyncio.ensure_future(self._next())
        return self._receiving

    async def _next(self) -> Any:
        received = await self._socket.receive()
        if received["type"] == "websocket.disconnect":
            self._left.set_result(received.get("code") or 1006)
        return received

    async def message(self, timeout: float | None) -> Mapping[str, Any]:
        """The next map of the client.

        Raises:
            MessageError: what came is none.
            TimeoutError: nothing came.
            Left: the client has left.
        """
        receiving = self.receiving()
        done, _ = await asyncio.wait([receiving], timeout=timeout)
        if not done:
            raise TimeoutError
        if (left := self.left) is not None:
            raise left
        self._receiving = None
        data = receiving.result().get("bytes")
        if data is None:
            remedy = "Send MessagePack in binary frames."
            raise MessageError("text frames are not taken.", code="text_frame", remedy=remedy)
        return unpack(data)

    async def send(
        self,
        message: Mapping[str, Any],
        payload: bytes | None = None,
        sending: Sending | None = None,
    ) -> None:
        """Send a map, with its payload inside or behind it."""
        if payload is None and "payload" in message:
            payload = message["payload"]
            message = {name: value for name, value in message.items() if name != "payload"}
        parts = _parts(message, payload)
        now = time.monotonic
        async with self._lock:
            for number, part in enumerate(parts):
                begin = now()
                self._torn = number > 0
                try:
                    await self._socket.send_bytes(part)
                except (WebSocketDisconnect, RuntimeError, OSError):
                    raise await self._gone() from None
                self._torn = False
                if sending is not None:
                    sending.bytes += len(part)
                    if number:
                        sending.payloads += now() - begin
                    else:
                        sending.maps += now() - begin

    async def _gone(self) -> Left:
        """How the client left, now that nothing can be sent to it any more."""
        self.receiving()
        await asyncio.wait([self._left], timeout=LEFT_SECONDS)
        return Left(self._left.result() if self._left.done() else 1006)

    async def close(self, close: Close) -> None:
        """Say why and close; a client that does not read is left to the transport."""
        with contextlib.suppress(Left, WebSocketDisconnect, RuntimeError, OSError, TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                if close.message is not None and not self._torn:
                    await self.send(close.message)
                if self._socket.application_state is WebSocketState.CONNECTED:
                    await self._socket.close(close.code, close.reason)

    async def free(self) -> None:
        """Let go of the socket."""
        if self._receiving is not None:
            self._receiving.cancel()
            await asyncio.gather(self._receiving, return_exceptions=True)


def _parts(message: Mapping[str, Any], payload: bytes | None) -> list[bytes]:
    if payload is None:
        return [pack(message)]
    if len(payload) < SPLIT_BYTES:
        return [pack({**message, "payload": payload})]
    return [pack({**message, "type": f"{message['type']}_header"}), payload]
