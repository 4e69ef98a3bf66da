"""An engine on a thread of this process: what `sgld generate` and `sgld.load` use."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

import structlog

from sgld.api.errors import SgldError
from sgld.engine.executors.executor import Executor, Told
from sgld.messages import Request
from sgld.realtime.messages import SessionCommand

log = structlog.get_logger("sgld.engine")


class Drivable(Protocol):
    """What the executor needs of an engine."""

    def on_wake(self, wake: Callable[[], None]) -> None: ...
    def submit(self, request: Request) -> None: ...
    def cancel(self, request_id: str) -> bool: ...
    def command(self, command: SessionCommand) -> None: ...
    def turn(self) -> bool: ...
    def close(self) -> None: ...


class InProcessExecutor(Executor):
    """Runs an engine on one thread, so that the caller's thread stays free for Ctrl-C and display.

    `build` makes the engine on that thread and is given the function that takes its events.
    Raises what `build` raises.
    """

    def __init__(self, build: Callable[[Callable[[Told], None]], Drivable]) -> None:
        self._events: queue.Queue[Told | BaseException] = queue.Queue()
        self._wishes: queue.Queue[Callable[[Drivable], object] | None] = queue.Queue()
        started: queue.Queue[BaseException | None] = queue.Queue()
        self._thread = threading.Thread(
            target=self._serve, args=(build, started), name="sgld-engine", daemon=True
        )
        self._closed = False
        self._lost: BaseException | None = None
        self._thread.start()
        try:
            error = started.get()
        except BaseException:
            # Interrupted while it loads: the thread finds this wish as soon as it has an engine.
            self._wishes.put(None)
            raise
        if error is not None:
            self._thread.join()
            raise error

    def submit(self, requests: Sequence[Request]) -> None:
        if self._lost is not None:
            raise self._lost
        if self._closed:
            raise SgldError("the model is closed", code="closed")
        batch = list(requests)
        self._wishes.put(lambda engine: [self._submit(engine, request) for request in batch])

    def _submit(self, engine: Drivable, request: Request) -> None:
        try:
            engine.submit(request)
        except ValueError as error:
            # One request with an id that is taken must not cost the others the engine. There is no
            # event for it either: its id belongs to the one that is running.
            log.error("request refused", request=request.id, reason=str(error))

    def cancel(self, request_id: str) -> None:
        self._wishes.put(lambda engine: engine.cancel(request_id))

    def command(self, command: SessionCommand) -> None:
        if self._lost is not None:
            raise self._lost
        if self._closed:
            raise SgldError("the model is closed", code="closed")
        self._wishes.put(lambda engine: engine.command(command))

    def next_event(self, timeout: float | None = None) -> Told | None:
        try:
            event = self._events.get(timeout=timeout)
        except queue.Empty:
            return None
        if isinstance(event, BaseException):
            self._events.put(event)  # whoever asks next must hear of it too
            raise event
        return event

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._wishes.put(None)
        self._thread.join()

    def _serve(
        self,
        build: Callable[[Callable[[Told], None]], Drivable],
        started: queue.Queue[BaseException | None],
    ) -> None:
        try:
            engine = build(self._events.put)
        except BaseException as error:
            started.put(error)
            return
        engine.on_wake(lambda: self._wishes.put(_look))
        started.put(None)
        ended: BaseException = SgldError("the model is closed", code="closed")
        try:
            self._drive(engine)
        except BaseException as error:  # the caller's thread must hear of it, whatever it is
            self._lost = ended = error
            self._events.put(error)  # before `close` reports what was open as cancelled
        try:
            engine.close()
        except Exception as error:
            log.error("the engine did not close cleanly", error=repr(error), exc_info=error)
        finally:
            # After the last events of what was open, so that every waiting thread ends.
            self._events.put(ended)

    def _drive(self, engine: Drivable) -> None:
        busy = False
        while True:
            try:
                # Wishes are taken between two forwards; with nothing to do, wait for one.
                wish = self._wishes.get(block=not busy)
            except queue.Empty:
                busy = engine.turn()
                continue
            if wish is None:
                return
            wish(engine)
            busy = True


def _look(engine: Drivable) -> None:
    """The wish to look whether there is something to do again."""
