"""Random lives of rings and their forks, against lists of frames that know no slots."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from sgld.causal.errors import StateError
from sgld.causal.kv import KvCache, KvShape, attend, kv_bytes
from sgld.causal.policies import GlobalSink, Growing, PinnedSink, Policy, Rolling
from sgld.causal.positions import Absolute, AtRead, Positions, ShotOffset
from sgld.ops.attention import attend as dense_attend

LAYERS, TOKENS = 2, 2
SHAPE = KvShape(LAYERS, 2, 4, TOKENS, torch.float32, "cpu", batch=2)
MAX_LIVE = 4

POLICIES: list[Policy] = [
    Rolling(6),
    Rolling(7, 2),
    Rolling(5, 2, recent=1),
    Rolling(8, 1, recent=3),
    Rolling(-1, limit=14),
    Growing(11),
    GlobalSink(6, 2, clean_recache=True),
    PinnedSink(7, 2),
    PinnedSink(8, 2, clean_recache=True),
]
RULES: list[Positions] = [Absolute(), AtRead(), ShotOffset(1.5)]


@dataclass(frozen=True)
class One:
    """A frame of the model, with what was written for it in each layer."""

    index: int
    shot: int
    nth: int
    opens: bool
    data: tuple[torch.Tensor | None, ...]


@dataclass(frozen=True)
class Past:
    """The model's frames in order of time; nothing else is needed to go back."""

    frames: tuple[One, ...] = ()
    next_frame: int = 0
    shot: int | None = None


def cut(frames: list[One], first: int, count: int, stay: set[int]) -> list[One]:
    """Without the `count` oldest behind place `first` that are not in `stay`."""
    kept = frames[:first]
    for frame in frames[first:]:
        if count and frame.index not in stay:
            count -= 1
        else:
            kept.append(frame)
    return kept


def naive_begin(policy: Policy, frames: list[One], new: int) -> list[One]:
    over = len(frames) + new - policy.capacity
    if isinstance(policy, Growing) or (isinstance(policy, Rolling) and policy.window <= 0):
        return frames
    if isinstance(policy, Rolling):
        return cut(frames, policy.sink, max(0, over), set())
    assert isinstance(policy, GlobalSink)
    stay = {frame.index for frame in frames if frame.index < policy.sink}
    if isinstance(policy, PinnedSink):
        scenes = [frame.index - frame.nth for frame in frames if frame.opens]
        if scenes:
            stay |= {scenes[-1] + nth for nth in range(policy.sink)}
            stay -= {f.index for f in frames if f.index - f.nth != scenes[-1] and f.index >= 2}
    return cut(frames, 0, max(0, over), stay)


def naive_seen(policy: Policy, before: list[One]) -> list[One]:
    recent = getattr(policy, "recent", None)
    if recent is None or len(before) <= policy.sink + recent:  # type: ignore[attr-defined]
        return before
    return before[: policy.sink] + before[len(before) - recent :]  # type: ignore[attr-defined]


class Pair:
    """A ring and its model."""

    def __init__(self, real: KvCache, past: Past) -> None:
        self.real = real
        self.past = past
        self.log: list[Past] = []
        self.base = past
        """The past at the last commit."""
        self.open: tuple[int, ...] = ()
        self.new = True

    def twin(self) -> Pair:
        other = Pair(self.real.fork(), self.past)
        other.log, other.base = list(self.log), self.base
        other.open, other.new = self.open, self.new
        return other

    @property
    def settled(self) -> bool:
        return self.base is self.past and not self.open

    def written(self, layer: int) -> bool:
        return all(f.data[layer] is not None for f in self.past.frames if f.index in self.open)


