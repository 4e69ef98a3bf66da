"""Work beside the engine: one thread that decodes finished chunks while the next ones are denoised.

On a GPU the thread has a stream of its own, so that both run on the device at once; on the CPU it
has cores of its own. Tasks run one after another in the order they were given. Everything here but
`_serve` and what it calls runs on the engine's thread.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import torch

from sgld.platforms.streams import mark, torch_of


class Task:
    """One piece of work of one owner.

    Args:
        owner: whose it is.
        work: runs on the lane's thread; looks at `cancelled` now and then.
        after: what the device has to do first.
    """

    def __init__(self, owner: Hashable, work: Callable[[Task], None], after: Any) -> None:
        self.owner = owner
        self.after = after
        self.cancelled = False
        self.error: Exception | None = None
        self.stage = ""
        """Where `work` says that it failed."""
        self._work: Callable[[Task], None] | None = work

    def run(self) -> None:
        """Do the work, unless it was cancelled; what it raises is kept."""
        work, self._work = self._work, None
        if work is None or self.cancelled:
            return
        try:
            work(self)
        except Exception as error:
            # Its frames would keep the tensors of the failed work alive.
            self.error = error.with_traceback(None)


class Lane:
    """Runs tasks on one thread, which starts with the first of them.

    Args:
        device: where the tasks' calls run.
        wake: told from the lane's thread that a task has ended.
    """

    def __init__(self, device: torch.device, wake: Callable[[], None]) -> None:
        self._device = device
        self._wake = wake
        self._changed = threading.Condition()
        self._waiting: deque[Task] = deque()
        self._current: Task | None = None
        self._ended: deque[Task] = deque()
        self._owed: Counter[Hashable] = Counter()
        self._closing = False
        self._thread: threading.Thread | None = None

    def submit(self, owner: Hashable, work: Callable[[Task], None]) -> None:
        """Queue work; it begins after all that was asked of the device so far."""
        task = Task(owner, work, mark(self._device))
        self._owed[owner] += 1
        with self._changed:
            self._waiting.append(task)
            self._changed.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="sgld-lane", daemon=True)
            self._thread.start()

    def pending(self, owner: Hashable) -> int:
        """Tasks of an owner that have not been collected."""
        return self._owed[owner]

    def busy(self) -> bool:
        """Whether anything has not been collected."""
        return bool(self._owed)

    def drop(self, owner: Hashable) -> None:
        """Forget what an owner still waits for and hurry what runs; `pending` says when it is
        over."""
        with self._changed:
            kept = deque(task for task in self._waiting if task.owner != owner)
            self._forget(owner, len(self._waiting) - len(kept))
            self._waiting = kept
            if self._current is not None and self._current.owner == owner:
                self._current.cancelled = True

    def collect(self) -> Iterator[Task]:
        """Tasks that have ended since the last time, in order; each is `pending` until it comes."""
        while self._ended:
            task = self._ended.popleft()
            self._forget(task.owner, 1)
            yield task

    def close(self) -> None:
        """Drop what waits, wait for what runs, end the thread. Safe to call again."""
        with self._changed:
            self._closing = True
            for task in self._waiting:
                self._forget(task.owner, 1)
            self._waiting.clear()
            if self._current is not None:
                self._current.cancelled = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _forget(self, owner: Hashable, number: int) -> None:
        self._owed[owner] -= number
        if self._owed[owner] <= 0:
            del self._owed[owner]

    def _serve(self) -> None:
        namespace = torch_of(self._device)
        stream = None if namespace is None else namespace.Stream(self._device)
        while True:
            with self._changed:
                while not self._waiting and not self._closing:
                    self._changed.wait()
                if not self._waiting:
                    return
                task = self._current = self._waiting.popleft()
            with torch.inference_mode():
                if namespace is None or stream is None:
                    task.run()
                else:
                    with namespace.stream(stream):
                        stream.wait_event(task.after)
                        task.run()
            with self._changed:
                self._current = None
                self._ended.append(task)
            del task
            self._wake()
