"""What a command is answered: done, refused, or the same as before when it comes again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Final

import structlog

from sgld.api.errors import ParameterError, SgldError
from sgld.engine.faults import as_request_error
from sgld.engine.sessions.budget import Refusal
from sgld.engine.sessions.session import Session
from sgld.realtime.messages import SessionCommand, SessionReport

log = structlog.get_logger("sgld.engine")

ENDS: Final = 256
"""Ended sessions whose `close` is still answered as done."""


def refusal(command: SessionCommand, error: Exception, stage: str = "") -> SessionReport:
    """The report that refuses a command, with what is known of the reason."""
    cause = as_request_error(error, stage)
    values: dict[str, Any] = dict(error.values) if isinstance(error, Refusal) else {}
    if isinstance(error, ParameterError):
        values["field"] = error.problems[0].field
    if not isinstance(error, SgldError):
        log.error("a command failed", session=command.session_id, kind=command.kind, exc_info=error)
    return SessionReport(
        command.session_id,
        "opened" if command.kind == "open" else "answer",
        command.number,
        values=values,
        code=cause.code,
        message=str(cause),
    )


class Answers:
    """Answers commands. `emit` takes the reports."""

    def __init__(self, emit: Callable[[SessionReport], Any]) -> None:
        self._emit = emit
        self._ended: OrderedDict[str, None] = OrderedDict()

    def done(self, session: Session, command: SessionCommand, values: Mapping[str, Any]) -> None:
        """A command has taken effect. An event without a number wants no answer."""
        if command.kind == "event" and not command.number:
            return
        report = SessionReport(session.id, "answer", command.number, values=values)
        session.remember(command, report)
        self._emit(report)

    def refused(self, session: Session, command: SessionCommand, error: Exception) -> None:
        """A command changes nothing."""
        report = refusal(command, error)
        session.remember(command, report)
        self._emit(report)

    def repeated(self, session: Session, command: SessionCommand) -> bool:
        """Whether a command came before, and is answered here or will be."""
        if session.waits(command.number):
            return True
        known = session.answered(command)
        if known is None:
            return False
        kind, report = known
        if kind != command.kind:
            error = Refusal(
                f"number {command.number} belongs to an earlier {kind}.",
                code="invalid_command",
                remedy="Give every command a number of its own.",
            )
            self._emit(refusal(command, error))
        else:
            self._emit(report)
        return True

    def unknown(self, command: SessionCommand) -> None:
        """A command for a session that is not live."""
        if command.kind == "taken" or (command.kind == "event" and not command.number):
            return
        if command.kind == "close" and command.session_id in self._ended:
            self._emit(SessionReport(command.session_id, "answer", command.number))
            return
        error = Refusal(
            f"there is no live session {command.session_id!r}.", code="session_not_found"
        )
        self._emit(refusal(command, error))

    def remember_end(self, session: Session) -> None:
        """A session is over; closing it again is no fault."""
        self._ended[session.id] = None
        self._ended.move_to_end(session.id)
        while len(self._ended) > ENDS:
            self._ended.popitem(last=False)
