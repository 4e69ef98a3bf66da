"""What each command does to a session that stands where the command needs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sgld.engine.sessions.budget import Refusal
from sgld.engine.sessions.opening import Opener
from sgld.engine.sessions.session import Session
from sgld.realtime.messages import SessionCommand

Values = Mapping[str, Any]


class Halfway(Exception):
    """A command went wrong after it had begun to change the session, which is of no use now; the
    reason is its cause."""


class Doing:
    """Does commands; each method gives the values of its answer, or None when it comes later.

    Args:
        opener: makes sessions.
        enter: takes a session in that was made by a fork, and announces it.
        reopen: runs the open stages of a session again; the command is answered after them.
    """

    def __init__(
        self,
        opener: Opener,
        enter: Callable[[Session, SessionCommand], None],
        reopen: Callable[[Session, SessionCommand], None],
    ) -> None:
        self._opener = opener
        self._enter = enter
        self._reopen = reopen

    def do(self, session: Session, command: SessionCommand) -> Values | None:
        """Do one command.

        Raises Halfway when the session cannot go on, anything else when nothing has changed.
        """
        method = getattr(self, f"_{command.kind}", None)
        if method is None:
            raise Refusal(f"there is no command {command.kind!r}.", code="invalid_command")
        return method(session, command)

    def steps_back(self, session: Session, command: SessionCommand) -> int:
        """By how many chunks a `rewind` goes back. Raises Refusal when that is not possible."""
        field = "to" if "to" in command.values else "chunks"
        value = command.values.get(field)
        remembered = session.options.rewind_chunks
        # A chunk that is being committed is final: its frames are on their way to the reader.
        committing = session.phase in ("frames", "commit")
        most = min(len(session.marks) + committing, remembered)
        here = session.next_index - (session.phase == "chunk")
        least = here - most if field == "to" else 1
        last = here if field == "to" else most
        if isinstance(value, int) and not isinstance(value, bool) and least <= value <= last:
            return here - value if field == "to" else value
        if remembered == 0:
            rule = "this session remembers nothing to go back to; open it with rewind_chunks"
        elif most == 0:
            rule = "no chunk has been made that could be taken back"
        else:
            rule = f"must be a whole number from {least} to {last} now"
        raise Refusal(f"{field}={value!r}: {rule}.", code="invalid_command", field=field)

    def _event(self, session: Session, command: SessionCommand) -> Values:
        values = command.values
        kind, control = values.get("kind"), values.get("control")
        if kind not in session.adapter.events or not isinstance(control, Mapping):
            known = ", ".join(session.adapter.events)
            raise Refusal(
                f"kind={kind!r} is no event of this model; there are: {known}.",
                code="invalid_event",
                field="kind",
            )
        adapter = session.adapter
        adapter.apply(kind, control, values.get("event_id"))
        return {"chunk": adapter.first_chunk(kind, control, session.next_index)}

    def _step(self, session: Session, command: SessionCommand) -> Values:
        if not session.paused:
            raise Refusal(
                "step is for a session that is paused or not free running.",
                code="invalid_command",
                remedy="Pause it first.",
            )
        index = session.next_index + session.credits
        if session.final or (index > session.first_index and session.is_last(index - 1)):
            raise Refusal("the last chunk has been asked for.", code="session_complete")
        session.credits += 1
        return {"chunk": index}

    def _pause(self, session: Session, command: SessionCommand) -> Values:
        session.paused = True
        return {"chunk": session.next_index}

    def _resume(self, session: Session, command: SessionCommand) -> Values:
        session.paused, session.credits = False, 0
        return {"chunk": session.next_index}

    def _reset(self, session: Session, command: SessionCommand) -> None:
        adapter = self._opener.adapter(session)
        state, session.state = session.state, None
        if state is not None:
            state.free()
        session.outlet.forget(0)
        session.adapter, session.event_id = adapter, None
        session.first_index, session.committed = 0, 0.0
        session.marks.clear()
        self._reopen(session, command)

    def _rewind(self, session: Session, command: SessionCommand) -> Values:
        chunks, state = self.steps_back(session, command), session.state
        assert state is not None
        controls = session.marks[-chunks][1] if chunks else None
        try:
            state.rollback(chunks)
            if controls is not None:
                session.adapter.load(controls)
        except Exception as error:
            raise Halfway from error
        for _ in range(chunks):
            session.marks.pop()
        session.outlet.forget(session.next_index)
        session.reader = self._opener.reader(session)
        return {"chunk": session.next_index}

    def _fork(self, session: Session, command: SessionCommand) -> Values:
        id = command.values.get("id")
        if not isinstance(id, str) or not id:
            raise Refusal("fork needs the id of the new session.", code="invalid_command")
        self._enter(self._opener.fork(session, id), command)
        return {"id": id, "chunk": session.next_index}

    def _snapshot(self, session: Session, command: SessionCommand) -> Values:
        return {"snapshot": self._opener.snapshot(session), "chunk": session.next_index}
