"""What a plugin leaves behind in its process that cannot be put back: threads, signal handlers.

Public: `Left`.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from typing import Any


class Left:
    """Threads and signal handlers as they are now.

    left = Left()
    ...                 # foreign code
    left.told()         # what is there now and was not, each as a predicate
    """

    def __init__(self) -> None:
        self._threads = set(threading.enumerate())
        self._handlers = _handlers()

    def told(self) -> list[str]:
        """One predicate for each thread that runs on and each handler that is another one."""
        new = set(threading.enumerate()) - self._threads
        threads = map(_started, sorted(new, key=lambda thread: thread.name))
        return [*threads, *self._changed()]

    def _changed(self) -> Iterator[str]:
        # Elsewhere plugins are described on a thread of their own, where Python refuses this.
        for number, handler in _handlers().items():
            if handler is not self._handlers[number]:
                name = signal.Signals(number).name
                yield f"set the handler of {name}, which other commands do not let it do"


def _handlers() -> dict[signal.Signals, Any]:
    """Of every signal that has a name; the real-time ones have none."""
    return {number: signal.getsignal(number) for number in signal.Signals}


def _started(thread: threading.Thread) -> str:
    holds = "" if thread.daemon else ", which keeps every command from ending"
    return f"started thread {thread.name!r}{holds}"
