"""The parts of the realtime protocol on their own: messages, batches, the stream, the clock."""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast, get_args

import av
import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from sgld.api.errors import ParameterError
from sgld.realtime.adapter import Opening
from sgld.realtime.controls import MAX_PROMPT
from sgld.realtime.messages import Codes, SessionReport
from sgld.server.bodies import Limits
from sgld.server.realtime import replies
from sgld.server.realtime.batches import FrameWriter, Picture
from sgld.server.realtime.fields import SessionSettings
from sgld.server.realtime.h264 import H264Encoder, codec_string, nal_types
from sgld.server.realtime.messages import FIELDS, read_message
from sgld.server.realtime.opening import Wanted, read_resume
from sgld.server.realtime.pacing import FrameClock
from sgld.server.realtime.stream import End, Note, ReadyChunk, ResumeGap, Stream
from sgld.server.realtime.wire import MAX_DEPTH, MAX_FIELDS, MAX_OBJECTS, MessageError, pack, unpack
from sgld.testing.toy_world_params import ToyWorldAdapter

leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False),
    st.text(max_size=40),
    st.binary(max_size=300),
)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=9), inner, max_size=5)
    ),
    max_leaves=10,
)


# MessagePack.


@settings(max_examples=60)
@given(st.dictionaries(st.text(max_size=9), values, max_size=4))
def test_what_msgpack_writes_is_read(message: dict[str, Any]) -> None:
    assert unpack(cast(bytes, msgpack.packb(message))) == message
    assert unpack(pack(message)) == message


@settings(max_examples=300)
@given(st.binary(max_size=60))
def test_any_bytes_are_a_map_or_an_error(data: bytes) -> None:
    with contextlib.suppress(MessageError):
        assert isinstance(unpack(data), dict)


@settings(max_examples=100)
@given(st.dictionaries(st.text(max_size=9), values, min_size=1, max_size=3), st.data())
def test_a_message_that_is_cut_or_changed_never_fails_otherwise(
    message: dict[str, Any], data: st.DataObject
) -> None:
    whole = bytearray(cast(bytes, msgpack.packb(message)))
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(MessageError):
        unpack(bytes(whole[:cut]))
    whole[cut] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(MessageError):
        assert isinstance(unpack(bytes(whole)), dict)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "cut off"),
        (b"\xc1", "0xc1"),
        (b"\x93\x01\x02\x03", "a list"),
        (b"\xa2hi", "a text"),
        (b"\xc0", "null"),
        (b"\x05", "a number"),
        (b"\x81\xa1a", "cut off"),
        (b"\x81\x01\x02", "has a key that is a number. Keys are texts"),
        (b"\x81\xa1a\x81\xc4\x01a\x02", "has a key that is bytes"),
        (b"\x81\x90\x02", "has a key that is a list"),
        (b"\x81\x80\x02", "has a key that is a map"),
        (b"\x80\x80", "1 bytes follow"),
        (b"\x81\xa1a\xc7\x01\x01\x00", "0xc7"),
        (b"\x81\xa1a\xd6\xff\x00\x00\x00\x00", "0xd6"),
        (b"\x81\xa1a\xa1\xff", "UTF-8"),
        (b"\xdf\xff\xff\xff\xff", "cut off"),
        (b"\x81\xa1a\xdd\xff\xff\xff\xff" + b"\xc0" * 100, "cut off"),
        (b"\x81\xa1a\xc6\xff\xff\xff\xff", "cut off"),
    ],
)
def test_what_is_no_map_is_named(data: bytes, words: str) -> None:
    with pytest.raises(MessageError, match=words):
        unpack(data)


def test_a_message_has_no_more_fields_than_can_be_answered() -> None:
    """Each unknown field costs a search for the name that was meant."""
    many = pack({"type": "init"} | {f"field_{number}": 1 for number in range(MAX_FIELDS)})
    with pytest.raises(MessageError, match=f"has {MAX_FIELDS + 1} fields; at most") as caught:
        unpack(many)
    assert caught.value.code == "message_too_complex"
    assert len(unpack(pack({str(number): 1 for number in range(MAX_FIELDS)}))) == MAX_FIELDS


