"""Ctrl-C and SIGTERM: both let a run end in good order."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Terminated(KeyboardInterrupt):
    """SIGTERM, to be cleaned up after as after Ctrl-C."""


class Stop:
    """Which signal asked for an end; 0 for none."""

    def __init__(self) -> None:
        self.signal = 0


@contextmanager
def stop_on_signals(cancel: Callable[[], None]) -> Iterator[Stop]:
    """The first SIGINT or SIGTERM calls `cancel` on a thread, the second raises KeyboardInterrupt
    (for SIGTERM `Terminated`).

    On a thread, because the interrupted main thread may hold the very lock that `cancel` needs.
    """
    stop = Stop()

    def handle(number: int, frame: Any) -> None:
        if stop.signal:
            raise Terminated if number == signal.SIGTERM else KeyboardInterrupt
        stop.signal = number
        threading.Thread(target=cancel, name="sgld-stop", daemon=True).start()

    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [(number, signal.signal(number, handle)) for number in numbers]
    try:
        yield stop
    finally:
        for number, handler in before:
            signal.signal(number, handler)


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM raises `Terminated` inside the block, so that everything is tidied up."""

    def handle(number: int, frame: Any) -> None:
        raise Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
