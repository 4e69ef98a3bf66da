"""The process that `sgld.engine.executors.child` starts: builds an engine and drives it.

    python -P -m sgld.engine.executors.worker FD

FD is one end of a socket pair; the first message says what to load. The process ends when it is
told to, and with its parent. The main thread drives the engine and sends its events itself, so that
whatever a request does to this process, the parent already knows that the request had started.
"""

from __future__ import annotations

import ctypes
import os
import queue
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import structlog

from sgld.api.errors import SgldError
from sgld.engine.executors.wire import Wire, WireError

if TYPE_CHECKING:
    from sgld.engine.executors.tended import TendedEngine
    from sgld.plan import ModelPlan

log = structlog.get_logger("sgld.engine")

UNUSABLE: Final = 3
"""Exit status when the engine cannot be built."""
LOST: Final = 4
"""Exit status when the engine cannot go on."""
MEMORY_SECONDS: Final = 5.0
"""How often the device's memory is reported."""
PROGRESS_SECONDS: Final = 0.1
SET_PARENT_DEATH_SIGNAL: Final = 1

Message = Mapping[str, Any]
Inbox = queue.SimpleQueue[Message]


def main(fd: int) -> int:
    """Serve the connection `fd` until told to stop; returns the exit status."""
    _obey_only_the_parent()
    end = socket.socket(fileno=fd)
    end.set_inheritable(False)
    wire = Wire(end)
    try:
        start = wire.receive()
        inbox: Inbox = queue.SimpleQueue()
        threading.Thread(target=_read, args=(wire, inbox), name="sgld-inbox", daemon=True).start()
        return _serve(wire, start, inbox)
    except (EOFError, ConnectionError):  # the parent is gone
        return 0


def _obey_only_the_parent() -> None:
    """Ctrl-C and a service manager's SIGTERM reach every process of a group; here the parent
    decides when work ends. When the parent ends, so does this process."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def _read(wire: Wire, inbox: Inbox) -> None:
    try:
        while True:
            inbox.put(wire.receive())
    except (EOFError, OSError):
        # Also while loading, or within a long forward: nobody wants the result any more.
        os._exit(0)
    except WireError as error:
        log.error("the parent sent what is no message", error=str(error))
        os._exit(LOST)


def _serve(wire: Wire, start: Message, inbox: Inbox) -> int:
    sys.path[:] = start["path"]
    try:
        _configure_logs()
        plan, tended = _build(wire, start, inbox)
    except Exception as error:
        log.error("the engine cannot be built", exc_info=error)
        wire.send({"kind": "unusable", "reason": _reason(error)})
        return UNUSABLE
    try:
        _drive(tended, inbox)
        return 0
    except ConnectionError:
        raise
    except Exception as error:
        log.critical("the engine cannot go on", exc_info=error)
        wire.send({"kind": "lost", "reason": _reason(error)})
        # A broken device may hang in any tidying up.
        os._exit(LOST)
    finally:
        tended.close()
        plan.close()


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, SgldError) else f"{type(error).__name__}: {error}"


def _configure_logs() -> None:
    from sgld.observe.logs import configure_from_environment  # noqa: PLC0415

    configure_from_environment(os.environ)


def _build(wire: Wire, start: Message, inbox: Inbox) -> tuple[ModelPlan, TendedEngine]:
    wire.send({"kind": "loading", "component": "plan", "done": 0, "total": 1})
    # A checkpoint made on the fly goes where the parent finds it if this process is killed.
    tempfile.tempdir = start["folder"]
    try:
        plan = _plan(start)
    finally:
        tempfile.tempdir = None
    wire.send({"kind": "loading", "component": "plan", "done": 1, "total": 1})

    from sgld.engine.build import build_engine, open_platform  # noqa: PLC0415
    from sgld.engine.executors.tended import TendedEngine  # noqa: PLC0415

    platform = open_platform(plan)
    if platform.id == "cpu":
        _leave_triton_out(os.environ)
    tended = TendedEngine(wire, platform, start["profiles"])
    tended.engine = build_engine(plan, tended.emit, _progress(wire), platform=platform)
    tended.engine.on_wake(lambda: inbox.put({"kind": "wake"}))
    wire.send(
        {
            "kind": "ready",
            "memory": platform.memory()._asdict(),
            "capabilities": _capabilities(plan, platform),
        }
    )
    return plan, tended


def _leave_triton_out(environ: Mapping[str, str]) -> None:
    """Triton compiles for GPUs, but libraries import it as soon as it is installed: 75 MiB of
    memory that nothing on a CPU uses. From now on it is as if it were not installed, unless
    somebody wants its interpreter."""
    if environ.get("TRITON_INTERPRET", "0") in ("", "0"):
        sys.modules.setdefault("triton", None)  # pyright: ignore[reportArgumentType]


def _plan(start: Message) -> ModelPlan:
    from sgld.params.serving import ServingOptions  # noqa: PLC0415
    from sgld.plan import make_plan  # noqa: PLC0415
    from sgld.plugins.lock import Lock  # noqa: PLC0415

    lock = None if start["lock"] is None else Lock.from_json(start["lock"])
    return make_plan(ServingOptions.model_validate_json(start["options"]), lock=lock)


def _capabilities(plan: ModelPlan, platform: Any) -> dict[str, Any]:
    facts = platform.facts()
    return {
        "device": facts.device,
        "arch": facts.arch,
        "dtypes": sorted(facts.dtypes),
        "pipeline": plan.spec.id,
        "max_running": plan.max_running,
        "batching": plan.options.batching,
    }


def _progress(wire: Wire) -> Callable[[str, int, int], None]:
    """Tells the parent of loaded bytes, now and then and at each component's end."""
    told = 0.0

    def progress(component: str, done: int, total: int) -> None:
        nonlocal told
        now = time.monotonic()
        if done >= total or now - told >= PROGRESS_SECONDS:
            told = now
            wire.send({"kind": "loading", "component": component, "done": done, "total": total})

    return progress


def _drive(engine: TendedEngine, inbox: Inbox) -> None:
    busy = False
    while True:
        # Messages are taken between two forwards; with nothing to do, wait for one.
        message = _next(inbox, block=not busy)
        if message is None:
            busy = busy and engine.turn()
            engine.report_memory(at_most_every=MEMORY_SECONDS)
        elif message["kind"] == "close":
            return
        elif message["kind"] == "submit":
            engine.submit(message["request"])
            busy = True
        elif message["kind"] == "cancel":
            engine.cancel(message["id"])
            busy = True  # somebody may have waited for what it held
        elif message["kind"] == "command":
            engine.command(message["command"])
            busy = True
        elif message["kind"] == "wake":
            busy = True


def _next(inbox: Inbox, *, block: bool) -> Message | None:
    try:
        return inbox.get(block=block, timeout=MEMORY_SECONDS)
    except queue.Empty:
        return None


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
