"""A cache of keys and values as a plain list of frames, and a real one that is driven beside it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Literal, cast

import torch

from sgld.causal.asking import gone, seen
from sgld.causal.errors import StateError
from sgld.causal.kv import KvCache
from sgld.causal.policies import Frame, Policy
from sgld.causal.positions import Absolute
from sgld.testing.conformance.base import broken


class ListModel:
    """The frames that a policy keeps, as a list: what a cache is compared with."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.kept: list[Frame] = []
        self.chunk: list[Frame] = []
        self.count = 0
        self._shot: int | None = None

    def indices(self) -> set[int]:
        """Indices of what is kept."""
        return {frame.index for frame in self.kept}

    def coming(self, frames: int, shot: int = 0) -> tuple[Frame, ...]:
        """Records of the next chunk."""
        opens = self._shot is not None and shot != self._shot
        rule = Absolute()
        numbers = range(self.count, self.count + frames)
        places = enumerate(numbers)
        return tuple(Frame(i, shot, nth, opens, rule.place(i, shot)) for nth, i in places)

    def begin(self, frames: int, shot: int = 0) -> None:
        """A chunk begins."""
        self.chunk = list(self.coming(frames, shot))
        self._forget(ask(self.policy, "drop", tuple(self.kept), tuple(self.chunk)))
        self.kept += self.chunk
        self.count, self._shot = self.count + frames, shot

    def clean(self) -> None:
        """The pass over the clean chunk comes next."""
        before = tuple(self.kept[: -len(self.chunk)])
        self._forget(ask(self.policy, "drop_for_clean", before, tuple(self.chunk)))

    def seen(self) -> Iterator[int]:
        """Indices that the chunk attends to, in order of time."""
        before = tuple(self.kept[: -len(self.chunk)])
        sees = ask(self.policy, "visible", before, tuple(self.chunk))
        yield from sorted(frame.index for frame in (*sees, *self.chunk))

    def _forget(self, gone: Collection[int]) -> None:
        self.kept = [frame for frame in self.kept if frame.index not in gone]


def ask(policy: Policy, name: str, kept: Sequence[Frame], chunk: Sequence[Frame]) -> list[Any]:
    """What a method of a policy answers; ends the test when that is nothing it may answer."""
    try:
        if name == "visible":
            return list(seen(policy, kept, chunk))
        return gone(policy, cast("Literal['drop', 'drop_for_clean']", name), kept, chunk)
    except StateError as error:
        broken(
            expected=f"{name} answers as `sgld.causal.policies.Policy` says",
            got=error.message,
            remedy=error.remedy,
        )


def write_chunk(cache: KvCache, frames: int, shot: int = 0) -> None:
    """Begin a chunk; each frame's keys hold its index, so that they can be told apart."""
    first = cache.next_frame
    cache.begin(frames, shot=shot)
    values = torch.arange(first, first + frames, dtype=torch.float32).view(1, frames, 1, 1)
    cache.write(0, values, -values)


def seen_frames(cache: KvCache) -> list[float]:
    """Indices that the open chunk attends to, in the order of storage."""
    view = cache.read(0).dense()
    if not torch.equal(view.k, -view.v):
        raise AssertionError("keys and values do not belong together")
    return view.k.flatten().tolist()


def whole_chunk(cache: KvCache, frames: int) -> list[float]:
    """A whole chunk; what it sees, in the order of storage."""
    write_chunk(cache, frames)
    cache.clean()
    seen = seen_frames(cache)
    cache.commit()
    return seen
