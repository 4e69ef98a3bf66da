"""A client of `/v1/realtime_video/generate`, written from the protocol's description alone.

It imports nothing of the server. Every message is checked against the description as it comes:
keys, types, sizes, order. Tests drive real servers with it.
"""

from __future__ import annotations

import io
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import msgpack
import numpy as np
from PIL import Image
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

PATH = "/v1/realtime_video/generate"
SPLIT = 65_536
STATS = (
    "request_prepare_ms", "scheduler_forward_ms", "pace_wait_ms", "header_write_ms",
    "raw_payload_build_ms", "raw_write_ms", "ws_write_ms", "chunk_total_ms", "num_batches",
    "num_frames", "raw_bytes", "ws_payload_bytes",
)  # fmt: skip
COMMON = (
    "request_id", "chunk_index", "content_type", "num_frames", "total_size", "frame_batch_index",
    "num_frame_batches", "is_final_frame_batch", "format", "width", "height", "channels",
    "bytes_per_frame",
)  # fmt: skip
ENCODED = ("source_width", "source_height", "preview_width", "preview_height", "payload_lengths")
CONTENT = {"rgb24": "application/x-raw-rgb", "webp": "image/webp", "jpeg": "image/jpeg"}
WAIT = 60.0


class Closed(Exception):
    """The server closed the socket."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(code, reason)
        self.code, self.reason = code, reason


@dataclass
class Chunk:
    """All that came of one chunk."""

    stats: dict[str, Any]
    batches: list[dict[str, Any]]
    others: list[dict[str, Any]] = field(default_factory=list)

    @property
    def index(self) -> int:
        return self.stats["chunk_index"]

    @property
    def event_id(self) -> int | None:
        return self.stats["event_id"]

    @property
    def request_id(self) -> str:
        return self.stats["request_id"]

    @property
    def units(self) -> list[bytes]:
        """The encoded frames."""
        found: list[bytes] = []
        for batch in self.batches:
            place = 0
            for length in batch["payload_lengths"]:
                found.append(batch["payload"][place : place + length])
                place += length
        return found

    @property
    def frames(self) -> np.ndarray:
        """RGB uint8 [F, H, W, 3]."""
        if self.batches[0]["format"] != "rgb24":
            return np.stack([np.asarray(Image.open(io.BytesIO(unit))) for unit in self.units])
        shape = (-1, self.batches[0]["height"], self.batches[0]["width"], 3)
        data = b"".join(batch["payload"] for batch in self.batches)
        return np.frombuffer(data, np.uint8).reshape(shape)


class Client:
    """One socket."""

    def __init__(self, url: str, **options: Any) -> None:
        url = url.replace("http://", "ws://", 1)
        url = url if "?" in url or url.endswith(PATH) else url + PATH
        self._open = ExitStack()
        # A client that has stopped reading does not see the answer to its close.
        options = {"max_size": None, "compression": None, "close_timeout": 0.5, **options}
        connecting = connect(url, **options)
        self.socket = self._open.enter_context(connecting)
        self.seen: list[dict[str, Any]] = []

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def say(self, **message: Any) -> None:
        """Send a map."""
        self.socket.send(msgpack.packb(message, use_bin_type=True))

    def init(self, **fields: Any) -> None:
        """Send an init."""
        self.say(type="init", **{"prompt": "a hill", **fields})

    def event(self, kind: str, payload: Any, event_id: int | None = None) -> None:
        """Send an event."""
        more = {} if event_id is None else {"event_id": event_id}
        self.say(type="event", kind=kind, payload=payload, **more)

    def drop(self) -> None:
        """Vanish without a close frame."""
        self.socket.socket.shutdown(2)

    def receive(self) -> dict[str, Any]:
        """The next message; a payload in a frame of its own is put into its map."""
        message = self._map(self._frame())
        if message["type"].endswith("_header"):
            payload = self._frame()
            assert len(payload) == message["total_size"] >= SPLIT
            message = {**message, "type": message["type"].removesuffix("_header")}
            message["payload"] = payload
        elif "payload" in message:
            assert len(message["payload"]) == message["total_size"] < SPLIT
        if message["type"] == "error":
            assert isinstance(message["content"], str)
            assert isinstance(message["code"], str)
            assert isinstance(message["message"], str)
        return message

    def until(self, kind: str) -> dict[str, Any]:
        """The next message of a type; chunks and the like before it are let pass."""
        while True:
            message = self.receive()
            if message["type"] == kind:
                return message
            assert message["type"] != "error", message

    def error(self) -> dict[str, Any]:
        """The next error; other messages before it are let pass."""
        while (message := self.receive())["type"] != "error":
            pass
        return message

    def chunk(self) -> Chunk:
        """The next chunk, with its stats; errors and acknowledgements are let pass."""
        batches: list[dict[str, Any]] = []
        others: list[dict[str, Any]] = []
        while True:
            message = self.receive()
            if message["type"] == "frame_batch":
                batches.append(message)
            elif message["type"] == "chunk_stats":
                check_chunk(message, batches)
                return Chunk(message, batches, others)
            else:
                others.append(message)

    def chunks(self, count: int) -> list[Chunk]:
        """The next chunks."""
        return [self.chunk() for _ in range(count)]

    def closed(self) -> Closed:
        """How the server closes the socket; whatever comes before is let pass."""
        try:
            while True:
                self.receive()
        except Closed as closed:
            return closed

    def _frame(self) -> bytes:
        try:
            data = self.socket.recv(timeout=WAIT)
        except ConnectionClosed as closed:
            code, reason = (closed.rcvd.code, closed.rcvd.reason) if closed.rcvd else (1006, "")
            raise Closed(code, reason) from None
        assert isinstance(data, bytes), "the server sends binary frames only"
        return data

    def _map(self, data: bytes) -> dict[str, Any]:
        message = msgpack.unpackb(data)
        assert isinstance(message, dict)
        assert isinstance(message["type"], str)
        self.seen.append(message)
        return message


def check_chunk(stats: dict[str, Any], batches: list[dict[str, Any]]) -> None:
    """What the description says of the frames and the stats of one chunk."""
    assert stats["num_batches"] == len(batches)
    for name in STATS:
        assert isinstance(stats[name], int), name
        assert stats[name] >= 0, name
    assert stats["ws_write_ms"] >= max(stats["header_write_ms"], stats["raw_write_ms"]) - 1
    assert "event_id" in stats
    assert stats["request_id"].startswith(stats["session_id"] + "_")
    assert stats["num_frames"] == sum(batch["num_frames"] for batch in batches)
    for index, batch in enumerate(batches):
        check_batch(batch)
        assert batch["request_id"] == stats["request_id"]
        assert batch["chunk_index"] == stats["chunk_index"]
        assert batch["content_type"] == stats["content_type"]
        assert batch.get("event_id") == stats["event_id"]
        assert batch["frame_batch_index"] == index
        assert batch["num_frame_batches"] == len(batches)
        assert batch["is_final_frame_batch"] is (index == len(batches) - 1)
    if batches and stats["num_frames"]:
        assert stats["raw_bytes"] == stats["num_frames"] * batches[0]["bytes_per_frame"]
        assert stats["ws_payload_bytes"] > sum(batch["total_size"] for batch in batches)


def check_batch(batch: dict[str, Any]) -> None:
    """What the description says of one batch."""
    for name in COMMON:
        assert name in batch, name
    assert batch["channels"] == 3
    assert len(batch["payload"]) == batch["total_size"]
    if batch["format"] == "rgb24":
        assert batch["encoding"] == "raw"
        assert batch["num_frames"] <= 16
        assert batch["bytes_per_frame"] == batch["width"] * batch["height"] * 3
        assert batch["raw_size"] == batch["total_size"]
        assert batch["total_size"] == batch["num_frames"] * batch["bytes_per_frame"]
        return
    for name in ENCODED:
        assert name in batch, name
    assert batch["encoding"] == batch["format"]
    assert batch["num_frames"] <= 6
    assert len(batch["payload_lengths"]) == batch["num_frames"]
    assert sum(batch["payload_lengths"]) == batch["total_size"]
    assert (batch["width"], batch["height"]) == (batch["preview_width"], batch["preview_height"])
    assert batch["bytes_per_frame"] == batch["source_width"] * batch["source_height"] * 3
    if batch["format"] in CONTENT:
        assert batch["content_type"] == CONTENT[batch["format"]]
