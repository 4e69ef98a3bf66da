"""Steers a realtime session and writes what it sees to pictures: protocol 2 in one page.

    python examples/realtime_client.py ws://127.0.0.1:30000 --prompt "a path through a forest" \\
        --first-frame start.png --keys w:3,l:2,w:3 --out frames

Each `KEY:CHUNKS` holds a key for so many chunks; `none` lets go. Needs: pip install msgpack
websockets. docs/realtime.md describes every message.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
from websockets.sync.client import ClientConnection, connect


def main() -> None:
    """Open a session, press the keys one after the other, save the frames."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("server")
    parser.add_argument("--prompt", required=True)
    parser.add_argument("--first-frame", type=Path)
    parser.add_argument("--keys", type=read_keys, default="w:4")
    parser.add_argument("--out", type=Path, default=Path("frames"))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    plan: list[str] = given.keys
    init = {
        "type": "init",
        "protocol": 2,
        "prompt": given.prompt,
        "first_frame": given.first_frame.read_bytes() if given.first_frame else None,
        "realtime_output_format": "jpeg",
        "max_chunks": len(plan),
        "free_running": False,  # a chunk at a time, so that each sees the key meant for it
    }
    with connect(f"{given.server}/v1/realtime_video/generate", max_size=None) as socket:
        send(socket, init)
        session = expect(socket, "session")
        print(f"{session['width']}x{session['height']} at {session['fps']} fps")
        for number, key in enumerate(plan):
            actions = [] if key == "none" else [key]
            pressed = {"mode": "state", "transitions": [{"actions": actions}]}
            send(socket, {"type": "event", "kind": "camera_actions", "payload": pressed,
                          "event_id": number})  # fmt: skip
            send(socket, {"type": "step"})
            for index, picture in enumerate(chunk(socket)):
                (given.out / f"{number:04d}-{index:02d}.jpg").write_bytes(picture)
            print(f"chunk {number}: {key}")


def read_keys(text: str) -> list[str]:
    """`w:2,none:1` as the key of each chunk: w, w, none."""
    plan: list[str] = []
    for part in text.split(","):
        key, _, chunks = part.strip().partition(":")
        if not key or not chunks.isdecimal() or int(chunks) < 1:
            raise argparse.ArgumentTypeError(f"{part!r} is not KEY:CHUNKS, such as w:3")
        plan += [key] * int(chunks)
    return plan


def send(socket: ClientConnection, message: dict[str, Any]) -> None:
    """Send a map."""
    socket.send(msgpack.packb(message))


def receive(socket: ClientConnection) -> dict[str, Any]:
    """The next map; a payload that travels alone is put into it."""
    message = msgpack.unpackb(socket.recv())
    if message["type"] == "error":
        raise SystemExit(message["message"])
    if message["type"] == "frame_batch_header":
        message |= {"type": "frame_batch", "payload": socket.recv()}
    return message


def expect(socket: ClientConnection, kind: str) -> dict[str, Any]:
    """The next map of a type; `waiting`, `ack` and the like are let pass."""
    while (message := receive(socket))["type"] != kind:
        pass
    return message


def chunk(socket: ClientConnection) -> Iterator[bytes]:
    """The encoded pictures of the next chunk."""
    while (message := receive(socket))["type"] != "chunk_stats":
        place = 0
        for length in message.get("payload_lengths", ()):
            yield message["payload"][place : place + length]
            place += length


if __name__ == "__main__":
    main()
