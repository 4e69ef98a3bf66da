"""Events of one executor, for several waiting threads: each gets those of its own requests.

    box = mailboxes.submit(requests)        before this, nothing of these requests can happen
    box.next()                              waits; None after the last event
    box.close()                             cancels what has not ended

    box = mailboxes.join("session")         before the session is opened
    box.next(), box.close()                 as above; reports, until it is closed

An executor has one stream of events. Whoever waits and finds nobody reading it reads for all, so no
thread of its own is needed and nothing is read while nobody waits.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

from sgld.engine.executors.executor import Executor, Told
from sgld.messages import LAST, Event, Request
from sgld.realtime.messages import SessionReport


class Mailboxes:
    """Sorts an executor's events by request."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._boxes: dict[str, Mailbox] = {}
        self._sessions: dict[str, SessionBox] = {}
        # Requests that their owner left: their last event is still to come, and must not be taken
        # for that of a later request with the same id.
        self._left: Counter[str] = Counter()
        # Reentrant: a generator that is collected while this thread holds the lock closes its box.
        self._changed = threading.Condition(threading.RLock())
        self._reading = False
        self._lost: BaseException | None = None

    def submit(self, requests: Sequence[Request]) -> Mailbox:
        """Submit requests, all before the first one runs, and wait for their events in the result.

        Raises ValueError when an id is already open, and what the executor's `submit` raises.
        """
        ids = [request.id for request in requests]
        with self._changed:
            taken = sorted({id for id in ids if id in self._boxes or ids.count(id) > 1})
            if taken:
                raise ValueError(f"request ids that are already open: {', '.join(taken)}")
            box = Mailbox(self, set(ids))
            self._boxes.update(dict.fromkeys(ids, box))
            try:
                # Under the lock, so that what `leave` cancels and a later request with the same id
                # reach the engine in this order.
                self._executor.submit(requests)
            except BaseException:
                for id in ids:
                    del self._boxes[id]
                raise
        return box

    def next(self, box: Mailbox) -> Event | None:
        """The next event of a box; None when all its requests have ended.

        Raises the engine's own error when the engine is lost.
        """
        return self._next(box)

    def join(self, session_id: str) -> SessionBox:
        """The box of a session that is about to be opened. ValueError when it has one."""
        with self._changed:
            if session_id in self._sessions:
                raise ValueError(f"session id {session_id!r} is already open")
            box = self._sessions[session_id] = SessionBox(self, session_id)
        return box

    def report(self, box: SessionBox) -> SessionReport | None:
        """The next report of a session; None when it has ended. Raises as `next`."""
        return self._next(box)

    def part(self, box: SessionBox) -> None:
        """Forget a session's reports."""
        with self._changed:
            box.open.clear()
            if self._sessions.get(box.id) is box:
                del self._sessions[box.id]

    def _next(self, box: Mailbox | SessionBox) -> Any:
        while True:
            with self._changed:
                if box.events:
                    return box.events.popleft()
                if not box.open:
                    return None
                if self._lost is not None:
                    raise self._lost
                if self._reading:
                    self._changed.wait()
                    continue
                self._reading = True
            self._read()

    def leave(self, box: Mailbox) -> None:
        """Cancel the requests of a box that have not ended and forget their events."""
        with self._changed:
            for id in sorted(box.open):
                del self._boxes[id]
                self._left[id] += 1
                self._executor.cancel(id)
            box.open.clear()
            box.events.clear()

    def _read(self) -> None:
        """Read one event for all; whatever happens, the next one may read afterwards."""
        event: Told | None = None
        lost: BaseException | None = None
        try:
            event = self._executor.next_event()
        except KeyboardInterrupt:
            raise  # this reader was interrupted; the engine is well
        except BaseException as error:  # whatever ended the engine, everybody must hear of it
            lost = error
        finally:
            with self._changed:
                self._reading = False
                self._lost = self._lost or lost
                if event is not None:
                    self._deliver(event)
                self._changed.notify_all()

    def _deliver(self, event: Told) -> None:
        if isinstance(event, SessionReport):
            self._deliver_report(event)
            return
        id = event.request_id
        if self._left[id]:
            if event.kind in LAST:
                self._left[id] -= 1
                self._left += Counter()  # drops what has come to zero
            return
        box = self._boxes.get(id)
        if box is None:
            return
        box.events.append(event)
        if event.kind in LAST:
            box.open.discard(id)
            del self._boxes[id]

    def _deliver_report(self, report: SessionReport) -> None:
        box = self._sessions.get(report.session_id)
        if box is None:
            return
        box.events.append(report)
        if report.kind == "closed" or (report.kind == "opened" and report.code):
            box.open.discard(box.id)
            del self._sessions[box.id]


class Mailbox:
    """Events of some requests, in order."""

    def __init__(self, owner: Mailboxes, ids: set[str]) -> None:
        self._owner = owner
        self.open = ids
        self.events: deque[Event] = deque()

    def next(self) -> Event | None:
        """The next event, when it comes; None after the last one. Raises as `Mailboxes.next`."""
        return self._owner.next(self)

    def close(self) -> None:
        """Cancel what has not ended. Safe to call again."""
        self._owner.leave(self)


class SessionBox:
    """Reports of one session, in order."""

    def __init__(self, owner: Mailboxes, id: str) -> None:
        self._owner = owner
        self.id = id
        self.open = {id}
        self.events: deque[SessionReport] = deque()

    def next(self) -> SessionReport | None:
        """The next report, when it comes; None after the last one. Raises as `Mailboxes.next`."""
        return self._owner.report(self)

    def close(self) -> None:
        """Want no more reports. Safe to call again."""
        self._owner.part(self)
