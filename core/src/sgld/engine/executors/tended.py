"""An engine in its own process, tended: no request may take it down, its memory is watched, its
events leave by the wire. Imports torch: only the engine's process uses it."""

from __future__ import annotations

import gc
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from sgld.api.errors import DeviceError, SgldError
from sgld.engine.executors.executor import Told
from sgld.engine.executors.ledger import LAST
from sgld.engine.executors.wire import Wire
from sgld.messages import Event, Request
from sgld.observe.profile import RequestProfiler
from sgld.platforms.platform import Memory, Platform
from sgld.realtime.messages import SessionCommand, SessionReport

if TYPE_CHECKING:
    from sgld.engine.executors.in_process import Drivable

log = structlog.get_logger("sgld.engine")

GIB: Final = 2**30


class TendedEngine:
    """What drives an engine calls this instead.

    Args:
        wire: where events go.
        platform: the engine's device.
        profiles: folder of profiler traces; empty: the default one.
    """

    engine: Drivable
    """Set once it is built: building it needs `emit`."""

    def __init__(self, wire: Wire, platform: Platform, profiles: str) -> None:
        self._wire = wire
        self._platform = platform
        self._profiler = RequestProfiler(Path(profiles) if profiles else None)
        self._to_profile: set[str] = set()
        self._ended = False
        self._failed = False
        self._reported = time.monotonic()
        self._stages: list[Event] = []

    def submit(self, request: Request) -> None:
        """Queue a request; what is wrong with it fails it alone."""
        if request.profile:
            self._to_profile.add(request.id)
        try:
            self.engine.submit(request)
        except Exception as error:
            code = error.code if isinstance(error, SgldError) else "internal_error"
            log.error("request refused", request=request.id, exc_info=error)
            self.emit(Event("failed", request.id, code=code, message=str(error)))

    def cancel(self, request_id: str) -> None:
        """Drop a request; see `Engine.cancel`."""
        self.engine.cancel(request_id)

    def command(self, command: SessionCommand) -> None:
        """Ask something of a session; see `Engine.command`."""
        self.engine.command(command)

    def turn(self) -> bool:
        """One forward. False when there was nothing to do.

        Raises:
            DeviceError: the device does not answer any more, so the process is of no use.
        """
        with self._profiler.mark("turn"):
            busy = self.engine.turn()
        if self._failed:
            self._recover()
        if self._ended:
            self.report_memory()
        return busy

    def close(self) -> None:
        """Cancel what runs and free the components."""
        self.engine.close()

    def report_memory(self, at_most_every: float = 0.0) -> None:
        """Tell the parent of the device's memory, unless that was done a short while ago."""
        now = time.monotonic()
        if now - self._reported >= at_most_every:
            self._reported, self._ended = now, False
            self._wire.send({"kind": "memory", "memory": self._platform.memory()._asdict()})

    def emit(self, event: Told) -> None:
        """Send what the engine tells. A session's chunks may come from another thread."""
        if isinstance(event, SessionReport):
            self._report(event)
            return
        self._ended = self._ended or event.kind in LAST
        if event.request_id in self._to_profile:
            event = self._profile(event)
        if event.kind == "failed":
            self._failed = True
            if event.code == "out_of_memory":
                # The engine has already freed the request's own memory.
                text = f"{event.message} {describe_memory(self._platform.memory())}"
                event = replace(event, message=text)
        if event.kind == "stage":
            # Nobody waits for these: they ride with the next event, since each message costs both
            # processes a tenth of a millisecond.
            self._stages.append(replace(event, at=time.time()))
            return
        stages, self._stages = self._stages, []
        try:
            self._wire.send({"kind": "event", "event": event, "before": stages})
        except ConnectionError:
            raise
        except (ValueError, TypeError, OverflowError, OSError) as error:
            log.error("an event cannot be sent", kind=event.kind, exc_info=error)
            message = f"The result cannot be handed over: {error}"
            failed = Event("failed", event.request_id, code="internal_error", message=message)
            self._wire.send({"kind": "event", "event": failed, "before": stages})

    def _report(self, report: SessionReport) -> None:
        if report.kind == "closed":
            self._ended = True
            self._failed = self._failed or bool(report.code)
        try:
            self._wire.send({"kind": "report", "report": report})
        except ConnectionError:
            raise
        except (ValueError, TypeError, OverflowError, OSError) as error:
            message = f"The result cannot be handed over: {error}"
            if report.kind == "chunk":
                # Told to whoever made the chunk: the session ends with this reason.
                raise SgldError(message, code="internal_error") from error
            log.error("a report cannot be sent", kind=report.kind, exc_info=error)
            refused = replace(report, values={}, code="internal_error", message=message)
            self._wire.send({"kind": "report", "report": refused})

    def _profile(self, event: Event) -> Event:
        """Follow a request that is profiled; its `done` event carries the trace's path."""
        id = event.request_id
        if event.kind == "started":
            self._profiler.start(id)
        elif event.kind == "step":
            self._profiler.step(id, event.stage)
        elif event.kind == "stage":
            self._profiler.stage_ended(id)
        elif event.kind == "done":
            path = self._profiler.stop(id)
            event = replace(event, message="" if path is None else str(path))
        elif event.kind in LAST:
            self._profiler.discard(id)
        if event.kind in LAST:
            self._to_profile.discard(id)
        return event

    def _recover(self) -> None:
        """After a failure: give freed memory back, so that the next request finds it, and see
        whether the device still works; some faults of a GPU end every later call too."""
        self._failed = False
        gc.collect()
        try:
            self._platform.synchronise()
            self._platform.empty_cache()
        except Exception as error:
            # torch's words for a broken device end in a page of advice for its own developers.
            first, _, _ = str(error).partition("\n")
            raise DeviceError(f"the device does not work any more: {first}") from error


def describe_memory(memory: Memory) -> str:
    """What is free of a device's memory, in a sentence."""
    free, total = (f"{value / GIB:.1f} GiB" for value in (memory.free, memory.total))
    return f"Without this request {free} of {total} are free."
