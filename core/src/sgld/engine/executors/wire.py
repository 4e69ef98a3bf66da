"""Messages between an executor and its engine process: msgpack over a Unix socket pair.

A message is a mapping with a `kind`. Arrays inside it, and long bytes in a record, travel in shared
memory, small ones inline; nothing is pickled, so a broken or hostile peer can at worst send a
message that is refused.

    wire.send({"kind": "event", "event": event})
    message = wire.receive()

Frame: magic, number of descriptors, length of the payload; then the payload. Torch-free.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from typing import Any, Final, cast

import msgpack
import numpy as np

from sgld.engine.executors.shared import Array, check_kind, mapped, nbytes, share
from sgld.messages import Event, Output, Request
from sgld.realtime.messages import SessionCommand, SessionOptions, SessionReport, SessionRequest

HEADER: Final = struct.Struct(">4sBI")
MAGIC: Final = b"sgl1"
MAX_PAYLOAD: Final = 64 * 2**20
MAX_ARRAYS: Final = 200
"""The kernel passes at most 253 descriptors at once."""
READ_BYTES: Final = 64 * 1024
"""Asked for at a time: several small messages come with one call of the kernel."""
INLINE_BYTES: Final = 16 * 1024
"""Smaller arrays are cheaper inside the message than in memory of their own."""

ARRAY: Final = 1
BLOB: Final = 9
RECORDS: Final[Mapping[int, type[Any]]] = {
    2: Request,
    3: Output,
    4: Event,
    5: SessionOptions,
    6: SessionRequest,
    7: SessionCommand,
    8: SessionReport,
}
TUPLES: Final[Mapping[type[Any], tuple[str, ...]]] = {
    Request: ("seeds", "images"),
    SessionRequest: ("images", "events"),
}
"""Fields that are tuples: msgpack knows lists only."""
CODES: Final = {record: code for code, record in RECORDS.items()}
CLOEXEC: Final[int] = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


class WireError(Exception):
    """What arrived is no message of ours; the connection cannot be used any more."""


class Wire:
    """One end of the connection. Any thread may send; one thread receives."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._sending = threading.Lock()
        self._data = bytearray()
        self._fds: list[int] = []

    def send(self, message: Mapping[str, Any]) -> None:
        """Send one message; waits while the peer is behind.

        Raises:
            ValueError, TypeError, OverflowError: it holds what cannot cross; nothing was sent.
            OSError: the peer is gone, or there is no memory for an array.
        """
        packing = _Packing()
        try:
            payload = packing.pack(message)
            header = HEADER.pack(MAGIC, len(packing.fds), len(payload))
            with self._sending:
                # The descriptors ride on the header alone: its exact size is read in one go, so
                # they always come with the message they belong to.
                if packing.fds:
                    socket.send_fds(self._socket, [header], packing.fds)
                    self._socket.sendall(payload)
                else:
                    self._socket.sendall(header + payload)
        finally:
            packing.close()

    def readable(self, timeout: float) -> bool:
        """Whether a message, or the end, arrives within `timeout` seconds."""
        if self._data:
            return True
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(timeout * 1000))

    def receive(self) -> dict[str, Any]:
        """The next message; waits for it.

        Raises:
            EOFError: the peer is gone.
            WireError: what came is no message.
        """
        fds: list[int] = []
        try:
            header = self._exactly(HEADER.size, "the peer closed the connection")
            magic, count, length = HEADER.unpack(header)
            if magic != MAGIC or length > MAX_PAYLOAD:
                raise WireError(f"a message began with {header!r}")
            if count > len(self._fds):
                raise WireError(f"a message with {count} arrays brought {len(self._fds)}")
            fds, self._fds = self._fds[:count], self._fds[count:]
            message = _unpack(self._exactly(length), fds)
            if self._fds and not self._data:
                raise WireError(f"a message with {count} arrays brought {count + len(self._fds)}")
            return message
        except ConnectionError as error:
            raise EOFError(str(error)) from None
        finally:
            for fd in fds:
                os.close(fd)

    def close(self) -> None:
        """Close this end; the peer's `receive` raises EOFError. Safe to call again."""
        self._socket.close()
        while self._fds:
            os.close(self._fds.pop())

    def shut(self) -> None:
        """End the connection while another thread may be waiting in `receive`."""
        with suppress(OSError):  # the peer is gone or the socket is closed: what was wanted
            self._socket.shutdown(socket.SHUT_RDWR)

    def _exactly(self, size: int, ended: str = "the peer closed within a message") -> bytes:
        """The next `size` bytes. Descriptors that came with them, or with what follows, are kept in
        their order: they ride on headers, so a message's own are there once its header is."""
        while len(self._data) < size:
            wanted = max(READ_BYTES, size - len(self._data))
            data, fds, _, _ = socket.recv_fds(self._socket, wanted, MAX_ARRAYS, CLOEXEC)
            self._fds.extend(fds)
            if len(self._fds) > 2 * MAX_ARRAYS:
                raise WireError(f"{len(self._fds)} arrays came that no message speaks of")
            if not data:
                raise EOFError(ended)
            self._data += data
        taken = bytes(memoryview(self._data)[:size])
        del self._data[:size]
        return taken


