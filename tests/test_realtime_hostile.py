"""Thousands of broken messages and broken-off sessions against the application itself: every answer
is typed, nothing hangs, nothing stays."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgpack
from realtime_asgi import AsgiSocket

from sgld.server.services import Services
from sgld.testing.served import app_here

CONTENTS = (
    "invalid generate request",
    "invalid event",
    "another realtime session is already active",
)
WORDS = ("init", "event", "pause", "resume", "step", "reset", "rewind", "snapshot", "fork",
         "received", "ping", "frame_batch", "x" * 300, "")  # fmt: skip
FIELDS = ("prompt", "kind", "payload", "event_id", "chunks", "size", "seed", "fps", "protocol",
          "max_chunks", "first_frame", "condition_inputs", "resume_token", "request_id", "model",
          "snapshot", "queue_chunks", "realtime_output_format", "é\u0000", "type")  # fmt: skip
QUIET = {"realtime_output_format": "jpeg", "realtime_output_pacing": True, "size": "16x16"}
"""A session that costs little."""


@asynccontextmanager
async def running(folder: Path, **options: Any) -> AsyncIterator[tuple[Any, Services]]:
    with app_here("tiny:toy-world", folder, **options) as (app, services):
        async with app.router.lifespan_context(app):
            while not services.readiness.ready:
                await asyncio.sleep(0.02)
            yield app, services


async def quiet(services: Services) -> None:
    """Wait until nothing is left of any session."""
    async with asyncio.timeout(60):
        while services.sessions.live or services.sessions.sockets or services.engine._sessions:
            await asyncio.sleep(0.005)


def value(rng: random.Random, depth: int = 0) -> Any:
    """Any value that MessagePack can hold."""
    kind = rng.randrange(12 if depth < 3 else 9)
    if kind == 9:
        return [value(rng, depth + 1) for _ in range(rng.randrange(4))]
    if kind == 10:
        return {rng.choice(FIELDS): value(rng, depth + 1) for _ in range(rng.randrange(4))}
    if kind == 11:
        return [["w", "fly"], {"mode": "state", "transitions": value(rng, depth + 1)}]
    return rng.choice(
        [
            None, True, -1, 0, 2**63 - 1, 2**64 - 1, -(2**63), 1.5, float("nan"), float("inf"),
            "", "a", "64x48", "é\U0001f600" * 20, b"", b"\x89PNG\r\n", rng.randbytes(50),
            "http://127.0.0.1:1/x", "data:image/png;base64,AAAA",
        ]
    )  # fmt: skip


def frame(rng: random.Random) -> bytes | str:
    """One message: nearly right, mixed up, or broken."""
    message: Any = {"type": rng.choice(WORDS)}
    for _ in range(rng.randrange(5)):
        message[rng.choice(FIELDS)] = value(rng)
    data = bytearray(msgpack.packb(message) or b"")
    kind = rng.randrange(10)
    if kind == 0:
        return bytes(data[: rng.randrange(len(data))])
    if kind == 1:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif kind == 2:
        return rng.randbytes(rng.randrange(40))
    elif kind == 3:
        return msgpack.packb(value(rng)) or b""
    elif kind == 4:
        return "text" * rng.randrange(3)
    return bytes(data)


def test_ten_thousand_broken_messages(tmp_path: Path) -> None:
    """Before a session is open and in its midst, in both protocols; each stretch ends with a
    message that must be answered."""

    async def stretch(app: Any, rng: random.Random, protocol: int) -> int:
        sent = errors = 0
        async with AsgiSocket(app) as client:
            closed = await _before(client, rng)
            sent += 20
            if not closed:
                more = {"free_running": False, "rewind_chunks": 2} if protocol == 2 else {}
                client.say(type="init", prompt="a", protocol=protocol, **QUIET, **more)
                closed = await _open(client, protocol)
            while not closed and sent < 100:
                for _ in range(10):
                    client.raw(frame(rng))
                sent += 10
                client.say(type="event", kind="jump", event_id=12345)
                while True:
                    message = await client.receive()
                    closed = message["type"] == "socket_closed"
                    if message["type"] == "error":
                        _check(message)
                        errors += 1
                        if message["event_id"] == 12345 and message["code"] == "unknown_kind":
                            break
                    if closed:
                        break
        assert errors > 0 or closed
        return sent

    async def run() -> None:
        async with running(tmp_path, session_grace_seconds=0.01) as (app, services):
            sent = number = 0
            while sent < 10_000:
                batch = [stretch(app, random.Random(number + i), 1 + i % 2) for i in range(4)]
                sent += sum(await asyncio.gather(*batch))
                number += len(batch)
            await quiet(services)
            async with AsgiSocket(app) as client:
                client.say(type="init", prompt="a", max_chunks=1)
                assert (await client.until("chunk_stats"))["chunk_index"] == 0

    asyncio.run(run())


async def _before(client: AsgiSocket, rng: random.Random) -> bool:
    """Broken messages before init; True when one of them opened a session after all."""
    for _ in range(20):
        client.raw(frame(rng))
    client.say(type="ping", event_id=777)
    while True:
        message = await client.receive()
        if message["type"] != "error":
            return True
        _check(message)
        if message["event_id"] == 777:
            return False


async def _open(client: AsgiSocket, protocol: int) -> bool:
    opened = "session" if protocol == 2 else "chunk_stats"
    return (await client.until(opened, "error", "socket_closed"))["type"] != opened


def _check(error: dict[str, Any]) -> None:
    content: str = error["content"]
    assert content in CONTENTS or content.startswith("error during generate loop: "), error
    assert error["code"], error
    assert error["code"] != "internal_error", error
    assert error["message"], error
    assert set(error) >= {"type", "content", "code", "field", "message", "event_id"}


def test_a_thousand_sessions_leave_nothing(tmp_path: Path) -> None:
    """Opened, stepped, and closed or dropped at any moment, with a short time of grace."""

    async def one(app: Any, number: int) -> None:
        async with AsgiSocket(app) as client:
            client.say(type="init", prompt="a", protocol=1 + number % 2, **QUIET)
            if number % 4:
                await client.until("chunk_stats")
            if number % 5 == 0:
                await client.drop(1000)

    async def run() -> None:
        async with running(tmp_path, session_grace_seconds=0.005) as (app, services):
            before = (0, 0)
            for number in range(0, 1000, 4):
                await asyncio.gather(*[one(app, number + i) for i in range(4)])
                if number == 48:
                    await quiet(services)
                    before = len(asyncio.all_tasks()), threading.active_count()
            await quiet(services)
            assert len(asyncio.all_tasks()) <= before[0]
            assert threading.active_count() <= before[1]
            assert services.sessions.bytes_kept == 0
            shown = services.metrics.render().body.decode()
            assert "sgld_sessions_live 0.0" in shown
            assert "sgld_session_sockets_open 0.0" in shown

    asyncio.run(run())
