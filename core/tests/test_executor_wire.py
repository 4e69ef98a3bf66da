"""Messages and arrays between two processes: round trips, refusals, nothing left open."""

from __future__ import annotations

import gc
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sgld.engine.executors.shared import mapped, share
from sgld.engine.executors.wire import (
    HEADER,
    INLINE_BYTES,
    MAGIC,
    MAX_PAYLOAD,
    Wire,
    WireError,
)
from sgld.messages import Event, Output, Request
from sgld.realtime.messages import SessionCommand, SessionOptions, SessionReport, SessionRequest

Pair = tuple[Wire, Wire, socket.socket]


def descriptors() -> dict[str, str]:
    """Open descriptors of this process and what they lead to."""
    found: dict[str, str] = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[name] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue  # the listing's own
    return found


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Two ends, and the second one's socket for raw bytes; afterwards nothing is left open."""
    gc.collect()
    before = descriptors()
    one, two = socket.socketpair()
    yield Wire(one), Wire(two), two
    one.close()
    two.close()
    gc.collect()
    assert descriptors() == before


def cross(pair: Pair, value: Any) -> Any:
    left, right, _ = pair
    sender = threading.Thread(target=left.send, args=({"kind": "test", "value": value},))
    sender.start()
    message = right.receive()
    sender.join()
    assert set(message) == {"kind", "value"}
    return message["value"]


ARRAYS = [
    np.arange(24, dtype=np.uint8).reshape(2, 4, 3),
    np.arange(INLINE_BYTES + 1, dtype=np.uint8),
    np.linspace(-1, 1, 50_000, dtype=np.float32).reshape(5, 100, 100),
    np.arange(90_000, dtype=np.float32).reshape(300, 300)[::2, ::3],
    np.asfortranarray(np.arange(90_000, dtype=np.int16).reshape(300, 300)),
    np.zeros((0, 4, 3), np.uint8),
    np.array(2.5, dtype=np.float64),
    np.array([np.nan, np.inf, -0.0] * 9000),
    np.arange(6, dtype=">i4"),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda a: f"{a.dtype.str}{list(a.shape)}")
def test_arrays_cross_bit_for_bit(pair: Pair, array: np.ndarray[Any, Any]) -> None:
    got = cross(pair, array)
    assert got.dtype == array.dtype
    assert got.shape == array.shape
    assert got.tobytes() == array.tobytes()
    assert got.flags.writeable or got.size == 0
    del got


def test_what_arrives_is_a_copy_of_its_own(pair: Pair) -> None:
    array = np.zeros(100_000, np.uint8)
    first, second = cross(pair, [array, array])
    first[:] = 7
    assert array.max() == 0
    assert second.max() == 0
    del first, second


def test_records_cross(pair: Pair) -> None:
    image = np.arange(60 * 60 * 3, dtype=np.uint8).reshape(60, 60, 3)
    request = Request(
        "r", {"prompt": "Ein Käse 🧀", "sizes": [1, 2.5, None]}, (1, 2**32 - 1), (image,), True, 3
    )
    got = cross(pair, request)
    assert isinstance(got, Request)
    assert (got.id, got.params, got.seeds) == (request.id, request.params, request.seeds)
    assert (got.want_latents, got.preview_every, got.profile) == (True, 3, False)
    assert isinstance(got.images, tuple)
    assert np.array_equal(got.images[0], image)
    output = Output(
        1, 7, "video", image[None], 16, MappingProxyType({"seed": 7}), None, {"total": 1.5}
    )
    event = cross(pair, Event("output", "r", 1, seconds=0.25, output=output))
    assert isinstance(event, Event)
    assert event.output is not None
    assert (event.kind, event.index, event.seconds) == ("output", 1, 0.25)
    assert event.output.parameters == {"seed": 7}
    assert event.output.timings == {"total": 1.5}
    assert np.array_equal(event.output.frames, image[None])
    masked = cross(pair, Request("r", {}, (1,), (image,), previews=2, mask=image[:, :, 0] > 9))
    assert masked.previews == 2
    assert masked.mask.dtype == np.bool_
    assert np.array_equal(masked.mask, image[:, :, 0] > 9)
    preview = cross(pair, Event("preview", "r", step=2, total=4, frames=image[None]))
    assert (preview.step, preview.latents) == (2, None)
    assert np.array_equal(preview.frames, image[None])
    del got, event