class _Blob:
    """Bytes that are too many for the message itself."""

    def __init__(self, data: bytes) -> None:
        self.data = data


def _wrapped(value: Any) -> Any:
    """A record's field, or the values of a mapping in one, with long bytes set apart."""
    if isinstance(value, bytes) and len(value) > INLINE_BYTES:
        return _Blob(value)
    if isinstance(value, Mapping):
        return {key: _wrapped(member) for key, member in value.items()}
    return value


class _Packing:
    """Turns one message into bytes and the descriptors that belong to it."""

    def __init__(self) -> None:
        self.fds: list[int] = []

    def pack(self, value: Any) -> bytes:
        payload = cast("bytes", msgpack.packb(value, default=self._encode))
        if len(payload) > MAX_PAYLOAD:
            raise ValueError(f"a message of {len(payload)} bytes is too large to send")
        return payload

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)
        self.fds = []

    def _encode(self, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return msgpack.ExtType(ARRAY, self._array(value))
        if type(value) in CODES:
            plain = {field.name: _wrapped(getattr(value, field.name)) for field in fields(value)}
            return msgpack.ExtType(CODES[type(value)], self.pack(plain))
        if isinstance(value, _Blob):
            array = np.frombuffer(value.data, np.uint8)
            return msgpack.ExtType(BLOB, self._array(array))
        if isinstance(value, Mapping):
            return dict(value)
        raise TypeError(f"{type(value).__name__} cannot cross to another process")

    def _array(self, array: Array) -> bytes:
        dtype = check_kind(array.dtype)
        if array.nbytes <= INLINE_BYTES:
            return self.pack([dtype.str, array.shape, array.tobytes()])
        if len(self.fds) == MAX_ARRAYS:
            raise ValueError(f"a message holds at most {MAX_ARRAYS} arrays")
        self.fds.append(share(array))
        return self.pack([dtype.str, array.shape, len(self.fds) - 1])


def _unpack(payload: bytes, fds: list[int]) -> dict[str, Any]:
    taken: set[int] = set()

    def decode(code: int, data: bytes) -> Any:
        if code == ARRAY:
            return _array(msgpack.unpackb(data), fds, taken)
        if code == BLOB:
            return _array(msgpack.unpackb(data), fds, taken).tobytes()
        record = RECORDS[code]
        plain = msgpack.unpackb(data, ext_hook=decode)
        plain |= {name: tuple(plain[name]) for name in TUPLES.get(record, ())}
        return record(**plain)

    try:
        message = msgpack.unpackb(payload, ext_hook=decode)
        if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
            raise WireError("a message without a kind")
        return message
    except WireError:
        raise
    except Exception as error:  # whatever is wrong with it, it is no message of ours
        raise WireError(f"a message cannot be read: {type(error).__name__}: {error}") from error


def _array(plain: Any, fds: list[int], taken: set[int]) -> Array:
    dtype, shape, place = plain
    sides = tuple(int(side) for side in shape)
    if isinstance(place, bytes):
        kind = check_kind(np.dtype(dtype))
        if len(place) != nbytes(kind, sides):
            raise WireError(f"an inline array of {len(place)} bytes says {dtype} {shape}")
        return np.frombuffer(bytearray(place), kind).reshape(sides)
    if place in taken:
        raise WireError("two arrays in one memory")
    taken.add(place)
    # A copy, because `receive` closes its own descriptors on every way out.
    return mapped(os.dup(fds[place]), dtype, sides)
