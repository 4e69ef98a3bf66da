"""Seconds of device work per call, measured without making the host wait inside a step."""

from __future__ import annotations

import time
from typing import Protocol

import torch

from sgld.platforms.streams import torch_of


class Watch(Protocol):
    """Something that knows how long it took."""

    def seconds(self) -> float:
        """Elapsed seconds; may wait for the device."""
        ...


class Stopwatch:
    """Times one call: by events where the device has them, by the clock elsewhere."""

    def __init__(self, device: torch.device) -> None:
        namespace = torch_of(device)
        self._events = namespace is not None
        self._seconds = 0.0
        if namespace is not None:
            self._begin = namespace.Event(enable_timing=True)
            self._end = namespace.Event(enable_timing=True)
            self._begin.record()
        else:
            self._start = time.perf_counter()

    def stop(self) -> None:
        """Mark the end of the call; does not wait."""
        if self._events:
            self._end.record()
        else:
            self._seconds = time.perf_counter() - self._start

    def seconds(self) -> float:
        """The elapsed seconds; waits for the device if it has not finished."""
        if self._events:
            self._end.synchronize()
            return self._begin.elapsed_time(self._end) / 1000
        return self._seconds


class Share:
    """One call's part of a shared forward's time."""

    def __init__(self, watch: Watch, calls: int) -> None:
        self._watch = watch
        self._calls = calls

    def seconds(self) -> float:
        """The forward's seconds over the number of calls in it."""
        return self._watch.seconds() / self._calls