def test_sessions_cross_with_pictures_and_long_bytes(pair: Pair) -> None:
    image = np.arange(90 * 100 * 3, dtype=np.uint32).astype(np.uint8).reshape(90, 100, 3)
    options = SessionOptions(max_chunks=3, on_full="drop")
    events = (("camera_actions", {"actions": [["w"], []]}, None), ("prompt", {"prompt": "x"}, 7))
    for size in (0, 9, 100_000):
        request = SessionRequest(
            "s", "world", {"prompt": "p"}, 3, (image,), events, options, bytes(size)
        )
        command = cross(pair, SessionCommand("s", "open", 4, {"request": request}))
        got = command.values["request"]
        assert (command.kind, command.number, got.options) == ("open", 4, options)
        assert np.array_equal(got.images[0], image)
        assert [tuple(row) for row in got.events] == list(events)
        assert got.snapshot == bytes(size)
    data = bytes(range(256)) * 400
    report = cross(
        pair,
        SessionReport("s", "answer", 5, 2, image[None], 9, {"snapshot": data, "bytes": 3}, "c"),
    )
    assert report.values == {"snapshot": data, "bytes": 3}
    assert type(report.values["snapshot"]) is bytes
    assert (report.number, report.chunk, report.event_id, report.code) == (5, 2, 9, "c")
    assert np.array_equal(report.frames, image[None])
    del command, got, report


@pytest.mark.parametrize("value", [object(), np.array([object()]), 2**70, {"a": {1, 2}}])
def test_what_cannot_cross_is_refused_before_anything_is_sent(pair: Pair, value: Any) -> None:
    left, right, _ = pair
    with pytest.raises((TypeError, ValueError, OverflowError)):
        left.send({"kind": "test", "fine": np.zeros(100_000), "value": value})
    assert not right.readable(0)
    assert cross(pair, 1) == 1


def test_too_many_arrays_are_refused(pair: Pair) -> None:
    with pytest.raises(ValueError, match="at most 200 arrays"):
        pair[0].send({"kind": "test", "value": [np.zeros(INLINE_BYTES + 1, np.uint8)] * 201})


def test_many_senders_do_not_mix(pair: Pair) -> None:
    left, right, _ = pair
    arrays = [np.full(40_000, number, np.uint8) for number in range(8)]

    def send(number: int) -> None:
        for _ in range(20):
            left.send({"kind": "test", "number": number, "array": arrays[number]})

    senders = [threading.Thread(target=send, args=(number,)) for number in range(8)]
    for sender in senders:
        sender.start()
    for _ in range(160):
        message = right.receive()
        assert np.array_equal(message["array"], arrays[message["number"]])
    for sender in senders:
        sender.join()
    del message


def frame(payload: bytes, count: int = 0, magic: bytes = MAGIC, length: int | None = None) -> bytes:
    return HEADER.pack(magic, count, len(payload) if length is None else length) + payload


def packed(value: Any) -> bytes:
    data = msgpack.packb(value)
    assert data is not None
    return data


def array_of(*parts: Any) -> bytes:
    return packed({"kind": "x", "a": msgpack.ExtType(1, packed(list(parts)))})


