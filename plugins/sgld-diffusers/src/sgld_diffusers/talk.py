"""A pipeline's `__call__` as a conversation: it runs on a thread of its own and stops at each call
of a component, so that a stage can hand the call to the engine and bring back the result.

The two threads never run at the same time: one of them always waits for the other.
"""

from __future__ import annotations

import queue
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch

PATIENCE: Final = 60.0
"""Seconds that an ended conversation waits for its thread to leave the pipeline."""


class Ended(BaseException):
    """Raised inside the pipeline when nobody wants its result; no `except Exception` holds it."""


@dataclass(frozen=True, slots=True)
class Said:
    """What the pipeline said: a `wish` for a component, a finished `step`, or the end.

    Args:
        kind: `ask`, `step`, `done` or `failed`.
        value: the wish, the step, the result, or the error.
    """

    kind: str
    value: Any = None


class Talk:
    """One run of a function on a thread of its own.

    Args:
        work: what to run; it is given this object and says things by `ask` and `tell`.
        device: where it computes.
        name: of the thread.
    """

    def __init__(self, work: Callable[[Talk], Any], device: torch.device, name: str) -> None:
        self._work, self._device = work, device
        self._said: queue.SimpleQueue[Said] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    # The stage's side.

    def begin(self) -> Said:
        """Start, and wait for the first thing that is said."""
        self._thread.start()
        return self._said.get()

    def answer(self, value: Any = None) -> Said:
        """Answer what was said last, and wait for the next."""
        self._answers.put(value)
        return self._said.get()

    def end(self) -> None:
        """Have the pipeline leave at the place where it waits. Safe to call again, and at any time
        after `begin`."""
        self._ended = True
        if self._thread.ident is None:
            return
        self._answers.put(None)
        self._thread.join(PATIENCE)

    # The pipeline's side.

    def mine(self) -> bool:
        """Whether the caller is this conversation's thread."""
        return threading.current_thread() is self._thread

    def ask(self, wish: Any) -> Any:
        """Say a wish and wait for its result; raises `Ended` when nobody wants it any more."""
        return self._say(Said("ask", wish))

    def tell(self, step: Any) -> None:
        """Say that a step is done."""
        self._say(Said("step", step))

    def _say(self, said: Said) -> Any:
        if self._ended:
            raise Ended
        self._said.put(said)
        answer = self._answers.get()
        if self._ended:
            raise Ended
        return answer

    def _run(self) -> None:
        try:
            if self._device.type == "cuda":
                torch.cuda.set_device(self._device)
            with torch.inference_mode():
                said = Said("done", self._work(self))
        except Ended:
            said = Said("failed", None)
        except BaseException as error:
            # The frames hold the pipeline's tensors, and the error outlives them.
            traceback.clear_frames(error.__traceback__)
            said = Said("failed", error)
        self._said.put(said)