def test_a_long_word_is_not_compared_with_every_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A word of some megabytes would keep the event loop busy for seconds."""
    compared: list[str] = []

    def compare(word: str, *_: object, **__: object) -> list[str]:
        compared.append(word)
        return []

    monkeypatch.setattr("sgld.params.nearest.difflib.get_close_matches", compare)
    for kind in ("camera_action", "camera_actions" * 8):
        with pytest.raises(ParameterError, match="must be one of camera_actions, prompt"):
            read_message({"type": "event", "kind": kind}, ToyWorldAdapter, 2)
    assert compared == ["camera_action"]


def test_a_small_message_cannot_become_a_large_object() -> None:
    empties = b"\x81\xa1a\xdd" + (4_000_000).to_bytes(4, "big") + b"\x90" * 4_000_000
    with pytest.raises(MessageError, match=f"more than {MAX_OBJECTS}"):
        unpack(empties)
    with pytest.raises(MessageError, match=f"more than {MAX_DEPTH}"):
        unpack(b"\x81\xa1a" + b"\x91" * 5000 + b"\xc0")
    deepest = b"\x81\xa1a" + b"\x91" * (MAX_DEPTH - 2) + b"\xc0"
    assert "a" in unpack(deepest)


# Messages of an open session.


@pytest.mark.parametrize(
    ("message", "code", "field"),
    [
        ({}, "invalid_message", None),
        ({"type": 3}, "invalid_message", None),
        ({"type": "init"}, "already_initialised", None),
        ({"type": "evnt"}, "unknown_message", None),
        ({"type": "event"}, "missing_parameter", "kind"),
        ({"type": "event", "kind": "jump"}, "unknown_kind", "kind"),
        ({"type": "event", "kind": b"x"}, "unknown_kind", "kind"),
        ({"type": "event", "kind": "prompt", "payload": 3}, "invalid_parameter", "prompt"),
        ({"type": "event", "kind": "prompt", "payload": "a", "id": 3}, "unknown_parameter", "id"),
        ({"type": "event", "kind": "prompt", "payload": "a", "event_id": "3"}, "*", "event_id"),
        ({"type": "event", "kind": "prompt", "payload": "a", "event_id": True}, "*", "event_id"),
        ({"type": "event", "kind": "prompt", "payload": "a", "event_id": 2**63}, "*", "event_id"),
        ({"type": "rewind"}, "invalid_parameter", "chunks"),
        ({"type": "rewind", "chunks": 0}, "invalid_parameter", "chunks"),
        ({"type": "rewind", "chunks": True}, "invalid_parameter", "chunks"),
        ({"type": "received", "request_id": 5}, "invalid_parameter", "request_id"),
        ({"type": "pause", "chunks": 5}, "unknown_parameter", "chunks"),
    ],
)
def test_a_wrong_message_is_named(message: dict[str, Any], code: str, field: str | None) -> None:
    with pytest.raises((MessageError, ParameterError)) as caught:
        read_message(message, ToyWorldAdapter, 2)
    error = caught.value
    assert code in ("*", error.code)
    if field is not None:
        assert isinstance(error, ParameterError)
        assert error.problems[0].field == field


def test_what_is_wrong_is_said_once_and_short() -> None:
    with pytest.raises(ParameterError) as caught:
        read_message({"type": "event", "kind": "zoom"}, ToyWorldAdapter, 2)
    assert str(caught.value) == "kind='zoom': must be one of camera_actions, prompt."
    init = {"protocol": 2, "resume_token": "x", "first_frame": b"\x89PNG" * 1000}
    with pytest.raises(ParameterError, match="first_frame='4000 bytes': is not taken"):
        read_resume(init)


def test_an_error_is_short_whatever_a_client_calls_its_fields() -> None:
    name = "k" * 1_000_000
    payload = {"mode": "state", "transitions": [{"actions": []}], name: 1}
    with pytest.raises(ParameterError) as caught:
        read_message(
            {"type": "event", "kind": "camera_actions", "payload": payload}, ToyWorldAdapter, 2
        )
    said = replies.error(replies.BAD_EVENT, caught.value, 3)
    assert said["field"].startswith("camera_actions.kkk")
    assert len(pack(said)) < 4000


def test_a_prompt_event_is_no_longer_than_that_of_an_init() -> None:
    message = {"type": "event", "kind": "prompt", "payload": "a" * MAX_PROMPT}
    assert read_message(message, ToyWorldAdapter, 2).values["control"]["prompt"]
    message["payload"] += "a"
    with pytest.raises(ParameterError, match="has 32001 characters; the limit is 32000") as caught:
        read_message(message, ToyWorldAdapter, 2)
    assert caught.value.problems[0].field == "prompt"
    assert Limits().max_prompt == MAX_PROMPT


def test_protocol_1_knows_events_only() -> None:
    with pytest.raises(MessageError, match='"protocol": 2'):
        read_message({"type": "pause"}, ToyWorldAdapter, 1)
    said = read_message({"type": "event", "kind": "prompt", "payload": "b"}, ToyWorldAdapter, 1)
    assert said.event_id is None
    assert said.values == {"kind": "prompt", "control": {"prompt": "b"}}


# Quality.


@pytest.mark.parametrize(
    ("given", "format", "quality"),
    [
        ({}, "webp", 50),
        ({"output_quality": "maximum"}, "webp", 100),
        ({"output_quality": "high"}, "jpeg", 90),
        ({"output_quality": "medium"}, "jpeg", 55),
        ({"output_quality": "low"}, "webp", 35),
        ({"output_compression": 7}, "webp", 7),
        ({"output_compression": 7, "output_quality": "high"}, "webp", 7),
        ({"output_compression": 0}, "webp", 90),
        ({"output_compression": 0}, "jpeg", 95),
    ],
)
def test_quality_is_the_originals(given: dict[str, Any], format: str, quality: int) -> None:
    assert SessionSettings(realtime_output_format=format, **given).quality == quality


# Batches.


def moving(frames: int, height: int = 48, width: int = 64) -> np.ndarray:
    rows, columns = np.mgrid[0:height, 0:width]
    red = [(rows * 2 + 5 * index) % 256 for index in range(frames)]
    green = [(columns * 2 + 3 * index) % 256 for index in range(frames)]
    return np.stack([np.stack(one, -1) for one in zip(red, green, red, strict=True)]).astype(
        np.uint8
    )


def write(frames: np.ndarray, format: Any, **more: Any) -> list[Any]:
    async def run() -> list[Any]:
        with ThreadPoolExecutor(2) as threads:
            height, width = frames.shape[1:3]
            picture = Picture(format, width, height, fps=16, quality=90, **more)
            return await FrameWriter(picture, threads).write(frames)

    return asyncio.run(run())


def test_raw_frames_come_as_they_are() -> None:
    frames = moving(37)
    batches = write(frames, "raw")
    assert [batch.head["num_frames"] for batch in batches] == [16, 16, 5]
    assert b"".join(batch.payload for batch in batches) == frames.tobytes()
    assert [batch.head["is_final_frame_batch"] for batch in batches] == [False, False, True]


@pytest.mark.parametrize("format", ["webp", "jpeg"])
def test_encoded_frames_are_close(format: str) -> None:
    frames = moving(13)
    batches = write(frames, format)
    assert [batch.head["num_frames"] for batch in batches] == [6, 6, 1]
    place = 0
    for batch in batches:
        data = io.BytesIO(batch.payload)
        for length in batch.head["payload_lengths"]:
            shown = np.asarray(Image.open(io.BytesIO(data.read(length))))
            assert np.abs(shown.astype(int) - frames[place]).mean() < 6
            place += 1
    assert place == 13


@pytest.mark.parametrize(
    ("size", "limit", "shown"),
    [((832, 480), 640, (640, 369)), ((64, 48), 64, (64, 48)), ((64, 48), 10, (10, 8)),
     ((4096, 2), 64, (64, 1)), ((64, 48), 0, (64, 48))],
)  # fmt: skip
def test_preview_sizes(size: tuple[int, int], limit: int, shown: tuple[int, int]) -> None:
    assert Picture("webp", *size, fps=16, quality=50, max_width=limit).shown == shown
    assert Picture("raw", *size, fps=16, quality=50, max_width=limit).shown == size


def test_a_preview_is_small_and_says_so() -> None:
    (batch,) = write(moving(2), "jpeg", max_width=32)
    head = batch.head
    assert (head["width"], head["height"]) == (32, 24)
    assert (head["source_width"], head["source_height"]) == (64, 48)
    assert head["bytes_per_frame"] == 64 * 48 * 3
    first = batch.payload[: head["payload_lengths"][0]]
    assert Image.open(io.BytesIO(first)).size == (32, 24)


@pytest.mark.parametrize("format", ["raw", "webp", "h264"])
def test_no_frames_are_one_message(format: str) -> None:
    (batch,) = write(np.zeros((0, 48, 64, 3), np.uint8), format)
    assert batch.payload == b""
    assert batch.head["num_frames"] == batch.head["total_size"] == 0
    assert batch.head["is_final_frame_batch"] is True
    assert "encoding" not in batch.head


@pytest.mark.parametrize(("height", "width"), [(48, 64), (33, 35)])
def test_h264_chunks_stand_alone(height: int, width: int) -> None:
    frames = moving(14, height, width)
    encoder = H264Encoder(width, height, 16, 90)
    chunks = [encoder.encode(frames[at : at + 7]) for at in (0, 7)]
    for begin, units in zip((0, 7), chunks, strict=True):
        assert [unit.key for unit in units] == [True] + [False] * 6
        assert {7, 8, 5} <= set(nal_types(units[0].data))
        assert codec_string(units[0].data).startswith("avc1.42C0")
        assert all(unit.data.startswith((b"\0\0\1", b"\0\0\0\1")) for unit in units)
        # A decoder that has seen nothing else shows every frame of the chunk.
        decoder = cast(Any, av.CodecContext.create("h264", "r"))
        shown = [f for unit in units for f in decoder.decode(av.Packet(unit.data))]
        shown += decoder.decode(None)
        assert len(shown) == 7
        for index, frame in enumerate(shown):
            pixels = frame.to_ndarray(format="rgb24")[:height, :width]
            assert np.abs(pixels.astype(int) - frames[begin + index]).mean() < 12


# The clock.


class Now:
    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


def test_the_clock_paces_and_answers_at_once() -> None:
    now = Now()
    clock = FrameClock(16, now)
    assert clock.wait(None) == 0
    clock.sent(8)
    assert clock.wait(None) == pytest.approx(0.5)
    now.time += 0.5
    clock.sent(12)
    assert clock.wait(7) == 0, "a chunk that shows a new event is not held back"
    clock.sent(12)
    assert clock.wait(7) == pytest.approx(0.75), "the same event again is"
    now.time += 10
    assert clock.wait(7) == 0
    clock.sent(16)
    assert clock.wait(7) == pytest.approx(1), "lost time is not made up for"


# The stream.


def ready(index: int, name: str = "") -> ReadyChunk:
    report = SessionReport("s", "chunk", chunk=index)
    return ReadyChunk(f"s_{name or index}", report, [], 0, 0, 0.0, 0.0)


def send(stream: Stream) -> Any:
    """Send the item whose turn it is; there must be one, so nothing is waited for."""
    with pytest.raises(StopIteration) as ended:
        stream.next().__await__().send(None)
    item = ended.value.value
    return item, stream.sent(item)


def test_what_was_sent_goes_when_nobody_can_resume() -> None:
    stream = Stream(0)
    for index in range(3):
        stream.put(ready(index))
        assert send(stream)[1] == index
    assert stream.held_bytes == 0
    assert stream.waiting == 0
    assert not stream._items


def test_the_newest_chunks_are_kept() -> None:
    stream = Stream(2)
    for index in range(5):
        stream.put(ready(index))
        assert send(stream)[1] == index
    stream.resume("s_2")
    assert send(stream)[0].index == 3
    stream.resume(None)
    assert send(stream)[0].index == 3
    stream.resume("s_4")
    assert stream.waiting == 0
    for gone in ("s_1", "s_0", "other"):
        with pytest.raises(ResumeGap):
            stream.resume(gone)


def test_only_the_clients_word_lets_a_chunk_go() -> None:
    stream = Stream(4, acknowledged=True)
    for index in range(4):
        stream.put(ready(index))
        assert send(stream)[1] is None
    assert stream.unacknowledged
    assert stream.received("s_1") == 1
    assert stream.received("s_1") is None, "said twice"
    assert stream.received("s_0") is None
    stream.resume("s_1")
    assert [send(stream)[0].index for _ in range(2)] == [2, 3]
    assert stream.received("s_3") == 3
    assert not stream.unacknowledged


def test_going_back_leaves_out_what_is_obsolete_and_says_where() -> None:
    stream = Stream(4)
    for index in range(4):
        stream.put(ready(index))
    for _ in range(3):
        send(stream)
    stream.rewound(1, {"type": "ack"})
    stream.put(ready(1, "new1"))
    # Chunk 3 stood at the front, perhaps half sent: it is finished and then forgotten.
    front, taken = send(stream)
    assert (front.index, front.stale, taken) == (3, True, None)
    note, _ = send(stream)
    assert isinstance(note, Note)
    assert send(stream)[0].request_id == "s_new1"
    # Whoever had an old chunk hears of the going back first.
    for last in ("s_2", "s_1", "s_3"):
        stream.resume(last)
        assert isinstance(send(stream)[0], Note)
        assert send(stream)[0].request_id == "s_new1"
    stream.resume("s_new1")
    assert stream.waiting == 0


def test_the_end_is_reached_and_can_be_reached_again() -> None:
    stream = Stream(2)
    stream.put(ready(0))
    stream.put(End(SessionReport("s", "closed")))
    send(stream)
    assert not stream.delivered
    assert isinstance(send(stream)[0], End)
    assert stream.delivered
    stream.resume(None)
    assert not stream.delivered
    assert send(stream)[0].index == 0
    assert isinstance(send(stream)[0], End)


@settings(max_examples=200)
@given(st.data())
def test_no_chunk_is_lost_or_seen_twice_whatever_happens(data: st.DataObject) -> None:
    """A client with acknowledgements, against drops, resumes and going back at any time: what it
    has seen at the end is the one line of chunks that the session made."""
    stream = Stream(3, acknowledged=True)
    made: list[str] = []  # the line of time as the engine has it
    seen: list[str] = []  # as the client has it
    last: str | None = None
    number = 0
    for _ in range(data.draw(st.integers(1, 30))):
        what = data.draw(st.sampled_from(["make", "make", "send", "send", "drop", "back", "ack"]))
        if what == "make" and sum(isinstance(i, ReadyChunk) for i in stream._items) < 3:
            number += 1
            made.append(f"s_{number}")
            stream.put(ready(len(made) - 1, str(number)))
        elif what == "send" and stream._cursor < len(stream._items):
            last = arrive(stream, seen, last)
        elif what == "drop":
            stream.resume(last)
        elif what == "ack" and seen and last == seen[-1]:
            stream.received(last)
        elif what == "back" and made:
            to = data.draw(st.integers(0, len(made) - 1))
            del made[to:]
            stream.rewound(to, {"to": to})
    while stream._cursor < len(stream._items):
        last = arrive(stream, seen, last)
    assert seen == made


def arrive(stream: Stream, seen: list[str], last: str | None) -> str | None:
    item, _ = send(stream)
    if isinstance(item, Note):
        del seen[item.message["to"] :]
        return last
    seen[item.index :] = [item.request_id]
    return item.request_id


# The page.


def test_every_code_is_on_the_page() -> None:
    root = Path(__file__).parents[1]
    text = (root / "docs" / "realtime.md").read_text(encoding="utf-8")
    codes = set(get_args(Codes))
    for path in (root / "core/src/sgld/server/realtime").glob("*.py"):
        source = path.read_text(encoding="utf-8")
        codes |= set(re.findall(r"code ?= ?\"([a-z_]+)\"", source))
    assert not sorted(code for code in codes if f"`{code}`" not in text)
    assert not [name for name in FIELDS if f"`{name}`" not in text]


@pytest.mark.parametrize(("asked", "queue"), [(0, None), (1, None), (5, 7), (64, 16)])
def test_the_engine_knows_what_the_client_asked_to_rewind(asked: int, queue: int | None) -> None:
    """It remembers what waits for the client as well, but speaks of what the client knows."""
    settings = SessionSettings(rewind_chunks=asked, queue_chunks=queue)
    built: Any = None
    options = Wanted(2, settings, built, Opening({}), None).options
    assert options.rewind_chunks - options.ahead == asked
    assert options.ahead == (settings.waiting + 1 if asked else 0)


def test_a_refused_rewind_says_how_many_chunks_fit() -> None:
    values = {"field": "rewind_chunks", "needed": 9, "free": 5, "fits": 2, "live": 0}
    report = SessionReport("s", "opened", 1, values=values, code="rewind_too_large", message="no")
    told = replies.error(replies.BAD_INIT, replies.Refused(report))
    assert (told["code"], told["content"]) == ("rewind_too_large", replies.BAD_INIT)
    assert {name: told[name] for name in values} == values
