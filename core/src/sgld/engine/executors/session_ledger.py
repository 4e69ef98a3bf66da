"""Which sessions live in an engine process, so that their owners hear of its end. Pure bookkeeping,
without threads or processes.

A session's state is gone with its engine: it is closed with `engine_lost` and never opened again by
itself. Nothing waits for an engine that is not there; a command is refused then.
"""

from __future__ import annotations

from collections.abc import Iterator

from sgld.realtime.messages import SessionCommand, SessionReport

LOST = "engine_lost"


class SessionLedger:
    """All sessions that were asked for and have not ended. Not thread-safe: its owner locks."""

    def __init__(self) -> None:
        self._opening: dict[str, int] = {}
        """Session → number of the `open` that is not answered."""
        self._live: set[str] = set()

    def __len__(self) -> int:
        return len(self._opening) + len(self._live)

    def ask(self, command: SessionCommand) -> None:
        """A command goes to the engine."""
        id = command.session_id
        if command.kind == "open" and id not in self._live:
            self._opening.setdefault(id, command.number)

    def note(self, report: SessionReport) -> SessionReport | None:
        """Take in a report of the engine; returns it if its owner should see it."""
        id = report.session_id
        if report.kind == "opened":
            # A repeated `open` may be refused while the session lives.
            self._opening.pop(id, None)
            if not report.code:
                self._live.add(id)
        elif report.kind == "closed":
            if id not in self._live:
                return None
            self._live.discard(id)
        return report

    def lose(self, reason: str) -> list[SessionReport]:
        """The engine is gone: every session is, too."""
        reports = list(self._ends(reason))
        self._opening.clear()
        self._live.clear()
        return reports

    def _ends(self, reason: str) -> Iterator[SessionReport]:
        text = f"The engine was lost while it had this session: {reason}"
        for id, number in self._opening.items():
            yield SessionReport(id, "opened", number, code=LOST, message=text)
        for id in sorted(self._live):
            values = {"reason": "failed"}
            yield SessionReport(id, "closed", values=values, code=LOST, message=text)


def refused_without_engine(command: SessionCommand, status: str) -> SessionReport | None:
    """The answer to a command that no engine can do now; None for those that want no answer."""
    if command.kind == "open":
        return SessionReport(
            command.session_id,
            "opened",
            command.number,
            values={"retry_after": 5},
            code=LOST if status in ("failed", "stopped") else "not_ready",
            message=f"The engine is {status}; try again when it is ready.",
        )
    if command.kind == "taken" or (command.kind == "event" and not command.number):
        return None
    return SessionReport(
        command.session_id,
        "answer",
        command.number,
        code="session_not_found",
        message=f"There is no live session {command.session_id!r}.",
    )
