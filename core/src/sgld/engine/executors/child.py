"""An engine in a supervised process of its own: what `sgld serve` uses.

    executor = ChildExecutor(options, on_state=print)    returns at once, loads in the background
    executor.submit([request])                           waits for the engine, whatever its state
    executor.next_event(timeout=1.0)
    executor.state                                       an `EngineState`
    executor.close()

If the process dies it is started again with back-off. A request that was running is run once more
(`queued` comes again, no output comes twice) and fails with `engine_lost` if that ends the engine
again; waiting requests just wait on. Realtime sessions end with their process (`engine_lost`). An
engine that cannot be built at its first start is not tried again: the state says `failed` with the
reason, and every request fails with it. The process ends with this one, however this one ends.
Nothing here imports torch.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import structlog

from sgld.api.errors import SgldError
from sgld.engine.executors.executor import Executor, Told
from sgld.engine.executors.folder import OwnedFolder
from sgld.engine.executors.ledger import LAST, Ledger
from sgld.engine.executors.process import EngineProcess, Message
from sgld.engine.executors.session_ledger import SessionLedger, refused_without_engine
from sgld.engine.executors.state import EngineState
from sgld.engine.executors.wire import WireError
from sgld.messages import Event, Request
from sgld.params.serving import ServingOptions
from sgld.realtime.messages import SessionCommand, SessionReport

log = structlog.get_logger("sgld.engine")

FIRST_DELAY: Final = 0.5
LAST_DELAY: Final = 30.0
HEALTHY_SECONDS: Final = 60.0
"""An engine that was ready for so long starts the back-off anew."""
POLL_SECONDS: Final = 0.5
"""How often a silent engine's process is looked at, in case its end of the socket outlives it."""
GRACE_SECONDS: Final = 1.0
"""What a process gets to end by itself once the connection has ended."""


