"""What a session needs of the server, and what the engine owes it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from sgld.realtime.messages import SessionReport
from sgld.server.engine import EngineClient

if TYPE_CHECKING:
    from sgld.server.realtime.live import LiveSession


class Owed(NamedTuple):
    """A command that the engine has not answered.

    Args:
        target: of a rewind: the chunk to go back to.
        fork: of a fork: the session that it makes.
    """

    of: str
    event_id: int | None
    target: int = 0
    fork: LiveSession | None = None


@dataclass(frozen=True, slots=True)
class Home:
    """What a session needs of the server.

    Args:
        threads: where frames are encoded.
        resumable: whether a session outlives its socket.
        snapshot_bytes: most bytes of a snapshot that is sent.
        forked: told of a fork that is open; it is to be kept until somebody resumes it.
        ended: told when the engine has let a session go.
        chunk: told of each chunk that the engine made.
    """

    engine: EngineClient
    threads: ThreadPoolExecutor
    resumable: bool
    snapshot_bytes: int
    forked: Callable[[LiveSession], None]
    ended: Callable[[LiveSession], None]
    chunk: Callable[[SessionReport], None]
