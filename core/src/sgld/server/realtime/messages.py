"""What a client may say once its session is open, checked.

command = read_command(message, model, protocol)     raises a ParameterError or a MessageError
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sgld.api.errors import ParameterError, Problem
from sgld.params.nearest import did_you_mean
from sgld.realtime.adapter import RealtimeAdapter
from sgld.server.realtime.wire import MessageError, shown, type_of
from sgld.server.sorting import brief

FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "event": ("kind", "payload"),
    "pause": (),
    "resume": (),
    "step": (),
    "reset": (),
    "rewind": ("chunks",),
    "snapshot": (),
    "fork": (),
    "received": ("request_id",),
    "ping": (),
    "close": (),
}
"""Type of message → its fields beside `type` and `event_id`."""
FIRST_PROTOCOL: Final = ("event",)
ALWAYS: Final = ("type", "event_id")
LARGEST_ID: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class ClientMessage:
    """One message of a client.

    Args:
        values: event {kind, control}; rewind {chunks}; received {request_id}.
    """

    type: str
    event_id: int | None = None
    values: Mapping[str, Any] = field(default_factory=dict)


def event_id_of(message: Mapping[str, Any]) -> int | None:
    """The id of a message that may be wrong otherwise, for its error."""
    value = message.get("event_id")
    return value if _is_id(value) else None


def id_problems(message: Mapping[str, Any]) -> list[Problem]:
    """What is wrong with the id of a message, if anything."""
    value = message.get("event_id")
    if value is None or _is_id(value):
        return []
    return [_wrong("event_id", value, "must be a whole number of 64 bits or null.")]


def read_message(
    message: Mapping[str, Any], adapter: type[RealtimeAdapter], protocol: int
) -> ClientMessage:
    """Read a message of an open session.

    Raises:
        MessageError: no message of this protocol; codes `already_initialised`, `unknown_message`.
        ParameterError: a field is wrong or unknown; all of them at once.
    """
    kind = type_of(message)
    allowed = FIRST_PROTOCOL if protocol == 1 else tuple(FIELDS)
    if kind == "init":
        remedy = "Open another socket for another session."
        raise MessageError("a session is open already.", code="already_initialised", remedy=remedy)
    if kind not in allowed:
        newer = kind in FIELDS
        remedy = 'It needs "protocol": 2 in init.' if newer else did_you_mean(kind, allowed)
        raise MessageError(
            f"there is no message of type {shown(kind)!r} here.",
            code="unknown_message",
            remedy=remedy,
        )
    problems = [
        Problem(name[:80], None, "is unknown.", did_you_mean(name, known), "unknown_parameter")
        for known in [(*ALWAYS, *FIELDS[kind])]
        for name in message
        if name not in known
    ]
    problems += id_problems(message)
    values: Mapping[str, Any] = {}
    try:
        values = _READERS.get(kind, _nothing)(message, adapter)
    except ParameterError as error:
        problems += error.problems
    if problems:
        raise ParameterError(problems)
    return ClientMessage(kind, event_id_of(message), values)


def _nothing(_message: Mapping[str, Any], _adapter: type[RealtimeAdapter]) -> Mapping[str, Any]:
    return {}


def _event(message: Mapping[str, Any], adapter: type[RealtimeAdapter]) -> Mapping[str, Any]:
    kind = message.get("kind")
    kinds = ", ".join(adapter.events)
    if kind is None:
        raise ParameterError(
            [Problem("kind", None, f"is required: one of {kinds}.", "", "missing_parameter")]
        )
    if not isinstance(kind, str) or kind not in adapter.events:
        # All kinds are named already.
        guess = did_you_mean(kind, adapter.events, limit=0) if isinstance(kind, str) else ""
        raise ParameterError(
            [
                Problem(
                    "kind", brief(_plain(kind)), f"must be one of {kinds}.", guess, "unknown_kind"
                )
            ]
        )
    return {"kind": kind, "control": adapter.read_event(kind, message.get("payload"))}


def _rewind(message: Mapping[str, Any], _adapter: type[RealtimeAdapter]) -> Mapping[str, Any]:
    chunks = message.get("chunks")
    if not isinstance(chunks, int) or isinstance(chunks, bool) or chunks < 1:
        raise ParameterError([_wrong("chunks", chunks, "must be a whole number of at least 1.")])
    return {"chunks": chunks}


def _received(message: Mapping[str, Any], _adapter: type[RealtimeAdapter]) -> Mapping[str, Any]:
    request_id = message.get("request_id")
    if not isinstance(request_id, str):
        raise ParameterError([_wrong("request_id", request_id, "must be that of a chunk.")])
    return {"request_id": request_id}


_READERS: Final = {"event": _event, "rewind": _rewind, "received": _received}


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= LARGEST_ID


def _wrong(name: str, value: Any, message: str) -> Problem:
    return Problem(name, brief(_plain(value)), message)


def _plain(value: Any) -> Any:
    return f"{len(value)} bytes" if isinstance(value, bytes) else value
