"""Drives sessions through their jobs, one forward a turn.

    opening → idle → chunk → commit → idle → ...        frames are decoded on the lane meanwhile
                     chunk → frames → commit → idle     where they cannot

Whatever a stage, a family or a module does wrong is told to the owner, who ends that session.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import structlog

from sgld.engine.causal import CausalPipeline
from sgld.engine.forwards import Forwards, Member
from sgld.engine.job import Job
from sgld.engine.pipeline import stages_of
from sgld.engine.running import Running
from sgld.engine.sessions.jobs import FrameWork, Jobs, chunk_report, split_seconds
from sgld.engine.sessions.lane import Lane
from sgld.engine.sessions.session import Session
from sgld.realtime.messages import SessionReport

log = structlog.get_logger("sgld.engine")


class Owner(Protocol):
    """Who is told what becomes of sessions."""

    def opened(self, session: Session) -> None:
        """The state is there."""
        ...

    def rested(self, session: Session) -> None:
        """A chunk is over, or one has left the lane."""
        ...

    def complete(self, session: Session) -> None:
        """The last chunk was handed over."""
        ...

    def failed(self, session: Session, error: Exception, *, lane: str | None = None) -> None:
        """Something went wrong; `lane` is the stage where it did on the lane, None: elsewhere."""
        ...

    def released(self, session: Session) -> None:
        """The lane has let go of a session that has ended."""
        ...


class Driver:
    """Runs sessions' stages.

    Args:
        jobs: makes their jobs.
        forwards: runs calls.
        lane: decodes beside the engine.
        owner: hears of everything.
        clock: seconds, never going back.
    """

    def __init__(
        self,
        jobs: Jobs,
        forwards: Forwards,
        lane: Lane,
        owner: Owner,
        clock: Callable[[], float],
    ) -> None:
        self._jobs = jobs
        self._forwards = forwards
        self._lane = lane
        self._owner = owner
        self._clock = clock

    @property
    def _pipeline(self) -> CausalPipeline:
        return self._jobs.pipeline

    def runnable(self, session: Session) -> bool:
        """Whether a turn would bring it further."""
        if session.running is not None:
            return True
        return session.wants_chunk(self._lane.pending(session))

    def hungry(self, session: Session) -> bool:
        """Whether its reader is about to run dry."""
        if session.state is None or session.credits:
            return True
        chunk = session.chunk or session.plan.chunk(session.next_index)
        return session.reader.hungry(self._clock(), self._pipeline.frames(chunk))

    def open(self, session: Session) -> None:
        """Begin with the open stages."""
        with _Guard(self._owner, session):
            session.phase = "opening"
            session.running = running = self._jobs.opening(session)
            running.start()
            self._follow(session)

    def turn(self, session: Session) -> None:
        """One forward of a session that is runnable, and what follows up to its next call."""
        with _Guard(self._owner, session):
            if session.running is None:
                self._begin_chunk(session)
            running = session.running
            if running is not None and (waiting := running.waiting()):
                self._forwards.run_alone(Member(running, *waiting[0]))
                self._follow(session)

    def drop_chunk(self, session: Session) -> None:
        """Give up the chunk that is being made, and those that were asked for. The state is to be
        rolled back or freed next."""
        if session.running is not None:
            session.running.close()
        session.running, session.chunk, session.phase = None, None, "idle"
        session.credits = 0
        if session.options.rewind_chunks:
            session.adapter.load(session.before)

    def stop(self, session: Session, running: Running | None, error: Exception | None) -> None:
        """Stop what runs for a session that has ended; a state that was just being made is kept in
        the session, to be freed with it."""
        work, made = session.work, session.made
        session.work = session.made = None
        for row in (running, work.running if work is not None else None):
            if row is None:
                continue
            if session.phase == "opening" and "state" in row.job.slots:
                session.state = row.job.slots.state
            if error is None:
                row.close()
            else:
                row.fail(error)
        if made is not None:
            made.free()

    def collect(self) -> None:
        """Take note of what the lane has done."""
        for task in self._lane.collect():
            session: Any = task.owner
            if session.ended is not None:
                if not self._lane.pending(session):
                    self._owner.released(session)
            elif task.error is not None:
                self._owner.failed(session, task.error, lane=task.stage)
            elif session.final and not self._lane.pending(session):
                self._owner.complete(session)
            else:
                self._owner.rested(session)

    def _begin_chunk(self, session: Session) -> None:
        state = session.state
        assert state is not None
        # The open stages may have put frames before the first chunk.
        chunk = session.plan.chunk(state.next_index)._replace(first=state.next_frame)
        if session.options.rewind_chunks:
            session.before = session.adapter.dump()
        sampled = session.adapter.sample(chunk)
        session.event_id = sampled.event_id
        session.credits = max(session.credits - 1, 0)
        session.chunk, session.phase = chunk, "chunk"
        session.running = running = self._jobs.chunk(session, chunk, sampled.controls)
        running.start()
        self._follow(session)

    def _follow(self, session: Session) -> None:
        """Resume what has its results, through the ends of jobs, up to the next call."""
        while (running := session.running) is not None and not running.waiting():
            if not running.finished:
                running.advance()
            elif session.phase == "opening":
                self._opened(session, running)
            elif session.phase == "chunk":
                self._made(session, running)
            elif session.phase == "frames":
                self._decoded(session)
            else:
                self._committed(session, running)

    def _opened(self, session: Session, running: Running) -> None:
        session.state = state = running.job.slots.state
        state.opened()
        running.close()
        session.running, session.phase = None, "idle"
        self._owner.opened(session)

    def _made(self, session: Session, running: Running) -> None:
        """The latents of a chunk are there: frames and commit follow."""
        session.seconds = split_seconds(running.timings)
        chunk = running.job.slots.chunk
        session.final = session.is_last(chunk.index)
        # They are as good as there: who is on the lane must not look hungrier than it is.
        session.reader.given(self._clock(), self._pipeline.frames(chunk))
        frames = self._jobs.frames(session, running.job)
        beside = self._can_run_beside(session)
        work = FrameWork(session, frames, self._report(session), self._pipeline.frame_parts)
        if beside:
            self._lane.submit(session, work.beside(self._forwards))
            self._commit(session, running.job)
        else:
            session.work, session.made = work, running.job
            session.phase, session.running = "frames", frames
            frames.start()

    def _decoded(self, session: Session) -> None:
        work, made = session.work, session.made
        assert work is not None
        assert made is not None
        session.work = session.made = None
        work.hand_over()
        work.running.close()
        if session.ended is not None:  # by whoever heard of the chunk
            made.free()
            return
        self._commit(session, made)
        if session.final:
            self._owner.complete(session)

    def _commit(self, session: Session, made: Job) -> None:
        if session.final:
            made.free()
            session.running, session.phase = None, "idle"
            return
        session.phase, session.running = "commit", self._jobs.commit(session, made)
        session.running.start()

    def _committed(self, session: Session, running: Running) -> None:
        state, chunk = session.state, session.chunk
        assert state is not None
        assert chunk is not None
        session.committed = sum(running.timings.values())
        session.mark()
        self._check_memory(session)
        later = self._pipeline.frame_parts if self._can_run_beside(session) else ()
        state.advance(chunk, later=later)
        running.close()
        session.running, session.chunk, session.phase = None, None, "idle"
        self._owner.rested(session)

    def _check_memory(self, session: Session) -> None:
        """Say once that a family's formula is wrong: what it does not count nobody reserved."""
        assert session.state is not None
        held = session.state.nbytes()
        if held > session.promised and not session.warned:
            session.warned = True
            log.warning(
                "a session holds more memory than was reserved for it",
                session=session.id,
                held=held,
                reserved=session.promised,
            )

    def _can_run_beside(self, session: Session) -> bool:
        """Whether frames may be decoded on the lane: what they touch must be declared, and their
        components must stay where they are."""
        stages = stages_of(self._pipeline, "frame_stages", session.params)
        used = {name for stage in stages for name in stage.uses}
        declared = bool(self._pipeline.frame_parts) and bool(used)
        return declared and all(self._forwards.stays(name) for name in used)

    def _report(self, session: Session) -> Callable[..., SessionReport]:
        """Makes the report of the chunk that is being made, once its frames are there."""
        chunk, state = session.chunk, session.state
        assert chunk is not None
        assert state is not None
        own = set(self._pipeline.frame_parts)
        held = sum(part.nbytes() for name, part in state.parts.items() if name not in own)
        return partial(
            chunk_report,
            session.id,
            chunk.index,
            session.event_id,
            {**session.seconds, "commit": session.committed},
            held,
        )


class _Guard:
    """Tells the owner of an exception instead of raising it on."""

    def __init__(self, owner: Owner, session: Session) -> None:
        self._owner = owner
        self._session = session

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        if not isinstance(error, Exception):
            return False
        self._owner.failed(self._session, error)
        return True
