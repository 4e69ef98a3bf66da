"""What the server counts of realtime sessions; a part of `sgld.observe.metrics.Metrics`."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final

from sgld.observe.declared import STAGE_BUCKETS, Declared

SESSIONS: Final = Declared("sgld_sessions_live", "gauge", "Realtime sessions that are open.")
SOCKETS: Final = Declared("sgld_session_sockets_open", "gauge", "Connections of realtime clients.")
SESSIONS_ENDED: Final = Declared(
    "sgld_sessions_ended_total",
    "counter",
    "Realtime sessions ended or not let in; `code` is `ok` unless something was wrong.",
    ("code",),
)
CHUNKS: Final = Declared("sgld_session_chunks_total", "counter", "Chunks made for sessions.")
SESSION_FRAMES: Final = Declared(
    "sgld_session_frames_total", "counter", "Frames made for realtime sessions."
)
CHUNK_SECONDS: Final = Declared(
    "sgld_session_chunk_duration_seconds",
    "histogram",
    "Device time of one part of a session's chunk: prepare, denoise, decode or commit.",
    ("part",),
    STAGE_BUCKETS,
)
SESSION_BYTES: Final = Declared(
    "sgld_session_kept_bytes", "gauge", "Bytes of frames on their way to realtime clients."
)
SESSION_RESERVED: Final = Declared(
    "sgld_session_reserved_bytes", "gauge", "Device memory promised to the live sessions."
)
SESSION_STATE: Final = Declared(
    "sgld_session_state_bytes", "gauge", "Device memory that the live sessions' states hold."
)
CHUNKS_DROPPED: Final = Declared(
    "sgld_session_chunks_dropped_total",
    "counter",
    "Chunks that were made and left out because their reader was behind (`on_full: drop`).",
)
SESSION_METRICS: Final = (
    SESSIONS, SOCKETS, SESSIONS_ENDED, CHUNKS, SESSION_FRAMES, CHUNK_SECONDS, SESSION_BYTES,
    SESSION_RESERVED, SESSION_STATE, CHUNKS_DROPPED,
)  # fmt: skip


class SessionMetrics(ABC):
    """Counts sessions; every method may be called from any thread."""

    def __init__(self) -> None:
        self._states: dict[str, tuple[int, int]] = {}
        """Session → bytes reserved and bytes held."""
        self._states_lock = threading.Lock()

    @abstractmethod
    def _of(self, row: Declared, *values: str) -> Any:
        """The metric that was declared so, with these label values."""

    def sessions(self, live: int, sockets: int) -> None:
        """So many realtime sessions and sockets are open now."""
        self._of(SESSIONS).set(live)
        self._of(SOCKETS).set(sockets)

    def session_bytes(self, number: int) -> None:
        """Frames for realtime clients take so many bytes now."""
        self._of(SESSION_BYTES).set(number)

    def session_ended(self, code: str) -> None:
        """A realtime session ended, or was not let in; `ok` when nothing was wrong."""
        self._of(SESSIONS_ENDED, code).inc()

    def session_chunk(self, frames: int, seconds: Mapping[str, float]) -> None:
        """A session's chunk was made; `seconds` by part."""
        self._of(CHUNKS).inc()
        self._of(SESSION_FRAMES).inc(frames)
        for part, value in seconds.items():
            self._of(CHUNK_SECONDS, part).observe(max(value, 0.0))

    def session_memory(self, id: str, *, reserved: int = 0, held: int = 0) -> None:
        """A live session was promised, or holds, so many bytes; 0: what it was told before."""
        with self._states_lock:
            before = self._states.get(id, (0, 0))
            self._states[id] = (reserved or before[0], held or before[1])
            self._show_states()

    def session_released(self, id: str) -> None:
        """A session holds nothing any more."""
        with self._states_lock:
            self._states.pop(id, None)
            self._show_states()

    def chunks_dropped(self, number: int) -> None:
        """So many chunks of a session were left out."""
        self._of(CHUNKS_DROPPED).inc(number)

    def _show_states(self) -> None:
        states = self._states.values()
        self._of(SESSION_RESERVED).set(sum(reserved for reserved, _ in states))
        self._of(SESSION_STATE).set(sum(held for _, held in states))
