"""A session of protocol 2 that knows when what arrived. docs/realtime.md describes the messages."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import msgpack
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI
from websockets.sync.client import ClientConnection, connect

from sgld.api.errors import SgldError
from sgld.bench.figures import Arrival, Key
from sgld.server.realtime.model import ADDRESS

KIND = "camera_actions"
KEYS = ("w", "a", "s", "d")
"""Pressed one after the other, so that every key changes something."""


@contextmanager
def connected(server: str, *, key: str, patience: float, proxy: bool) -> Iterator[WorldClient]:
    """A session at `server` (ws://host:port), whose key may be empty; it ends with the block.

    Raises SgldError `no_server` when nobody answers, or not this way.
    """
    headers = {"Authorization": f"Bearer {key}"} if key else None
    with ExitStack() as stack:
        try:
            opening = connect(
                server + ADDRESS,
                max_size=None,
                compression=None,
                additional_headers=headers,
                proxy=True if proxy else None,
                open_timeout=patience,
            )
            socket = stack.enter_context(opening)
        except (OSError, InvalidHandshake, InvalidURI, TimeoutError) as error:
            raise SgldError(
                f"{server} opens no realtime session: {error}.", code="no_server"
            ) from None
        client, orderly = WorldClient(socket, patience), False
        try:
            yield client
            orderly = True
        finally:
            client.close(wait=orderly)


class WorldClient:
    """One session.

    Args:
        socket: connected.
        patience: seconds of silence after which the server counts as lost.
    """

    def __init__(self, socket: ClientConnection, patience: float) -> None:
        self._socket = socket
        self._patience = patience
        self._pending: list[dict[str, Any]] = []
        self._firsts: list[float] = []
        self._header: dict[str, Any] | None = None
        self._next_id = 1
        self.facts: dict[str, Any] = {}
        """The `session` message."""

    def close(self, *, wait: bool) -> None:
        """End the session, and with it its memory on the server; `wait` until that is done."""
        with suppress(ConnectionClosed, SgldError, TimeoutError):
            self._send({"type": "close"})
            while wait and self._message(self._patience)["type"] != "closed":
                continue

    def open(self, init: dict[str, Any]) -> dict[str, Any]:
        """Open the session and return what it is.

        Raises SgldError with the server's reason, or as `chunk` does.
        """
        self._send({"type": "init", "protocol": 2, **init})
        try:
            while (message := self._message(self._patience))["type"] != "session":
                continue
        except TimeoutError:
            raise _silent(self._patience) from None
        self.facts = message
        return message

    def press(self) -> Key:
        """Hold the next key from now on."""
        number = self._next_id
        self._next_id += 1
        held = {"actions": [KEYS[number % len(KEYS)]]}
        payload = {"mode": "state", "transitions": [held]}
        sent = time.perf_counter()
        self._send({"type": "event", "kind": KIND, "payload": payload, "event_id": number})
        return Key(number, sent)

    def step(self) -> None:
        """Ask for one chunk."""
        self._send({"type": "step"})

    def chunk(self, until: float | None = None) -> Arrival | None:
        """The next whole chunk; None if it has not come by the time `until`.

        A chunk that has come in part is kept for the next call.

        Raises:
            SgldError: what the server says, `connection_lost`, or `no_answer` after the patience.
        """
        while True:
            left = None if until is None else until - time.perf_counter()
            if left is not None and left <= 0:
                return None
            wait = self._patience if left is None else min(left, self._patience)
            try:
                message = self._message(wait)
            except TimeoutError:
                if left is not None and left <= self._patience:
                    return None
                raise _silent(self._patience) from None
            if message["type"] == "frame_batch" and message["num_frames"]:
                self._pending.append(message)
                self._firsts.append(time.perf_counter())
            elif message["type"] == "chunk_stats":
                return self._whole(message)

    def _whole(self, stats: dict[str, Any]) -> Arrival:
        batches, times = self._pending, self._firsts
        self._pending, self._firsts = [], []
        if not batches:
            raise SgldError(
                f"chunk {stats['chunk_index']} has no frames: there is nothing to measure.",
                code="no_frames",
            )
        return Arrival(
            index=stats["chunk_index"],
            event_id=batches[0].get("event_id"),
            frames=sum(batch["num_frames"] for batch in batches),
            first=times[0],
            last=times[-1],
            payload_bytes=sum(batch["total_size"] for batch in batches),
            stats=stats,
        )

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._socket.send(msgpack.packb(message) or b"")
        except ConnectionClosed as error:
            raise _lost(error) from None

    def _message(self, wait: float) -> dict[str, Any]:
        """The next map, its payload (if it travels alone) read with it.

        Raises TimeoutError; the header of a payload that is still to come is kept.
        """
        header = self._header
        if header is None:
            message = msgpack.unpackb(self._receive(wait))
            if message["type"] == "error":
                raise SgldError(
                    f"the server says: {message.get('message') or message.get('content')}",
                    code=message.get("code") or "server_error",
                )
            if not message["type"].endswith("_header"):
                return message
            self._header = header = message
        self._receive(wait)  # the frames themselves are of no interest
        self._header = None
        return header | {"type": message["type"].removesuffix("_header")}

    def _receive(self, wait: float) -> bytes:
        try:
            data = self._socket.recv(timeout=wait)
        except ConnectionClosed as error:
            raise _lost(error) from None
        if isinstance(data, str):
            raise SgldError("the server sends text: it is no realtime server of sgld.",
                            code="no_server")  # fmt: skip
        return data


def _lost(error: ConnectionClosed) -> SgldError:
    return SgldError(f"the server closed the session: {error}.", code="connection_lost")


def _silent(seconds: float) -> SgldError:
    return SgldError(
        f"the server has said nothing for {seconds:g} s.",
        code="no_answer",
        remedy="Raise --patience if a chunk may take so long.",
    )
