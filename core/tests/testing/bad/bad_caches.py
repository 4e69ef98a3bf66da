"""Cache policies, each with one fault, and the conformance tests that must find it."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sgld.api import CacheSpec, Plugin, hookimpl
from sgld.causal.policies import Frame, GlobalSink, Growing, Rolling, oldest_but

Frames = Sequence[Frame]


class Bad(NamedTuple):
    """What finds a fault, and the policy."""

    found_by: set[str]
    target: Any
    bounded: bool = True
    attributes: dict[str, Any] = {}  # noqa: RUF012


class Remembers(Rolling):
    """A policy that keeps notes, which it must not; each fault is in how it uses them."""

    def note(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)


class Thawed:
    """As a rolling policy, but its settings can be changed."""

    def __new__(cls, window: int, sink: int = 0) -> Any:
        policy = Rolling(window, sink)
        return type("Loose", (Rolling,), {"__setattr__": object.__setattr__})(
            policy.window, policy.sink
        )


@dataclass(frozen=True)
class NoRepr(Rolling):
    """Its text is that of any object."""

    __repr__ = object.__repr__


@dataclass(frozen=True)
class SameRepr(Rolling):
    """Its text names no settings."""

    def __repr__(self) -> str:
        return "SameRepr()"


@dataclass(frozen=True)
class ForgetsSink(Rolling):
    """Rolls over everything."""

    def drop(self, kept: Frames, chunk: Frames) -> Collection[int]:
        return oldest_but(kept, (), len(kept) + len(chunk) - self.window)


@dataclass(frozen=True)
class Stutters(Rolling):
    """Names what goes twice."""

    def drop(self, kept: Frames, chunk: Frames) -> Collection[int]:
        return [index for index in super().drop(kept, chunk) for _ in range(2)]


@dataclass(frozen=True)
class Backwards(Rolling):
    """Shows the past from its end."""

    def visible(self, kept: Frames, chunk: Frames) -> Frames:
        return kept[::-1]


@dataclass(frozen=True)
class Blind(Rolling):
    """Keeps everything and shows nothing."""

    def visible(self, kept: Frames, chunk: Frames) -> Frames:
        return ()


@dataclass(frozen=True)
class Absent(Rolling):
    """Shows the sink only."""

    def visible(self, kept: Frames, chunk: Frames) -> Frames:
        return kept[: self.sink]


@dataclass(frozen=True)
class Moody(Remembers):
    """Asked the same twice in a row, it drops nothing the second time."""

    asked: Any = field(default=None, repr=False, compare=False)

    def drop(self, kept: Frames, chunk: Frames) -> Collection[int]:
        before = self.asked
        self.note(asked=(kept, chunk))
        return () if before == (kept, chunk) else super().drop(kept, chunk)


@dataclass(frozen=True)
class LosesScenes(GlobalSink):
    """Shows frames of the scene before that are not there any more."""

    def visible(self, kept: Frames, chunk: Frames) -> Frames:
        return kept[1:] if chunk[0].shot % 2 and len(kept) > 3 and chunk[0].nth == 0 else kept

    def drop(self, kept: Frames, chunk: Frames) -> Collection[int]:
        gone = super().drop(kept, chunk)
        return [*gone, -1] if chunk[0].opens else gone


@dataclass(frozen=True)
class Swells(Remembers):
    """Its capacity is another one each time."""

    counter: Any = field(default_factory=lambda: itertools.count(), repr=False, compare=False)

    @property
    def capacity(self) -> int:
        return self.window + next(self.counter)


@dataclass(frozen=True)
class NeverBack(Remembers):
    """Takes a much earlier chunk than the last one for the beginning of something new."""

    newest: int = field(default=-1, repr=False, compare=False)

    def drop(self, kept: Frames, chunk: Frames) -> Collection[int]:
        before = self.newest
        self.note(newest=chunk[0].index)
        if chunk[0].index < before - 3:
            return [frame.index for frame in kept]
        return super().drop(kept, chunk)


@dataclass(frozen=True)
class NoGaps(Remembers):
    """Takes chunks that do not follow each other for a new scene."""

    following: int | None = field(default=None, repr=False, compare=False)

    def drop(self, kept: Frames, chunk: Frames) -> Collection[int]:
        wanted = self.following
        self.note(following=chunk[-1].index + 1)
        if wanted is not None and chunk[0].index > wanted:
            return [frame.index for frame in kept]
        return super().drop(kept, chunk)


@dataclass(frozen=True)
class OwnSink(Remembers):
    """Its sink are the first frames that it was told of."""

    first: tuple[int, ...] | None = field(default=None, repr=False, compare=False)

    def drop(self, kept: Frames, chunk: Frames) -> Collection[int]:
        if self.first is None:
            self.note(first=tuple(range(chunk[0].index, chunk[0].index + self.sink)))
        count = len(kept) + len(chunk) - self.window
        return oldest_but(kept, self.first or (), count)


SHOWS = "test_shows_sink_and_newest"
BAD: dict[str, Bad] = {
    "thawed": Bad({"test_is_a_frozen_policy"}, Thawed),
    "no-repr": Bad({"test_repr_names_the_settings", "test_snapshot_continues_equally"}, NoRepr),
    "same-repr": Bad({"test_repr_names_the_settings"}, SameRepr),
    "unbounded": Bad({"test_bounded_means_bounded"}, Rolling, bounded=False),
    "forgets-sink": Bad({"test_sink_is_kept"}, ForgetsSink),
    "stutters": Bad({"test_drops_what_is_kept"}, Stutters),
    "backwards": Bad({"test_sees_what_is_kept"}, Backwards),
    "blind": Bad({SHOWS}, Blind),
    "blind-on-purpose": Bad({SHOWS}, Blind, attributes={"hides": "only the chunk counts"}),
    "absent": Bad({SHOWS}, Absent),
    "hides-nothing": Bad({SHOWS}, Rolling, attributes={"hides": "the newest are noisy"}),
    "moody": Bad({"test_answers_follow_from_the_records"}, Moody),
    "loses-scenes": Bad({"test_cache_agrees_with_a_list"}, LosesScenes),
    "swells": Bad({"test_bytes_are_a_formula"}, Swells),
    "never-back": Bad({"test_rollback_gives_the_same_again"}, NeverBack),
    "no-gaps": Bad({"test_forks_go_their_own_ways"}, NoGaps),
    "own-sink": Bad({"test_snapshot_continues_equally"}, OwnSink),
}
GOOD = {
    "absent-on-purpose": Bad(set(), Absent, attributes={"hides": "the newest are noisy"}),
    "good": Bad(set(), Rolling),
    "grows": Bad(set(), Growing, bounded=False),
}


@hookimpl
def sgld_plugin() -> Plugin:
    return Plugin("bad-caches", contracts={"cache": 1}, summary="One fault each")


@hookimpl
def sgld_caches() -> Any:
    for name, bad in {**BAD, **GOOD}.items():
        globals()[f"make_{name}".replace("-", "_")] = bad.target
        target = f"{__name__}:make_{name}".replace("-", "_")
        yield CacheSpec(id=name, target=target, bounded=bad.bounded)
