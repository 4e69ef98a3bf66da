"""A torch profiler trace of one request, written as a Chrome trace (open it in Perfetto).

Used where the engine runs, on the thread that calls the model:

    profiler = RequestProfiler(folder)
    profiler.start(request_id)               # False when another request is being profiled
    with profiler.mark("turn"):              # names what runs inside, and looks at the clock
        ...
    profiler.step(request_id, stage)         # counts steps; past the limit, recording pauses
    profiler.stage_ended(request_id)         # recording goes on
    path = profiler.stop(request_id)         # the trace's file, or None

`profiled(path)` is the same for a block of code. Torch is imported by the first recording only.
"""

from __future__ import annotations

import importlib
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

import structlog

log = structlog.get_logger("sgld.profile")

MOST_STEPS: Final = 5
"""Steps recorded of every stage: they are alike, and each adds megabytes to the trace."""
MOST_SECONDS: Final = 120.0
"""Seconds after which nothing more is recorded: the profiler keeps all in memory until the end."""
LONGEST_NAME: Final = 100


def default_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where traces go when nobody says: SGLD_PROFILE_DIR, or `profiles` in the current folder."""
    return Path(environ.get("SGLD_PROFILE_DIR") or "profiles")


class Recording:
    """A running torch profiler, bounded in steps of each stage and in seconds.

    Only one may run in a process, and it must be started and stopped on the same thread.
    """

    def __init__(
        self,
        *,
        most_steps: int = MOST_STEPS,
        most_seconds: float = MOST_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._torch: Any = importlib.import_module("torch")
        profiler = self._torch.profiler
        if self._torch.autograd._profiler_enabled():
            # Torch would silently throw away what the other one has recorded.
            raise RuntimeError("another profiler is running in this thread")
        # The host, and whichever kind of device is here that this torch can look into.
        self._activities = sorted(profiler.supported_activities(), key=int)
        self._most_steps = most_steps
        self._clock = clock
        self._end = clock() + most_seconds
        self._paused = False
        self._steps: dict[str, int] = {}
        # Shapes tell which layer a kernel belongs to; stacks and memory would cost ten times more.
        self._profile: Any = profiler.profile(activities=self._activities, record_shapes=True)
        self._profile.start()

    @property
    def paused(self) -> bool:
        """Whether nothing is recorded now, because a limit was reached."""
        return self._paused

    def mark(self, name: str) -> AbstractContextManager[Any]:
        """Name what runs inside the block; past the time limit, recording pauses for good."""
        if self._clock() > self._end:
            self._pause(True)
        return self._torch.profiler.record_function(name)

    def step(self, stage: str) -> None:
        """A step of `stage` was done; after the last one wanted, recording pauses."""
        self._steps[stage] = self._steps.get(stage, 0) + 1
        if self._steps[stage] >= self._most_steps:
            self._pause(True)

    def next_stage(self) -> None:
        """A stage has ended: record again, unless the time is over."""
        if self._clock() <= self._end:
            self._pause(False)

    def discard(self) -> None:
        """Stop and throw away what was recorded."""
        profile, self._profile = self._profile, None
        if profile is not None:
            profile.stop()

    def save(self, path: Path) -> None:
        """Stop and write the trace to `path` (ending in `.json.gz`), all of it or nothing."""
        profile, self._profile = self._profile, None
        if profile is None:
            raise ValueError("the recording was stopped before")
        profile.stop()
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{os.getpid()}-{path.name}")
        try:
            profile.export_chrome_trace(str(partial))
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)

    def _pause(self, pause: bool) -> None:
        if pause != self._paused and self._profile is not None:
            self._paused = pause
            self._profile.toggle_collection_dynamic(not pause, self._activities)


@contextmanager
def profiled(path: Path, **limits: Any) -> Iterator[Recording]:
    """Record the block's torch work and write it to `path`, a `.json.gz`; nothing if it raises.

    `limits` are those of `Recording`.
    """
    recording = Recording(**limits)
    try:
        yield recording
    except BaseException:
        recording.discard()
        raise
    recording.save(path)


class RequestProfiler:
    """Profiles requests, one at a time.

    A request that asks while another is being profiled runs without a profile, with a warning in
    the log: waiting would change what is measured. A profiler that fails never fails a request, and
    a request that fails or is cancelled leaves no profile.

    Args:
        folder: where traces are written; made when needed. None: see `default_folder`.
        limits: those of `Recording`.
    """

    def __init__(self, folder: Path | None = None, **limits: Any) -> None:
        self._folder = folder
        self._limits = limits
        self._request = ""
        self._recording: Recording | None = None

    @property
    def request_id(self) -> str:
        """The request being profiled, or an empty string."""
        return self._request

    def start(self, request_id: str) -> bool:
        """Begin to record; False when that is not possible now."""
        if self._request:
            log.warning("not profiled: busy with another", request=request_id, busy=self._request)
            return False
        try:
            self._recording = Recording(**self._limits)
        except Exception as error:
            log.warning("not profiled", request=request_id, error=repr(error))
            return False
        self._request = request_id
        return True

    def mark(self, name: str) -> AbstractContextManager[Any]:
        """Name what runs inside the block, if anything is recorded."""
        return nullcontext() if self._recording is None else self._recording.mark(name)

    def step(self, request_id: str, stage: str) -> None:
        """A step of a request's stage was done."""
        if self._recording is not None and request_id == self._request:
            self._recording.step(stage)

    def stage_ended(self, request_id: str) -> None:
        """A request's stage has ended."""
        if self._recording is not None and request_id == self._request:
            self._recording.next_stage()

    def stop(self, request_id: str) -> Path | None:
        """End the recording of this request and write it; None if there is none or it failed."""
        recording = self._take(request_id)
        if recording is None:
            return None
        try:
            folder = default_folder() if self._folder is None else self._folder
            path = trace_path(folder.absolute(), request_id)
            recording.save(path)
        except Exception as error:
            log.warning("profile not written", request=request_id, error=repr(error))
            return None
        log.info("profile written", request=request_id, path=str(path))
        return path

    def discard(self, request_id: str) -> None:
        """End the recording of this request, if there is one, and write nothing."""
        recording = self._take(request_id)
        if recording is None:
            return
        try:
            recording.discard()
        except Exception as error:
            log.warning("profiler did not stop", request=request_id, error=repr(error))

    def _take(self, request_id: str) -> Recording | None:
        if not self._request or request_id != self._request:
            return None
        recording, self._recording, self._request = self._recording, None, ""
        return recording


def trace_path(folder: Path, request_id: str) -> Path:
    """A file in `folder` that does not exist yet, named after the request.

    Ids may come from a client's header: what is no letter, digit, dot, dash or underscore becomes
    an underscore.
    """
    stem = re.sub(r"[^A-Za-z0-9_.-]", "_", request_id)[:LONGEST_NAME].lstrip(".") or "request"
    path, number = folder / f"{stem}.trace.json.gz", 2
    while path.exists():
        path = folder / f"{stem}-{number}.trace.json.gz"
        number += 1
    return path