MALFORMED = {
    "magic": frame(b"", magic=b"HTTP"),
    "too long": frame(b"", length=MAX_PAYLOAD + 1),
    "no msgpack": frame(b"\xc1"),
    "rest": frame(packed({"kind": "x"}) + b"\x00"),
    "no mapping": frame(packed([1, 2])),
    "no kind": frame(packed({"sort": "x"})),
    "kind": frame(packed({"kind": 5})),
    "extension": frame(packed({"kind": "x", "a": msgpack.ExtType(77, b"")})),
    "event": frame(packed({"kind": "x", "a": msgpack.ExtType(4, packed({"nonsense": 1}))})),
    "output": frame(packed({"kind": "x", "a": msgpack.ExtType(3, b"\xff")})),
    "array shape": frame(array_of("|u1", [4], b"123")),
    "negative": frame(array_of("|u1", [-1, -3], b"123")),
    "objects": frame(array_of("|O", [1], b"12345678")),
    "dtype": frame(array_of("nonsense", [1], b"1")),
    "descriptor": frame(array_of("|u1", [4], 0)),
    "missing descriptors": frame(packed({"kind": "x"}), count=1),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_messages_are_refused(pair: Pair, name: str) -> None:
    left, _, raw = pair
    raw.sendall(MALFORMED[name])
    with pytest.raises(WireError):
        left.receive()


@given(data=st.binary(max_size=200), framed=st.booleans())
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_bytes_are_a_message_or_refused(data: bytes, framed: bool) -> None:
    one, two = socket.socketpair()
    with one, two:
        two.sendall(frame(data) if framed else data)
        two.close()
        try:
            message = Wire(one).receive()
        except (WireError, EOFError):
            return
        assert isinstance(message["kind"], str)


def send_with_memory(raw: socket.socket, size: int, shape: list[int], place: int = 0) -> None:
    fd = os.memfd_create("test")
    os.ftruncate(fd, size)
    data = frame(array_of("|u1", shape, place), count=1)
    socket.send_fds(raw, [data[: HEADER.size]], [fd])
    raw.sendall(data[HEADER.size :])
    os.close(fd)


@pytest.mark.parametrize(("size", "shape"), [(10, [11]), (0, [0]), (0, [1]), (4096, [2**40])])
def test_memory_smaller_than_it_says_is_refused(pair: Pair, size: int, shape: list[int]) -> None:
    send_with_memory(pair[2], size, shape)
    with pytest.raises(WireError, match="smaller than"):
        pair[0].receive()


def test_descriptors_that_no_array_uses_are_closed(pair: Pair) -> None:
    left, _, raw = pair
    fd = os.memfd_create("test")
    socket.send_fds(raw, [frame(packed({"kind": "x"}), count=1)[: HEADER.size]], [fd])
    os.close(fd)
    raw.sendall(packed({"kind": "x"}))
    assert left.receive() == {"kind": "x"}


def test_the_end_of_the_peer_is_an_end(pair: Pair) -> None:
    left, _, raw = pair
    raw.sendall(frame(b"12345", length=50))
    raw.close()
    with pytest.raises(EOFError):
        left.receive()
    with pytest.raises(ConnectionError):
        left.send({"kind": "x"})


def test_unread_arrays_vanish_with_the_connection(pair: Pair) -> None:
    before = list(Path("/dev/shm").iterdir())
    pair[0].send({"kind": "x", "array": np.zeros(10_000_000, np.uint8)})
    assert list(Path("/dev/shm").iterdir()) == before


def test_memory_lives_as_long_as_its_array() -> None:
    array = np.arange(10_000_000, dtype=np.float32)
    before = descriptors()
    got = mapped(share(array), array.dtype.str, array.shape)
    part = got[5:8]
    del got
    gc.collect()
    assert part.tolist() == [5.0, 6.0, 7.0]
    del part
    gc.collect()
    assert descriptors() == before


def test_a_long_video_crosses_fast(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    frames = np.random.default_rng(0).integers(0, 255, (81, 480, 832, 3), np.uint8)
    best = float("inf")
    for _ in range(3):
        begin = time.perf_counter()
        got = cross(pair, frames)
        total = int(got[:, ::8, ::8].sum())  # touches pages, as an encoder will
        best = min(best, time.perf_counter() - begin)
        assert total == int(frames[:, ::8, ::8].sum())
        del got
    speed = frames.nbytes / best / 1e6
    with capsys.disabled():
        print(f"\n81x480x832 crossed in {best * 1000:.0f} ms: {speed:.0f} MB/s")
    assert speed > 100
