"""Takes commands about sessions and answers each of them; see `sgld.realtime.messages`.

What goes wrong with one session ends that one: it is closed with a code, and nothing of it stays.
Everything runs on the engine's thread; only chunks that are decoded on the lane are handed over
from there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import structlog
import torch

from sgld.api.errors import Cancelled, SgldError
from sgld.engine.causal import CausalPipeline
from sgld.engine.faults import as_request_error
from sgld.engine.forwards import Forwards
from sgld.engine.sessions.answers import Answers, refusal
from sgld.engine.sessions.budget import Budget, Refusal
from sgld.engine.sessions.doing import Doing, Halfway
from sgld.engine.sessions.driving import Driver
from sgld.engine.sessions.jobs import Jobs
from sgld.engine.sessions.lane import Lane
from sgld.engine.sessions.opening import Opener, SessionSettings
from sgld.engine.sessions.session import Session
from sgld.realtime.messages import SessionCommand, SessionReport

log = structlog.get_logger("sgld.engine")

AT_REST: Final = ("reset", "rewind", "fork", "snapshot")
"""Commands that wait for a chunk boundary."""
GOES_BACK: Final = ("reset", "rewind")
"""Those that have no use for the chunk that is being made."""


class Sessions:
    """The live sessions of one engine.

    Args:
        pipeline: the family.
        validate: turns parameters into the family's validated object.
        forwards: runs calls.
        device: where states live.
        emit: receives every report; chunks that were decoded beside the engine come from another
            thread, in their session's order.
        wake: told from another thread that `collect` has something to do.
        clock: seconds, never going back.
    """

    def __init__(
        self,
        pipeline: CausalPipeline,
        validate: Callable[[Any], Any],
        forwards: Forwards,
        device: torch.device,
        emit: Callable[[SessionReport], Any],
        settings: SessionSettings,
        *,
        wake: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._emit = emit
        self._lane = Lane(device, wake)
        self._driver = Driver(Jobs(pipeline, device), forwards, self._lane, self, clock)
        self._live: dict[str, Session] = {}
        self._closing: dict[str, Session] = {}
        self._answers = Answers(emit)
        self.budget = Budget(
            settings.memory,
            settings.most,
            settings.undo_memory,
            clock=clock,
            alarm=partial(_ring, wake),
        )
        self._opener = Opener(pipeline, validate, settings, device, self.budget, emit, clock)
        self._doing = Doing(self._opener, self._enter, self._reopen)

    # What the engine asks.

    def command(self, command: SessionCommand) -> None:
        """Do what is asked, or refuse it; the answer comes as a report."""
        if command.kind == "open":
            self._open(command)
            return
        session = self._live.get(command.session_id)
        if session is None:
            self._answers.unknown(command)
        elif command.kind == "taken":
            chunk = command.values.get("chunk")
            if isinstance(chunk, int):
                session.outlet.taken(chunk)
        elif self._answers.repeated(session, command):
            return
        elif command.kind == "close":
            self._answers.done(session, command, {"chunk": session.next_index})
            self._end(session, "closed")
        else:
            session.pending.append(command)
            self._settle(session)

    def next(self) -> tuple[Session, bool] | None:
        """The most urgent session that a turn would bring further, and whether it is hungry."""
        ready = [row for row in self._live.values() if self._driver.runnable(row)]
        if not ready:
            return None
        session = min(ready, key=lambda row: row.urgency)
        return session, self._driver.hungry(session)

    def turn(self, session: Session) -> None:
        """One forward of a session."""
        self._driver.turn(session)

    def collect(self) -> None:
        """Take note of what the lane has done."""
        self._driver.collect()

    def busy(self) -> bool:
        """Whether the lane works, or a session would run if it had a turn."""
        return self._lane.busy() or self.next() is not None

    def close(self) -> None:
        """End every session and the lane's thread."""
        for session in list(self._live.values()):
            self._end(session, "failed", Cancelled("the model was closed"))
        self._lane.close()
        for session in list(self._closing.values()):
            self.released(session)

    # What the driver tells.

    def opened(self, session: Session) -> None:
        snapshot, session.restoring = session.restoring, None
        state = session.state
        assert state is not None
        if state.undo < session.options.rewind_chunks:
            raise Refusal(
                f"this model remembers {state.undo} chunks, not {session.options.rewind_chunks}.",
                code="unsupported_feature",
                field="rewind_chunks",
            )
        if snapshot is not None:
            state.restore(snapshot.state)
            session.first_index, session.event_id = snapshot.next_index, snapshot.event_id
        command, session.reply = session.reply, None
        session.reader = self._opener.reader(session)
        if command is not None and command.kind == "open":
            self._announce(session, command)
        elif command is not None:
            self._answers.done(session, command, {"chunk": session.next_index})
        self._settle(session)

    def rested(self, session: Session) -> None:
        self._settle(session)

    def complete(self, session: Session) -> None:
        session.outlet.flush()
        self._end(session, "complete")

    def failed(self, session: Session, error: Exception, *, lane: str | None = None) -> None:
        # Chunks before the one that failed are good, and may still be on the lane.
        self._end(session, "failed", error, finish=lane is None, stage=lane)

    def released(self, session: Session) -> None:
        """Free what a session holds and say that it is over."""
        if self._closing.get(session.id) is not session:
            return
        report, state = session.ended, session.state
        session.state = None
        session.outlet.flush()
        session.outlet.close()
        self._closing.pop(session.id, None)
        if state is not None:
            try:
                state.free()
            except Exception as error:  # a family's fault must not keep the memory promised
                log.error("a session's state was not freed cleanly", exc_info=error)
        self.budget.release(session)
        if report is not None and session.announced:
            reason = report.code or report.values["reason"]
            log.info("session closed", session=session.id, reason=reason)
            self._emit(report)

    # How commands are done.

    def _open(self, command: SessionCommand) -> None:
        known = self._live.get(command.session_id)
        if known is not None and self._answers.repeated(known, command):
            return
        try:
            self._check_free(command.session_id)
            session = self._opener.session(command)
        except Exception as error:
            self._emit(refusal(command, error))
            return
        session.reply = command
        self._live[session.id] = session
        self._driver.open(session)

    def _announce(self, session: Session, command: SessionCommand) -> None:
        report = self._opener.report(session, command.number)
        # The number of a `fork` is one of the parent's commands, which remembers it.
        if command.kind == "open":
            session.remember(command, report)
        session.announced = True
        log.info("session opened", session=session.id, bytes=report.values["bytes"])
        self._emit(report)

    def _check_free(self, id: str) -> None:
        if id in self._live or id in self._closing:
            raise Refusal(
                f"a session {id!r} is live.", code="session_exists", remedy="Choose another id."
            )

    def _enter(self, session: Session, command: SessionCommand) -> None:
        """Take in a fork."""
        self._live[session.id] = session
        self._announce(session, command)

    def _reopen(self, session: Session, command: SessionCommand) -> None:
        session.reply = command
        self._driver.open(session)

    def _settle(self, session: Session) -> None:
        """Do the commands that wait, in order, as far as they can be done now."""
        while session.pending and session.ended is None:
            command = session.pending[0]
            try:
                if command.kind == "rewind":
                    self._doing.steps_back(session, command)
                if command.kind == "fork":
                    self._check_free(str(command.values.get("id")))
                if command.kind in AT_REST and not self._at_rest(session, command):
                    return
                session.pending.popleft()
                values = self._doing.do(session, command)
            except Halfway as error:
                cause = error.__cause__
                self._end(session, "failed", cause if isinstance(cause, Exception) else error)
            except Exception as error:
                if session.pending and session.pending[0] is command:
                    session.pending.popleft()
                self._answers.refused(session, command, error)
            else:
                if values is not None:
                    self._answers.done(session, command, values)

    def _at_rest(self, session: Session, command: SessionCommand) -> bool:
        """Whether a session stands between two chunks, with nothing on the lane."""
        if command.kind in GOES_BACK and session.phase == "chunk":
            self._driver.drop_chunk(session)
        return session.phase == "idle" and not self._lane.pending(session)

    def _end(
        self,
        session: Session,
        reason: str,
        error: Exception | None = None,
        *,
        finish: bool = False,
        stage: str | None = None,
    ) -> None:
        """End a session: stop what runs, answer what waits, free all, say so once. With `finish`
        what is on the lane is handed over before. `stage` is where `error` happened; None: in what
        runs."""
        if session.ended is not None:
            return
        running, session.running = session.running, None
        if stage is None:
            stage = running.stage if running else ""
        cause = None if error is None else as_request_error(error, stage)
        session.ended = SessionReport(
            session.id,
            "closed",
            values={"reason": reason},
            code=cause.code if cause else "",
            message=str(cause) if cause else "",
        )
        if not finish:
            session.outlet.close()
        self._answers.remember_end(session)
        del self._live[session.id]
        self._closing[session.id] = session
        self._driver.stop(session, running, error)
        owed = [session.reply] if session.reply is not None else []
        for command in (*owed, *session.pending):
            gone = cause or Refusal("the session was closed.", code="session_not_found")
            if not (command.kind == "event" and not command.number):
                self._emit(refusal(command, gone))
        session.pending.clear()
        session.reply = None
        if error is not None and not isinstance(error, Cancelled):
            trace = None if isinstance(error, SgldError) else error
            log.error("session failed", session=session.id, message=str(cause), exc_info=trace)
        if not finish:
            self._lane.drop(session)
        if not self._lane.pending(session):
            self.released(session)


def _ring(wake: Callable[[], None], seconds: float) -> None:
    """Call `wake` after so many seconds; does not keep the process alive."""
    timer = threading.Timer(seconds, wake)
    timer.daemon = True
    timer.start()
