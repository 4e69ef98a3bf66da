"""What the server says on a session's socket, as maps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sgld.api.errors import ParameterError, SgldError
from sgld.realtime.messages import SessionReport
from sgld.server.realtime.batches import CONTENT_TYPES
from sgld.server.realtime.stream import ReadyChunk

BAD_INIT: Final = "invalid generate request"
BAD_EVENT: Final = "invalid event"
OCCUPIED: Final = "another realtime session is already active"
FAILED: Final = "error during generate loop"
MAX_TEXT: Final = 2000
"""Characters of an error's message."""
MAX_FIELD: Final = 200
"""Characters of the field that an error names."""


class Refused(SgldError):
    """The engine, or the server, does not open a session or do what was asked.

    Args:
        report: the refusal, with what is known of `field`, `retry_after`, `live`.
    """

    def __init__(self, report: SessionReport) -> None:
        super().__init__(report.message or "it was refused.", code=report.code or "internal_error")
        self.values = dict(report.values)


def error(content: str, reason: Exception, event_id: int | None = None) -> dict[str, Any]:
    """An `error` message. Nothing of an unexpected exception is shown but that it happened."""
    if isinstance(reason, SgldError):
        code, text = reason.code, str(reason)
    else:
        code, text = "internal_error", "the server made a mistake."
    field = reason.problems[0].field if isinstance(reason, ParameterError) else None
    more: dict[str, Any] = {}
    if isinstance(reason, Refused):
        field = reason.values.get("field") or field
        names = ("live", "retry_after", "needed", "free", "fits")
        more = {name: reason.values[name] for name in names if name in reason.values}
    return {
        "type": "error",
        "content": _cut(content, MAX_TEXT),
        "code": code,
        # A field may be named by a key of the client.
        "field": None if field is None else _cut(field, MAX_FIELD),
        "message": _cut(text, MAX_TEXT),
        "event_id": event_id,
        **more,
    }


def failure(report: SessionReport) -> dict[str, Any]:
    """The `error` of a session that ended by itself."""
    first = (report.message or report.code).splitlines()[0]
    reason = Refused(report)
    return error(f"{FAILED}: {first}", reason)


def waiting(reason: str, retry_after: float) -> dict[str, Any]:
    """The server is not ready; the session opens when it is."""
    return {
        "type": "waiting",
        "code": "not_ready",
        "message": f"not ready: {reason}.",
        "retry_after": retry_after,
    }


def ack(of: str, event_id: int | None, chunk_index: int | None) -> dict[str, Any]:
    """A command has taken effect, or will with this chunk."""
    return {"type": "ack", "of": of, "event_id": event_id, "chunk_index": chunk_index}


def forked(event_id: int | None, chunk_index: int | None, id: str, token: str) -> dict[str, Any]:
    """A second session that goes on from the first one's chunk."""
    return {
        "type": "forked",
        "event_id": event_id,
        "session_id": id,
        "resume_token": token,
        "chunk_index": chunk_index,
    }


def snapshot(event_id: int | None, report: SessionReport, most: int) -> dict[str, Any]:
    """A session's state as bytes; an `error` when there are more than `most`."""
    data = bytes(report.values["snapshot"])
    if len(data) > most:
        reason = SgldError(
            f"the snapshot has {len(data)} bytes; messages may have {most}.",
            code="snapshot_too_large",
            remedy="The operator can raise --session-message-mib.",
        )
        return error(BAD_EVENT, reason, event_id)
    return {
        "type": "snapshot",
        "event_id": event_id,
        "chunk_index": report.values.get("chunk"),
        "total_size": len(data),
        "payload": data,
    }


def batch_head(chunk: ReadyChunk, head: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of one batch of a chunk."""
    named = {"request_id": chunk.request_id, "chunk_index": chunk.index, **head}
    if chunk.report.event_id is not None:
        named["event_id"] = chunk.report.event_id
    return named


class Sending:
    """Seconds and bytes of one chunk's way to the client."""

    def __init__(self) -> None:
        self.pace = self.maps = self.payloads = 0.0
        self.bytes = 0


def chunk_stats(
    session_id: str, chunk: ReadyChunk, format: str, sending: Sending, now: float
) -> dict[str, Any]:
    """The `chunk_stats` of a chunk whose frames were sent."""
    report = chunk.report
    seconds: Mapping[str, float] = report.values.get("seconds", {})
    prepare = seconds.get("prepare", 0.0)
    forward = sum(value for name, value in seconds.items() if name != "prepare")
    return {
        "type": "chunk_stats",
        "session_id": session_id,
        "request_id": chunk.request_id,
        "chunk_index": chunk.index,
        "event_id": report.event_id,
        "request_prepare_ms": _ms(prepare),
        "scheduler_forward_ms": _ms(forward),
        "pace_wait_ms": _ms(sending.pace),
        "header_write_ms": _ms(sending.maps),
        "raw_payload_build_ms": _ms(chunk.build_seconds),
        "raw_write_ms": _ms(sending.payloads),
        "ws_write_ms": _ms(sending.maps + sending.payloads),
        "chunk_total_ms": _ms(prepare + forward + now - chunk.arrived),
        "num_batches": len(chunk.batches or ()),
        "num_frames": chunk.frames,
        "raw_bytes": chunk.raw_bytes,
        "ws_payload_bytes": sending.bytes,
        "content_type": CONTENT_TYPES[format],
        "session_bytes": int(report.values.get("bytes", 0)),
        "dropped_chunks": int(report.values.get("dropped", 0)),
    }


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."


def _ms(seconds: float) -> int:
    """Whole milliseconds, halves up, never negative."""
    return max(0, int(seconds * 1000 + 0.5))
