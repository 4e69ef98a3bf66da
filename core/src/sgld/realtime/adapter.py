"""What a family says about its realtime sessions: which controls it takes, and what a chunk sees.

The class methods read what a client sent and run in the HTTP process; an instance holds the control
state of one session and lives in the engine's process. Neither imports torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Self

from sgld.causal.blocks import Chunk


class Opening(NamedTuple):
    """What an init message means.

    Args:
        params: names and values for the family's parameters, as the user gave them.
        first_frame: encoded image bytes or a URL to fetch, None without one.
        events: controls that hold from chunk 0 on: `(kind, control, event id)`.
        spelled: parameter → the field of the init message that it came from, where they differ.
    """

    params: Mapping[str, Any]
    first_frame: bytes | str | None = None
    events: tuple[tuple[str, Mapping[str, Any], int | None], ...] = ()
    spelled: Mapping[str, str] = {}


class Sampled(NamedTuple):
    """What one chunk sees.

    Args:
        controls: JSON values for the `controls` slot.
        event_id: of the newest event that has been seen by a chunk so far; repeated by later ones.
    """

    controls: Mapping[str, Any]
    event_id: int | None


class RealtimeAdapter(ABC):
    """Control state of one session.

    Args:
        params: the validated parameters of the session.
    """

    events: ClassVar[tuple[str, ...]]
    """Kinds of events that it takes."""
    needs_first_frame: ClassVar[bool] = False
    init_fields: ClassVar[tuple[str, ...]] = ("condition_inputs",)
    """Fields of an init message that `read_init` takes beyond the family's parameters and
    `first_frame`; others never reach it, they are refused with the nearest name."""

    def __init__(self, params: Any) -> None:
        self.params = params

    @classmethod
    @abstractmethod
    def read_init(cls, init: Mapping[str, Any]) -> Opening:
        """Read an init message, already without the fields that the server itself takes.

        Raises `sgld.api.errors.ParameterError` naming every field that is wrong or unknown.
        """

    @classmethod
    @abstractmethod
    def read_event(cls, kind: str, payload: Any) -> Mapping[str, Any]:
        """The control of one event, as JSON values; all of it or nothing.

        Raises `sgld.api.errors.ParameterError` naming what is wrong and what is allowed.
        """

    @abstractmethod
    def apply(self, kind: str, control: Mapping[str, Any], event_id: int | None) -> None:
        """Take a control that `read_event` gave; it is seen from `first_chunk` on."""

    def first_chunk(self, kind: str, control: Mapping[str, Any], next: int) -> int:
        """Index of the first chunk that can see a control which was just applied; `next` is that of
        the first chunk that has not begun."""
        return next

    @abstractmethod
    def sample(self, chunk: Chunk) -> Sampled:
        """What this chunk sees; called once per chunk, when it is about to start."""

    @abstractmethod
    def dump(self) -> Mapping[str, Any]:
        """The control state as JSON values; `rewind`, `fork` and `snapshot` keep it."""

    @abstractmethod
    def load(self, values: Mapping[str, Any]) -> None:
        """Become what `dump` wrote."""

    def fork(self) -> Self:
        """An independent copy."""
        other = type(self)(self.params)
        other.load(self.dump())
        return other