class ChildExecutor(Executor):
    """Runs an engine in a child process and keeps it running.

    Args:
        options: what to load and how.
        lock_json: the plugin lock (`sgld.plugins.lock.Lock.to_json`) that the child must find.
        environ: the child's environment; this process's own by default.
        restart_limit: how many starts in a row may end before the engine was ready; after these
            the state is `failed`.
        on_state: told of each change of `state`, on a thread of the executor; must not block.
        profile_folder: where traces of requests with `profile` go; see
            `sgld.observe.profile.default_folder` for None.
        first_delay: seconds before the first restart; doubles up to 30 s.
    """

    def __init__(
        self,
        options: ServingOptions,
        *,
        lock_json: str | None = None,
        environ: Mapping[str, str] | None = None,
        restart_limit: int = 5,
        on_state: Callable[[EngineState], None] | None = None,
        profile_folder: Path | None = None,
        first_delay: float = FIRST_DELAY,
    ) -> None:
        self._environ = dict(os.environ if environ is None else environ)
        self._restart_limit = restart_limit
        self._on_state = on_state
        self._first_delay = first_delay
        self._folder = OwnedFolder()
        self._start_message = {
            "kind": "start",
            "options": _serving_json(options),
            "lock": lock_json,
            "path": [entry or os.getcwd() for entry in sys.path],
            "folder": str(self._folder.path),
            "profiles": "" if profile_folder is None else str(profile_folder.absolute()),
        }
        self._lock = threading.RLock()
        self._state = EngineState()
        self._ledger = Ledger()
        self._sessions = SessionLedger()
        self._events: queue.SimpleQueue[Told] = queue.SimpleQueue()
        self._listener: Callable[[Sequence[Told]], None] | None = None
        self._process: EngineProcess | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._supervise, name="sgld-engine", daemon=True)
        self._thread.start()

    @property
    def state(self) -> EngineState:
        """How the engine is doing now."""
        return self._state

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests; those that cannot run any more fail by event. ValueError for an id that
        is open already, SgldError after `close`."""
        with self._lock:
            if self._closing.is_set():
                raise SgldError("the model is closed", code="closed")
            self._tell(self._ledger.add(requests))
            if self._state.status == "failed":
                self._tell(self._ledger.end(_unavailable(self._state.reason)))
            self._feed()

    def cancel(self, request_id: str) -> None:
        """Ask for a request to stop; at most one more step of it runs. Unknown ids do nothing."""
        with self._lock:
            event, engine_must_know = self._ledger.cancel(request_id)
            if event is not None:
                self._tell([event])
            if engine_must_know and self._process is not None:
                self._process.send({"kind": "cancel", "id": request_id})

    def command(self, command: SessionCommand) -> None:
        """Ask something of a session; refused by report while the engine is not ready, and
        SgldError after `close`. Never waits."""
        with self._lock:
            if self._closing.is_set():
                raise SgldError("the model is closed", code="closed")
            if self._process is not None and self._state.status == "ready":
                self._sessions.ask(command)
                self._process.send({"kind": "command", "command": command})
            elif report := refused_without_engine(command, self._state.status):
                self._tell([report])

    def next_event(self, timeout: float | None = None) -> Told | None:
        """The next event in order; None after `timeout` seconds without one. Never raises."""
        try:
            return self._events.get(timeout=timeout)
        except queue.Empty:
            return None

    def deliver_to(self, listener: Callable[[Sequence[Told]], None]) -> bool:
        """Hand events over at once; those that already wait come first."""
        with self._lock:
            while not self._events.empty():
                listener([self._events.get()])
            self._listener = listener
        return True

    def close(self, timeout: float = 10.0) -> None:
        """Cancel what runs and end the process; kill it if it takes longer than `timeout` seconds,
        or at once if it is still loading. Safe to call again."""
        with self._lock:
            self._closing.set()
            process, ready = self._process, self._state.status == "ready"
        if process is not None:
            if ready:
                process.send({"kind": "close"})
            if not ready or not process.wait(timeout):
                process.kill()
        if threading.current_thread() is not self._thread:
            self._thread.join()
            self._stop()

    # What follows runs on the supervising thread, unless a method says otherwise.

    def _supervise(self) -> None:
        delay, failures, ever_ready = self._first_delay, 0, False
        try:
            while not self._closing.is_set():
                ready_for, reason, hopeless = self._run_once()
                if self._closing.is_set():
                    return
                failures = 0 if ready_for is not None else failures + 1
                ever_ready = ever_ready or ready_for is not None
                if (hopeless and not ever_ready) or failures > self._restart_limit:
                    self._give_up(reason)
                    return
                if ready_for is not None and ready_for >= HEALTHY_SECONDS:
                    delay = self._first_delay
                log.error("engine lost", reason=reason, restart_in=delay)
                self._lose(reason)
                self._closing.wait(delay)
                delay = min(delay * 2, LAST_DELAY)
        except Exception as error:  # a fault here must not leave requests waiting for ever
            log.exception("engine supervision failed")
            self._give_up(f"supervision failed: {error!r}")
        finally:
            self._folder.close()
            if self._closing.is_set():
                self._stop()

    def _run_once(self) -> tuple[float | None, str, bool]:
        """One life of the process: seconds it was ready (None: never), why it ended, and whether
        another start would end the same."""
        try:
            process = EngineProcess(self._start_message, self._environ, self._refused)
        except OSError as error:
            return None, f"the engine's process could not be started: {error}", False
        with self._lock:
            self._process = process
            if self._closing.is_set():
                process.kill()
        restarts = self._state.restarts + (self._state.status == "restarting")
        self._change(status="starting", reason="", pid=process.pid, restarts=restarts, loading={})
        life = _Life()
        try:
            self._listen(process, life)
        except EOFError:
            pass
        except WireError as error:
            process.kill()
            life.reason = f"it sent what is no message: {error}"
        finally:
            with self._lock:
                self._process = None
            closing = self._closing.is_set()
            ended = process.reap(0.0 if life.reason and not life.hopeless else GRACE_SECONDS)
            self._folder.empty()
        if not closing:
            log.info("engine process ended", pid=process.pid, how=ended)
        return life.ready_for(), life.reason or ended, life.hopeless

    def _listen(self, process: EngineProcess, life: _Life) -> None:
        while True:
            if not process.wire.readable(POLL_SECONDS):
                if not process.alive():
                    return
                continue
            message = process.wire.receive()
            try:
                self._take(message, life)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise WireError(f"{message['kind']!r} lacks something: {error!r}") from error

    def _take(self, message: dict[str, Any], life: _Life) -> None:
        kind = message["kind"]
        if kind == "event":
            self._events_came([*message.get("before", ()), message["event"]])
        elif kind == "report":
            self._report(message["report"])
        elif kind == "memory":
            self._change(device_memory=_numbers(message["memory"]))
        elif kind == "loading":
            row = (int(message["done"]), int(message["total"]))
            loading = {**self._state.loading, str(message["component"]): row}
            self._change(status="loading", loading=loading)
        elif kind == "ready":
            life.ready_since = time.monotonic()
            memory = _numbers(message["memory"])
            capabilities = dict(message["capabilities"])
            with self._lock:
                self._change(status="ready", device_memory=memory, capabilities=capabilities)
                self._feed()
        elif kind == "unusable":
            life.reason, life.hopeless = str(message["reason"]), True
        elif kind == "lost":
            life.reason = str(message["reason"])
        else:
            raise WireError(f"an unknown message {kind!r}")

    def _events_came(self, events: Sequence[Any]) -> None:
        if not all(isinstance(event, Event) for event in events):
            raise WireError("an event that is none")
        with self._lock:
            seen = [event for each in events if (event := self._ledger.note(each)) is not None]
            self._tell(seen)
            if any(event.kind in LAST for event in seen):
                self._feed()

    def _report(self, report: Any) -> None:
        if not isinstance(report, SessionReport):
            raise WireError("a report that is none")
        with self._lock:
            seen = self._sessions.note(report)
            if seen is not None:
                self._tell([seen])

    def _lose(self, reason: str) -> None:
        with self._lock:
            self._tell(self._ledger.lose(reason))
            self._tell(self._sessions.lose(reason))
            self._change(status="restarting", reason=reason, pid=None, device_memory=None)

    def _give_up(self, reason: str) -> None:
        log.error("engine failed", reason=reason)
        with self._lock:
            self._change(status="failed", reason=reason, pid=None, device_memory=None)
            self._tell(self._ledger.end(_unavailable(reason)))
            self._tell(self._sessions.lose(reason))

    def _stop(self) -> None:
        with self._lock:
            if self._state.status != "stopped":
                self._tell(self._ledger.end())
                self._tell(self._sessions.lose("it was stopped."))
                self._change(status="stopped", pid=None, device_memory=None)

    def _refused(self, message: Message, error: Exception) -> None:
        """A request or command that cannot be sent fails alone. Runs on the thread that writes."""
        request, command = message.get("request"), message.get("command")
        log.error("a message could not be sent", kind=message["kind"], error=repr(error))
        if isinstance(request, Request):
            text = f"The request cannot be handed to the engine: {error}"
            self._events_came([Event("failed", request.id, code="internal_error", message=text)])
        if isinstance(command, SessionCommand):
            text = f"The command cannot be handed to the engine: {error}"
            kind = "opened" if command.kind == "open" else "answer"
            self._report(
                SessionReport(
                    command.session_id, kind, command.number, code="internal_error", message=text
                )
            )

    def _feed(self) -> None:
        """Send what may be sent. The caller holds the lock."""
        if self._process is not None and self._state.status == "ready":
            for request in self._ledger.take():
                self._process.send({"kind": "submit", "request": request})

    def _tell(self, events: Sequence[Told]) -> None:
        if self._listener is not None:
            self._listener(events)
            return
        for event in events:
            self._events.put(event)

    def _change(self, **fields: Any) -> None:
        with self._lock:
            self._state = replace(self._state, **fields)
            if self._on_state is not None:
                try:
                    self._on_state(self._state)
                except Exception:  # whoever watches must not stop what it watches
                    log.exception("on_state failed")


class _Life:
    """What one process told about itself."""

    def __init__(self) -> None:
        self.ready_since: float | None = None
        self.reason = ""
        self.hopeless = False

    def ready_for(self) -> float | None:
        """Seconds since it was ready; None if it never was."""
        return None if self.ready_since is None else time.monotonic() - self.ready_since


def _serving_json(options: ServingOptions) -> str:
    """Only what a `ServingOptions` knows, whatever subclass the owner uses. Files of locks are the
    owner's business: it hands the lock itself over."""
    return options.model_dump_json(
        include=set(ServingOptions.model_fields) - {"lock", "write_lock"}
    )


def _numbers(memory: Mapping[str, Any]) -> dict[str, int]:
    return {str(name): int(value) for name, value in memory.items()}


def _unavailable(reason: str) -> str:
    return f"The engine is not available: {reason}"
