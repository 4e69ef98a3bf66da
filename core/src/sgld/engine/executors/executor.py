"""The boundary between whoever wants media and the engine that makes it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from sgld.api.errors import FeatureError
from sgld.messages import Event, Request
from sgld.realtime.messages import SessionCommand, SessionReport

Told = Event | SessionReport
"""What an engine tells: an event of a request, or a report of a session."""


class Executor(ABC):
    """Hosts one engine. Requests and commands go in, events and reports come out: plain data."""

    @abstractmethod
    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests, all before the first one runs."""

    @abstractmethod
    def cancel(self, request_id: str) -> None:
        """Ask for a request to stop; its last event says `cancelled` unless it ended before."""

    def command(self, command: SessionCommand) -> None:
        """Ask something of a session; the answer comes as a report. Never waits."""
        raise FeatureError(f"{type(self).__name__} holds no realtime sessions.")

    def deliver_to(self, listener: Callable[[Sequence[Told]], None]) -> bool:
        """Hand events from now on to `listener`, in order, as many as come together and on whatever
        thread has them, in place of `next_event`; the listener must not block. False: this executor
        does not do that.
        """
        return False

    @abstractmethod
    def next_event(self, timeout: float | None = None) -> Told | None:
        """The next event or report in order; None after `timeout` seconds without one.

        Raises the engine's own error when the engine is lost.
        """

    @abstractmethod
    def close(self) -> None:
        """Cancel what runs, free the engine, wait for it to be gone. Safe to call again."""
