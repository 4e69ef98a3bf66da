"""The boundary between whoever wants media and the engine that makes it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from sgld.messages import Event, Request


class Executor(ABC):
    """Hosts one engine. Requests go in and events come out; both are plain data."""

    @abstractmethod
    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests, all before the first one runs."""

    @abstractmethod
    def cancel(self, request_id: str) -> None:
        """Ask for a request to stop; its last event says `cancelled` unless it ended before."""

    @abstractmethod
    def next_event(self, timeout: float | None = None) -> Event | None:
        """The next event in order; None after `timeout` seconds without one.

        Raises the engine's own error when the engine is lost.
        """

    @abstractmethod
    def close(self) -> None:
        """Cancel what runs, free the engine, wait for it to be gone. Safe to call again."""
