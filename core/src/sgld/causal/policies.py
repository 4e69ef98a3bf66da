"""Which frames a KV cache keeps, and which of them a chunk sees. Needs no torch.

A policy is a frozen dataclass without state of its own: it reads the records of the frames that are
kept, so taking chunks back, splitting and writing down a generation need nothing from it. Plugins
announce further ones with a `CacheSpec`; storage that packs old frames (int4, int2) would be a
second thing beside the policy, told by `CacheSpec.quant` (see `sgld.causal.view.Segment`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sgld.api.errors import ParameterError, Problem


class Frame(NamedTuple):
    """What is known of one latent frame in a cache.

    Args:
        index: absolute, from 0, since the generation began.
        shot: number of its scene.
        nth: its place in its chunk, from 0.
        opens: whether its chunk is the first of a new scene (never so for the very first chunk).
        position: temporal position that its keys were rotated with (if before caching).
    """

    index: int
    shot: int
    nth: int
    opens: bool
    position: float

    @property
    def first(self) -> int:
        """Index of the first frame of its chunk."""
        return self.index - self.nth


class Policy(ABC):
    """Decides over the frames of one cache. `repr` names the settings: equal ones, equal text."""

    @property
    @abstractmethod
    def capacity(self) -> int:
        """Frames that there is room for, the current chunk included."""

    @property
    @abstractmethod
    def protected(self) -> int:
        """Frames that may stay for ever; capacity - protected is the largest chunk."""

    @abstractmethod
    def drop(self, kept: Sequence[Frame], chunk: Sequence[Frame]) -> Collection[int]:
        """Indices of kept frames that go when `chunk` begins; both are in order of time."""

    def drop_for_clean(self, kept: Sequence[Frame], chunk: Sequence[Frame]) -> Collection[int]:
        """Indices of kept frames that go before the pass over the clean `chunk`."""
        return ()

    def visible(self, kept: Sequence[Frame], chunk: Sequence[Frame]) -> Sequence[Frame]:
        """Kept frames that `chunk` attends to, in order of time."""
        return kept


def oldest_but(kept: Sequence[Frame], stay: Collection[int], count: int) -> list[int]:
    """Indices of the `count` oldest frames that are not in `stay`; fewer when there are fewer."""
    return [frame.index for frame in kept if frame.index not in stay][: max(0, count)]


def _refuse(field: str, value: int, message: str, remedy: str) -> ParameterError:
    return ParameterError([Problem(field, value, message, remedy)])


@dataclass(frozen=True)
class Rolling(Policy):
    """The last frames, and the first `sink` ones for ever.

    Args:
        window: frames in all, sink and current chunk included; 0 or -1: everything, up to `limit`.
        sink: first frames of the generation that never go.
        limit: frames in all when nothing is ever dropped.
        recent: a chunk sees the sink and so many frames before it, though more are kept; None: all.

    Raises `ParameterError` for settings that leave no room for a chunk.
    """

    window: int
    sink: int = 0
    limit: int = 0
    recent: int | None = None

    def __post_init__(self) -> None:
        if self.window < -1:
            remedy = "Give 1 or more, or 0 or -1 to keep everything."
            raise _refuse("window", self.window, "is no number of frames.", remedy)
        if self.window <= 0 and self.limit <= 0:
            remedy = "Give the length of the generation in latent frames."
            raise _refuse("limit", self.limit, "is needed when nothing is dropped.", remedy)
        if not 0 <= self.sink < self.capacity:
            remedy = f"Give 0 to {self.capacity - 1}: the sink is part of the window."
            raise _refuse("sink", self.sink, f"leaves no room in {self.capacity} frames.", remedy)
        if self.recent is not None and self.recent < 0:
            raise _refuse("recent", self.recent, "is no number of frames.", "Give 0 or more.")

    @property
    def capacity(self) -> int:
        return self.window if self.window > 0 else self.limit

    @property
    def protected(self) -> int:
        return self.sink if self.window > 0 else 0

    def drop(self, kept: Sequence[Frame], chunk: Sequence[Frame]) -> Collection[int]:
        if self.window <= 0:
            return ()
        stay = {frame.index for frame in kept[: self.sink]}
        return oldest_but(kept, stay, len(kept) + len(chunk) - self.window)

    def visible(self, kept: Sequence[Frame], chunk: Sequence[Frame]) -> Sequence[Frame]:
        if self.recent is None or len(kept) <= self.sink + self.recent:
            return kept
        return (*kept[: self.sink], *kept[len(kept) - self.recent :])


@dataclass(frozen=True)
class Growing(Policy):
    """Everything from the beginning, up to `limit` frames."""

    limit: int

    def __post_init__(self) -> None:
        if self.limit < 1:
            remedy = "Give the length of the generation in latent frames."
            raise _refuse("limit", self.limit, "is no number of frames.", remedy)

    @property
    def capacity(self) -> int:
        return self.limit

    @property
    def protected(self) -> int:
        return 0

    def drop(self, kept: Sequence[Frame], chunk: Sequence[Frame]) -> Collection[int]:
        return ()


@dataclass(frozen=True)
class GlobalSink(Policy):
    """As `Rolling`, but the sink is a piece of the generation, whatever was cut since: the frames
    with an index below `sink`. With `clean_recache` a new scene forgets everything else before its
    first clean pass.

    Args:
        window: frames in all, sink and current chunk included.
        sink: first frames of the generation that never go.
        clean_recache: cut at scenes.
    """

    window: int
    sink: int = 0
    clean_recache: bool = False

    def __post_init__(self) -> None:
        if self.window < 1:
            raise _refuse("window", self.window, "is no number of frames.", "Give 1 or more.")
        if self.sink < 0 or self.protected >= self.window:
            remedy = f"The window of {self.window} frames must exceed what is kept for ever."
            raise _refuse("sink", self.sink, f"keeps {self.protected} frames for ever.", remedy)

    @property
    def capacity(self) -> int:
        return self.window

    @property
    def protected(self) -> int:
        return self.sink

    def stay(self, kept: Sequence[Frame]) -> set[int]:
        """Indices of the frames that rolling leaves alone."""
        return {frame.index for frame in kept if frame.index < self.sink}

    def drop(self, kept: Sequence[Frame], chunk: Sequence[Frame]) -> Collection[int]:
        return oldest_but(kept, self.stay(kept), len(kept) + len(chunk) - self.window)

    def drop_for_clean(self, kept: Sequence[Frame], chunk: Sequence[Frame]) -> Collection[int]:
        if not (self.clean_recache and chunk[0].opens):
            return ()
        return [frame.index for frame in kept if frame.index >= self.sink]


@dataclass(frozen=True)
class PinnedSink(GlobalSink):
    """For several scenes: the global sink, and beside it the first `sink` frames of the first chunk
    of the newest scene that has been committed. A newer scene takes the pin over, and the frames
    that had it become ordinary. Rolling goes around the pinned frames, wherever they stand.
    """

    @property
    def protected(self) -> int:
        return 2 * self.sink

    def stay(self, kept: Sequence[Frame]) -> set[int]:
        newest = next((frame.first for frame in reversed(kept) if frame.opens), None)
        pinned = {f.index for f in kept if f.first == newest and f.nth < self.sink}
        return super().stay(kept) | pinned
