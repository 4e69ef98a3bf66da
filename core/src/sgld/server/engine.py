"""The engine as the HTTP process sees it: requests out, events in, never blocking the loop.

The executor hands its events over itself, or a thread reads them; each goes to the request that it
belongs to.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

import structlog

from sgld.api.errors import SgldError
from sgld.engine.executors.executor import Executor
from sgld.messages import LAST, Event, Request
from sgld.realtime.messages import SessionCommand, SessionReport

log = structlog.get_logger("sgld.server")


class Watched(Protocol):
    """What the server asks of an executor beyond `Executor`."""

    @property
    def state(self) -> Any:
        """An `EngineState`."""
        ...


class EngineClient:
    """Routes an executor's events to whoever submitted the request.

    Args:
        executor: the supervised engine.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._queues: dict[str, asyncio.Queue[Event]] = {}
        self._sessions: dict[str, asyncio.Queue[SessionReport]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = threading.Event()
        self._lost = ""
        self._thread = threading.Thread(target=self._pump, name="sgld-events", daemon=True)

    @property
    def state(self) -> Any:
        """The engine's state now."""
        return self._executor.state  # pyright: ignore[reportAttributeAccessIssue]

    def start(self) -> None:
        """Begin to read events, for the running loop."""
        self._loop = asyncio.get_running_loop()
        if not self._executor.deliver_to(self._hear):
            self._thread.start()

    async def close(self, timeout: float = 10.0) -> None:
        """Stop the engine and the reader; every open request ends. Safe to call again."""
        await asyncio.to_thread(self.close_executor)
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, timeout)
        self._lose("The engine was stopped.")

    def close_executor(self) -> None:
        """Stop the engine where there is no loop (any more)."""
        self._executor.close()
        self._stopping.set()

    @asynccontextmanager
    async def run(self, request: Request) -> AsyncIterator[AsyncIterator[Event]]:
        """Submit a request; the block iterates its events. Leaving early cancels it.

        Raises:
            SgldError: the engine is closed or lost for good.
            ValueError: a request with this id is open.
        """
        if self._lost:
            raise SgldError(self._lost, code="engine_lost")
        if request.id in self._queues:
            raise ValueError(f"request id {request.id!r} is already open")
        queue: asyncio.Queue[Event] = asyncio.Queue()
        self._queues[request.id] = queue
        ended = False

        async def events() -> AsyncIterator[Event]:
            nonlocal ended
            while not ended:
                event = await queue.get()
                ended = event.kind in LAST
                yield event

        try:
            self._executor.submit([request])
            yield events()
        finally:
            self._queues.pop(request.id, None)
            if not ended:
                self._executor.cancel(request.id)

    def join(self, session_id: str) -> asyncio.Queue[SessionReport]:
        """Where the reports of a session arrive from now on, in order; see `leave`."""
        reports: asyncio.Queue[SessionReport] = asyncio.Queue()
        self._sessions[session_id] = reports
        if self._lost:
            reports.put_nowait(_lost_session(session_id, self._lost))
        return reports

    def leave(self, session_id: str) -> None:
        """Nobody reads the reports of a session any more."""
        self._sessions.pop(session_id, None)

    def command(self, command: SessionCommand) -> None:
        """Ask something of a session; the answer is among its reports.

        Raises:
            SgldError: the engine is closed or lost for good.
        """
        if self._lost:
            raise SgldError(self._lost, code="engine_lost")
        self._executor.command(command)

    def _pump(self) -> None:
        while not self._stopping.is_set():
            try:
                event = self._executor.next_event(timeout=0.5)
            except Exception as error:  # an engine that is lost for good says so in its state
                if not self._stopping.is_set():
                    log.error("engine events ended", error=repr(error))
                    self._call(self._lose, f"The engine was lost: {error}")
                return
            if event is not None:
                self._hear([event])

    def _hear(self, events: Sequence[Event | SessionReport]) -> None:
        if events:
            self._call(self._deliver_all, events)

    def _deliver_all(self, events: Sequence[Event | SessionReport]) -> None:
        for event in events:
            self._deliver(event)

    def _deliver(self, event: Event | SessionReport) -> None:
        if isinstance(event, SessionReport):
            reports = self._sessions.get(event.session_id)
            if reports is not None:
                reports.put_nowait(event)
            return
        queue = self._queues.get(event.request_id)
        if queue is not None:
            queue.put_nowait(event)

    def _lose(self, reason: str) -> None:
        self._lost = reason
        for request_id, queue in self._queues.items():
            queue.put_nowait(Event("failed", request_id, code="engine_lost", message=reason))
        for session_id, reports in self._sessions.items():
            reports.put_nowait(_lost_session(session_id, reason))

    def _call(self, function: Any, *arguments: Any) -> None:
        loop = self._loop
        if loop is None or loop.is_closed():
            return
        try:
            loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # the loop closed between the check and the call
            return


def _lost_session(session_id: str, reason: str) -> SessionReport:
    return SessionReport(session_id, "closed", code="engine_lost", message=reason)
