"""A realtime client without a network: speaks ASGI with the application, in its own loop."""

from __future__ import annotations

import asyncio
from typing import Any

import msgpack

PATH = "/v1/realtime_video/generate"
SECONDS = 30


class AsgiSocket:
    """One socket. `room` messages of the server fit between it and this client."""

    def __init__(self, app: Any, *, room: int = 64) -> None:
        self._app = app
        self._in: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._out: asyncio.Queue[dict[str, Any]] = asyncio.Queue(room)
        self._gone = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> AsgiSocket:
        scope = {
            "type": "websocket", "path": PATH, "raw_path": PATH.encode(), "query_string": b"",
            "headers": [(b"host", b"test")], "subprotocols": [], "scheme": "ws",
            "server": ("test", 80), "client": ("test", 1), "root_path": "", "state": {},
            "asgi": {"version": "3.0", "spec_version": "2.4"}, "http_version": "1.1",
            "extensions": {"websocket.http.response": {}},
        }  # fmt: skip
        self._in.put_nowait({"type": "websocket.connect"})
        self._task = asyncio.create_task(self._app(scope, self._in.get, self._send))
        assert (await self._next())["type"] == "websocket.accept"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.drop()

    async def _send(self, message: dict[str, Any]) -> None:
        gone = asyncio.create_task(self._gone.wait())
        put = asyncio.create_task(self._out.put(message))
        try:
            await asyncio.wait([gone, put], return_when=asyncio.FIRST_COMPLETED)
            if not put.done():
                raise OSError("the client is gone")
        finally:
            gone.cancel()
            put.cancel()

    async def _next(self) -> dict[str, Any]:
        async with asyncio.timeout(SECONDS):
            return await self._out.get()

    def raw(self, data: bytes | str) -> None:
        """Send a frame."""
        key = "text" if isinstance(data, str) else "bytes"
        self._in.put_nowait({"type": "websocket.receive", key: data})

    def say(self, **message: Any) -> None:
        """Send a map."""
        self.raw(msgpack.packb(message) or b"")

    async def receive(self) -> dict[str, Any]:
        """The next map, or `{"type": "closed", "code": …}`; bare payloads are let pass."""
        message = await self._next()
        if message["type"] == "websocket.close":
            return {"type": "socket_closed", "code": message.get("code", 1000)}
        found = msgpack.unpackb(message["bytes"])
        if found["type"].endswith("_header"):
            await self._next()
        return found

    async def until(self, *kinds: str) -> dict[str, Any]:
        """The next map of one of these types; others are let pass."""
        while (message := await self.receive())["type"] not in kinds:
            pass
        return message

    async def drop(self, code: int = 1006) -> None:
        """Be gone, and wait for the application to have noticed."""
        self._in.put_nowait({"type": "websocket.disconnect", "code": code})
        self._gone.set()
        assert self._task is not None
        async with asyncio.timeout(SECONDS):
            await self._task
