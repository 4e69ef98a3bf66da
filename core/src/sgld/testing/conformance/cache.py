"""What every cache policy keeps: it is arithmetic on the records of frames, and nothing else."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import FrozenInstanceError
from typing import Any, ClassVar, Final

import torch

from sgld.causal.errors import StateError
from sgld.causal.kv import KvCache, KvShape, kv_bytes
from sgld.causal.policies import Policy
from sgld.engine.cache_policy import make_policy
from sgld.testing.conformance.base import Contract, broken, expect
from sgld.testing.conformance.cache_list import (
    ListModel,
    ask,
    seen_frames,
    whole_chunk,
    write_chunk,
)

USUAL: Final[Mapping[str, Any]] = {"window": 9, "sink": 2, "limit": 40}
"""Values of the settings that most policies have."""
CHUNKS: Final = 1000
SHAPE: Final = KvShape(1, 1, 1, 1, torch.float32, "cpu")
STATELESS: Final = (
    "A policy is a frozen dataclass without memory: answer from `kept` and `chunk` alone."
)


class CacheContract(Contract):
    """A cache policy.

        class TestMine(CacheContract):
            policy = "every-other"
            settings = {"window": 12}

    Args:
        policy: its id.
        settings: what it is made with; by default values of window, sink and limit, as far as it
            has them.
        chunk: frames of a chunk; fewer where the policy has room for fewer.
        hides: why `visible` leaves out frames of the sink or the newest ones, of a policy that does
            so on purpose; it has to show some frames nevertheless.
    """

    kind: ClassVar[str] = "cache"
    named_by: ClassVar[str] = "policy"
    told: ClassVar[tuple[str, ...]] = ("policy", "settings", "chunk", "hides")
    policy: ClassVar[str] = ""
    settings: ClassVar[Mapping[str, Any] | None] = None
    chunk: ClassVar[int] = 2
    hides: ClassVar[str] = ""

    @classmethod
    def mistold(cls) -> Iterator[str]:
        """Chunks with frames, and words in `hides`."""
        if type(cls.chunk) is not int or cls.chunk < 1:
            yield f"chunk={cls.chunk!r} is no number of frames"
        if not isinstance(cls.hides, str) or cls.hides != cls.hides.strip():
            yield f"hides={cls.hides!r} is no reason in words"

    def test_is_a_frozen_policy(self) -> None:
        """The target makes a `Policy` whose settings cannot be changed."""
        policy = self._policy()
        expect(
            isinstance(policy, Policy),
            expected=f"{self.entry().spec.target} makes a sgld.causal.policies.Policy",
            got=f"{policy!r} of type {type(policy).__name__}",
            remedy="Derive it from Policy, as a frozen dataclass.",
        )
        for name in self._settings():
            try:
                setattr(policy, name, None)
            except (FrozenInstanceError, AttributeError):
                continue
            broken(
                expected="settings that cannot be changed",
                got=f"{name} was set",
                remedy="Make it @dataclass(frozen=True).",
            )

    def test_repr_names_the_settings(self) -> None:
        """Equal settings give equal texts, others give others: snapshots are compared by them."""
        one, same = repr(self._policy()), repr(self._policy())
        expect(
            one == same,
            expected="one text for equal settings",
            got=f"{one} and {same}",
            remedy="Leave the repr of a dataclass as it is.",
        )
        for name, value in self._settings().items():
            if isinstance(value, int) and not isinstance(value, bool):
                other = repr(make_policy(self.entry(), **{**self._settings(), name: value + 1}))
                expect(
                    one != other,
                    expected=f"another text for {name}={value + 1} than for {name}={value}",
                    got=other,
                    remedy="Name every setting in the repr.",
                )

    def test_bounded_means_bounded(self) -> None:
        """A bounded policy never holds more than `capacity`, after a thousand chunks; one that is
        not bounded does not say that it is."""
        policy, spec = self._policy(), self.entry().spec
        capacity, most = policy.capacity, 0
        model = ListModel(policy)
        for _ in range(CHUNKS):
            model.begin(self._frames(policy))
            most = max(most, len(model.kept))
            if most > capacity:
                break
        holds = most <= capacity
        expect(
            holds == spec.bounded,
            expected=f"bounded={spec.bounded}: frames {'never' if spec.bounded else ''} exceed the "
            f"capacity of {capacity}",
            got=f"at most {most} frames in {CHUNKS} chunks of {self._frames(policy)}",
            remedy="Let `drop` make room for the chunk, or correct `bounded` of the record.",
        )

    def test_sink_is_kept(self) -> None:
        """The first `sink` frames never go, where the policy has that setting."""
        policy = self._policy()
        sink = self._settings().get("sink", 0)
        model = ListModel(policy)
        for _ in range(self._room(policy)):
            model.begin(self._frames(policy))
            missing = [n for n in range(sink) if n < model.count and n not in model.indices()]
            expect(
                not missing,
                expected=f"the first {sink} frames are kept",
                got=f"frames {missing} went when chunk {model.count - 1} began",
                remedy="Leave frames with an index below `sink` out of what `drop` returns.",
            )

    def test_drops_what_is_kept(self) -> None:
        """`drop` and `drop_for_clean` name frames that are kept, each once."""
        policy = self._policy()
        model = ListModel(policy)
        for _ in range(self._room(policy)):
            kept, chunk = tuple(model.kept), model.coming(self._frames(policy))
            for name in ("drop", "drop_for_clean"):
                gone = ask(policy, name, kept, chunk)
                indices = {frame.index for frame in kept}
                expect(
                    set(gone) <= indices and len(set(gone)) == len(gone),
                    expected=f"{name} returns indices out of {sorted(indices)}, each once",
                    got=gone,
                    remedy="Take the indices of `kept`; the chunk's own frames are not among them.",
                )
            model.begin(self._frames(policy))

    def test_sees_what_is_kept(self) -> None:
        """`visible` gives kept frames in order of time."""
        policy = self._policy()
        model = ListModel(policy)
        for _ in range(self._room(policy)):
            model.begin(self._frames(policy))
            before = tuple(model.kept[: -len(model.chunk)])
            seen = ask(policy, "visible", before, tuple(model.chunk))
            inside = [frame for frame in before if frame in seen]
            expect(
                seen == inside,
                expected=f"frames out of {[f.index for f in before]}, in order of time",
                got=[frame.index for frame in seen],
                remedy="Filter `kept`, and leave its order alone.",
            )

    def test_shows_sink_and_newest(self) -> None:
        """What a chunk continues is visible to it: the sink, and the frames before it."""
        policy = self._policy()
        sink = self._settings().get("sink", 0)
        model, hidden, shown = ListModel(policy), set[int](), 0
        for _ in range(self._room(policy)):
            model.begin(self._frames(policy))
            before = tuple(model.kept[: -len(model.chunk)])
            seen = {frame.index for frame in ask(policy, "visible", before, tuple(model.chunk))}
            wanted = {frame.index for frame in before if frame.index < sink}
            wanted |= {frame.index for frame in before[-1:]}
            hidden |= wanted - seen
            shown += len(seen)
        expect(
            shown,
            expected="a chunk that sees at least one frame before it",
            got=f"none in {model.count} frames",
            remedy="Return from `visible` the frames of `kept` that the chunk attends to.",
        )
        expect(
            bool(hidden) == bool(self.hides),
            expected="frames of the sink or the newest ones are hidden, as `hides` says"
            if self.hides
            else f"the first {sink} frames and the newest one are visible while they are kept",
            got=f"hidden at some time: {sorted(hidden) or 'none'}",
            remedy="Return them from `visible`, or state in `hides` of the test class why not."
            if hidden
            else "Take `hides` out of the test class.",
        )

    def test_answers_follow_from_the_records(self) -> None:
        """Asked twice, a policy answers the same."""
        policy = self._policy()
        model = ListModel(policy)
        for _ in range(self._room(policy)):
            kept, chunk = tuple(model.kept), model.coming(self._frames(policy))
            for name in ("drop", "drop_for_clean", "visible"):
                first, again = (ask(policy, name, kept, chunk) for _ in range(2))
                expect(
                    first == again,
                    expected=f"{name} answers the same when it is asked again",
                    got=f"{first} then {again}",
                    remedy=STATELESS,
                )
            model.begin(self._frames(policy))

    def test_cache_agrees_with_a_list(self) -> None:
        """Over scenes and chunks of several sizes, a ring of keys and values holds and shows what a
        plain list of frames would."""
        model, cache = ListModel(self._policy()), self._cache()
        sizes, most = (1, 2, 1, 1, 2), self._frames(cache.policy)
        for number in range(self._room(cache.policy)):
            frames, shot = min(sizes[number % len(sizes)], most), number // 4
            model.begin(frames, shot=shot)
            try:
                write_chunk(cache, frames, shot=shot)
                model.clean()
                cache.clean()
            except StateError as error:
                broken(
                    expected=f"chunk {number} of {frames} frames, scene {shot}, is taken",
                    got=str(error),
                    remedy="`drop` must leave room for the chunk, and name kept frames only.",
                )
            wanted = [float(index) for index in model.seen()]
            found = sorted(seen_frames(cache))
            expect(
                found == wanted,
                expected=f"chunk {number}, scene {shot}, sees the frames {wanted}",
                got=found,
                remedy="`visible` must name frames that are kept, also at a new scene.",
            )
            cache.commit()

    def test_bytes_are_a_formula(self) -> None:
        """What a cache holds is known before there is one, and stays."""
        cache = self._cache()
        for _ in range(self._room(cache.policy)):
            whole_chunk(cache, self._frames(cache.policy))
        held, formula = cache.nbytes(), kv_bytes(SHAPE, cache.policy)
        expect(
            held == formula,
            expected=f"kv_bytes gives the {held} bytes that the cache holds",
            got=formula,
            remedy="`capacity` follows from the settings and never changes.",
        )

    def test_rollback_gives_the_same_again(self) -> None:
        """Chunks that are taken back and made again see the same frames in the same places."""
        cache, count = self._cache(undo=3), self._frames(self._policy())
        for _ in range(self._room(cache.policy) - 3):
            whole_chunk(cache, count)
        first = [whole_chunk(cache, count) for _ in range(3)]
        cache.rollback(3)
        again = [whole_chunk(cache, count) for _ in range(3)]
        expect(
            first == again,
            expected=f"after a rollback the same frames are seen: {first}",
            got=again,
            remedy=STATELESS,
        )

    def test_forks_go_their_own_ways(self) -> None:
        """A fork and the original, in turns and with chunks of other sizes, are as if alone."""
        count, cache = self._frames(self._policy()), self._cache()
        alone = {1: self._cache(), count: self._cache()}
        start = self._room(cache.policy) - 3
        for one in (cache, *alone.values()):
            for _ in range(start):
                whole_chunk(one, count)
        both = {count: cache, 1: cache.fork()}
        found: dict[int, list[Any]] = {size: [] for size in both}
        for _ in range(3):
            for size, one in both.items():
                found[size].append(whole_chunk(one, size))
        for size, one in alone.items():
            wanted = [whole_chunk(one, size) for _ in range(3)]
            expect(
                found[size] == wanted,
                expected=f"a continuation by chunks of {size}, beside another one: {wanted}",
                got=found[size],
                remedy=STATELESS,
            )

    def test_snapshot_continues_equally(self) -> None:
        """A cache that is written down and read by another process goes on in the same way."""
        cache, other = self._cache(), self._cache()
        count = self._frames(cache.policy)
        for _ in range(self._room(cache.policy) - 3):
            whole_chunk(cache, count)
        other.load(*cache.dump())
        wanted, found = (
            [sorted(whole_chunk(one, count)) for _ in range(3)] for one in (cache, other)
        )
        expect(
            found == wanted,
            expected=f"from a snapshot, the same frames are seen: {wanted}",
            got=found,
            remedy=STATELESS,
        )

    # -- what the tests ask -----------------------------------------------------------------------

    def _settings(self) -> dict[str, Any]:
        if self.settings is not None:
            return dict(self.settings)
        known = inspect.signature(self.target()).parameters
        return {name: value for name, value in USUAL.items() if name in known}

    def _policy(self) -> Policy:
        return make_policy(self.entry(), **self._settings())

    def _cache(self, undo: int = 0) -> KvCache:
        return KvCache(SHAPE, self._policy(), undo)

    def _frames(self, policy: Policy) -> int:
        """Frames of an ordinary chunk."""
        return max(1, min(self.chunk, policy.capacity - policy.protected))

    def _room(self, policy: Policy) -> int:
        """Chunks that a test may begin: until it is full, if the policy is not bounded."""
        full = policy.capacity // self._frames(policy)
        return min(60, full * 5) if self.entry().spec.bounded else full