class Rings(RuleBasedStateMachine):
    rings: Bundle[Pair] = Bundle("rings")

    def __init__(self) -> None:
        super().__init__()
        self.live: list[Pair] = []
        self.random = torch.Generator().manual_seed(0)

    def add(self, pair: Pair) -> Pair:
        self.live.append(pair)
        return pair

    @initialize(
        target=rings,
        policy=st.sampled_from(POLICIES),
        rule=st.sampled_from(RULES),
        undo=st.integers(0, 3),
    )
    def make(self, policy: Policy, rule: Positions, undo: int) -> Pair:
        self.policy, self.rule, self.undo = policy, rule, undo
        return self.add(Pair(self.new(), Past()))

    def new(self) -> KvCache:
        return KvCache(SHAPE, self.policy, self.undo, positions=self.rule)

    @rule(pair=rings, size=st.integers(1, 3), cut=st.booleans())
    def begin(self, pair: Pair, size: int, cut: bool) -> None:
        past = pair.past
        shot = (past.shot or 0) + cut
        if pair.open:
            with pytest.raises(StateError, match="open already"):
                pair.real.begin(size, shot=shot)
            return
        left = naive_begin(self.policy, list(past.frames), size)
        if len(left) + size > self.policy.capacity:
            with pytest.raises(StateError) as caught:
                pair.real.begin(size, shot=shot)
            assert caught.value.code == "history_full"
            return
        opens = past.shot is not None and shot != past.shot
        nothing = (None,) * LAYERS
        chunk = [One(past.next_frame + n, shot, n, opens, nothing) for n in range(size)]
        pair.real.begin(size, shot=shot)
        pair.past = Past((*left, *chunk), past.next_frame + size, shot)
        pair.open, pair.new = tuple(frame.index for frame in chunk), True

    @rule(pair=rings, start=st.integers(0, 10), size=st.integers(1, 3))
    def reopen(self, pair: Pair, start: int, size: int) -> None:
        frames = pair.past.frames[start : start + size]
        if pair.open or not frames:
            with pytest.raises(StateError):
                pair.real.reopen([frame.index for frame in frames])
            return
        pair.open, pair.new = tuple(frame.index for frame in frames), False
        pair.real.reopen(pair.open)
        nothing = (None,) * LAYERS
        anew = [replace(f, data=nothing) if f in frames else f for f in pair.past.frames]
        pair.past = replace(pair.past, frames=tuple(anew))

    @rule(pair=rings, layers=st.sampled_from([(0, 1), (1, 0), (0,), (1,)]))
    def write(self, pair: Pair, layers: tuple[int, ...]) -> None:
        if not pair.open:
            with pytest.raises(StateError, match="no chunk is open"):
                pair.real.write(0, torch.zeros(0), torch.zeros(0))
            return
        for layer in layers:
            size = (2, 2, len(pair.open), TOKENS, 2, 4)
            data = torch.randn(size, generator=self.random)
            pair.real.write(layer, *data.flatten(2, 3))
            frames = list(pair.past.frames)
            for place, frame in enumerate(frames):
                if frame.index in pair.open:
                    rows = list(frame.data)
                    rows[layer] = data[:, :, pair.open.index(frame.index)]
                    frames[place] = replace(frame, data=tuple(rows))
            pair.past = replace(pair.past, frames=tuple(frames))

    @rule(pair=rings)
    def clean(self, pair: Pair) -> None:
        if not pair.open:
            with pytest.raises(StateError, match="no chunk is open"):
                pair.real.clean()
            return
        pair.real.clean()
        first = next(frame for frame in pair.past.frames if frame.index == pair.open[0])
        if getattr(self.policy, "clean_recache", False) and pair.new and first.opens:
            stay = [f for f in pair.past.frames if f.index < 2 or f.index in pair.open]
            pair.past = replace(pair.past, frames=tuple(stay))

    @rule(pair=rings)
    def seal(self, pair: Pair) -> None:
        if not pair.open or not all(map(pair.written, range(LAYERS))):
            with pytest.raises(StateError):
                pair.real.seal()
            return
        pair.real.seal()
        pair.open = ()

    @rule(pair=rings)
    def commit(self, pair: Pair) -> None:
        if pair.open and not all(map(pair.written, range(LAYERS))):
            with pytest.raises(StateError, match="unwritten"):
                pair.real.commit()
            return
        pair.real.commit()
        pair.open = ()
        pair.log = [*pair.log, pair.base][-self.undo :] if self.undo else []
        pair.base = pair.past

    @rule(pair=rings, sizes=st.lists(st.integers(1, 3), min_size=1, max_size=3), cut=st.booleans())
    def go_on(self, pair: Pair, sizes: list[int], cut: bool) -> None:
        """Whole chunks, so that histories grow deep."""
        for size in sizes:
            self.begin(pair, size, cut)
            if pair.open:
                self.write(pair, (0, 1))
                self.clean(pair)
                self.commit(pair)
            cut = False

    @rule(pair=rings, chunks=st.integers(0, 4))
    def rollback(self, pair: Pair, chunks: int) -> None:
        if chunks > len(pair.log):
            with pytest.raises(StateError) as caught:
                pair.real.rollback(chunks)
            assert caught.value.code == "not_remembered"
            return
        step = pair.real._step
        if step is not None and step.lossy:
            # Without undo, a chunk that took the place of other frames cannot be dropped.
            assert not self.undo
            assert set(map(id, pair.base.frames)) - set(map(id, pair.past.frames))
            with pytest.raises(StateError, match="not saved"):
                pair.real.rollback(0)
            return
        pair.real.rollback(chunks)
        for _ in range(chunks):
            pair.base = pair.log[-1]
            pair.log = pair.log[:-1]
        pair.past, pair.open = pair.base, ()

    @rule(target=rings, pair=rings)
    def fork(self, pair: Pair) -> Any:
        if len(self.live) >= MAX_LIVE:
            return multiple()
        return self.add(pair.twin())

    @rule(target=rings, pair=rings)
    def write_down(self, pair: Pair) -> Any:
        if not pair.settled:
            if pair.open:
                with pytest.raises(StateError, match="is open"):
                    pair.real.dump()
            return multiple()
        if len(self.live) >= MAX_LIVE:
            return multiple()
        other = Pair(self.new(), pair.past)
        other.real.load(*pair.real.dump())
        return self.add(other)

    @rule(pair=rings)
    def reset(self, pair: Pair) -> None:
        pair.real.reset()
        pair.past = pair.base = Past()
        pair.log, pair.open = [], ()

    @precondition(lambda self: len(self.live) > 1)
    @rule(pair=consumes(rings))
    def free(self, pair: Pair) -> None:
        self.live.remove(pair)
        for _ in range(2):
            pair.real.free()
        assert pair.real.nbytes() == pair.real.host_nbytes() == 0

    @invariant()
    def same_as_the_lists(self) -> None:
        for pair in self.live:
            self.check(pair)

    def check(self, pair: Pair) -> None:
        real, frames = pair.real, pair.past.frames
        place = self.rule.place
        assert [f[:4] for f in real.kept] == [(f.index, f.shot, f.nth, f.opens) for f in frames]
        assert [f.position for f in real.kept] == [place(f.index, f.shot) for f in frames]
        assert real.frames == pair.open
        assert real.next_frame == pair.past.next_frame
        assert real.nbytes() == kv_bytes(SHAPE, self.policy)
        assert self.undo or real.host_nbytes() == 0
        for layer in range(LAYERS):
            held = real.ordered(layer)
            known = [(n, f.data[layer]) for n, f in enumerate(frames) if f.data[layer] is not None]
            if known:
                rows = [n * TOKENS + token for n, _ in known for token in range(TOKENS)]
                data = torch.cat([data for _, data in known if data is not None], dim=2)
                assert torch.equal(torch.stack([held.k[:, rows], held.v[:, rows]]), data)
            self.check_view(pair, layer)

    def check_view(self, pair: Pair, layer: int) -> None:
        if not pair.written(layer):
            with pytest.raises(StateError, match="read before it is written"):
                pair.real.read(layer)
            return
        view = pair.real.read(layer)
        chunk = [f for f in pair.past.frames if f.index in pair.open]
        before = list(pair.past.frames)
        if chunk:
            before = [f for f in before if f.index < chunk[0].index]
            before = naive_seen(self.policy, before)
        seen = [*before, *chunk]
        places = [self.rule.place(f.index, f.shot) for f in seen]
        if isinstance(self.rule, AtRead):
            places = [float(n) for n in range(len(seen))]
        assert view.query == tuple(places[len(before) :] if chunk else ())
        assert sorted(view.positions) == sorted(places)
        if any(frame.data[layer] is None for frame in seen) or not seen:
            return
        dense = torch.cat([frame.data[layer] for frame in seen], dim=2)  # type: ignore[misc]
        q = torch.randn(2, 3, 2, 4, generator=self.random)
        turned = turn(dense[0], tuple(places))
        expected = dense_attend(q, turned, dense[1])
        torch.testing.assert_close(
            attend(q, view, dense_attend, rotate=turn), expected, atol=1e-5, rtol=1e-5
        )


def turn(k: torch.Tensor, places: tuple[float, ...]) -> torch.Tensor:
    """Stands for rotation: keys that depend on where they stand."""
    return k * torch.cos(torch.tensor(places).repeat_interleave(TOKENS))[None, :, None, None]


TestRings: Any = Rings.TestCase
TestRings.settings = settings(
    max_examples=100,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
