"""All that outlives a chunk moves together: back, apart, into bytes, and away."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sgld.causal.blocks import BlockPlan
from sgld.causal.cache import CausalCache, Part
from sgld.causal.cross import CrossCache, CrossShape
from sgld.causal.errors import SnapshotError, StateError
from sgld.causal.kept import Kept
from sgld.causal.kv import KvCache, KvShape
from sgld.causal.policies import Rolling
from sgld.causal.snapshot import HEAD, pack, unpack
from sgld.causal.state import CausalState

PLAN = BlockPlan(2, 1)
KV = KvShape(2, 1, 4, 2, torch.float32, "cpu")
TEXT = CrossShape(1, 1, 4, 3, torch.float32, "cpu")


class Matrices(CausalCache):
    """History that is no keys and values: one running matrix per layer, of one size for ever."""

    def __init__(self, layers: int) -> None:
        self._now = [torch.zeros(3, 3) for _ in range(layers)]
        self._log: list[list[torch.Tensor]] = []
        self._next: list[torch.Tensor] = []

    def begin(self, frames: int, *, shot: int = 0) -> None:
        self._next = list(self._now)

    def read(self, layer: int) -> torch.Tensor:
        return self._now[layer]

    def write(self, layer: int, gain: torch.Tensor) -> None:
        self._next[layer] = self._now[layer] * 0.5 + gain

    def commit(self) -> None:
        self._log.append(self._now)
        self._now, self._next = self._next or self._now, []

    def rollback(self, chunks: int) -> None:
        self._next = []
        for _ in range(chunks):
            self._now = self._log.pop()

    def fork(self) -> Matrices:
        other = Matrices(0)
        other._now, other._log, other._next = list(self._now), list(self._log), list(self._next)
        return other

    def dump(self) -> tuple[Mapping[str, Any], Mapping[str, torch.Tensor]]:
        return {}, {str(layer): matrix for layer, matrix in enumerate(self._now)}

    def load(self, values: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
        self._now = [tensors[str(layer)].clone() for layer in range(len(self._now))]

    def reset(self) -> None:
        self._now, self._log = [torch.zeros(3, 3) for _ in self._now], []

    def nbytes(self) -> int:
        return sum(matrix.nbytes for matrix in self._now)

    def free(self) -> None:
        self._now, self._log, self._next = [], [], []


def make(undo: int = 3, seed: int = 5) -> CausalState:
    parts: dict[str, Part] = {
        "kv": KvCache(KV, Rolling(5, 1), undo),
        "text": CrossCache(TEXT, undo),
        "matrices": Matrices(2),
        "decoder": Kept("cpu", undo),
    }
    state = CausalState(parts, torch.Generator().manual_seed(seed), undo=undo)
    state["decoder"].set("last", torch.zeros(3))  # type: ignore[attr-defined]
    torch.randn(7, generator=state.generator)  # the open stages draw, too
    state.opened()
    return state


def denoise(state: CausalState, prompt: str = "p") -> torch.Tensor:
    """One chunk that depends on everything: what was kept, the text, the noise, the past."""
    chunk = PLAN.chunk(state.next_index)
    kv, text, matrices = (state.parts[name] for name in ("kv", "text", "matrices"))
    assert isinstance(kv, KvCache)
    assert isinstance(text, CrossCache)
    assert isinstance(matrices, Matrices)
    noise = torch.randn(1, 2 * chunk.frames, 1, 4, generator=state.generator)
    if text.use(prompt):
        text.write(0, *torch.full((2, 1, 3, 1, 4), float(len(prompt))))
    kept = text.read(0)
    assert kept is not None
    x = noise + kept[0].mean() + matrices.read(0).mean()
    kv.begin(chunk.frames)
    matrices.begin(chunk.frames)
    for layer in range(2):
        kv.write(layer, x, x + 1)
        view = kv.read(layer).dense()
        x = x + view.k.mean(dim=1, keepdim=True) - view.v.mean(dim=1, keepdim=True) / 3
        matrices.write(layer, x.mean().expand(3, 3))
    return x


def decode(state: CausalState, latents: torch.Tensor) -> torch.Tensor:
    decoder = state["decoder"]
    assert isinstance(decoder, Kept)
    frames = latents.mean() + decoder.get("last")
    decoder.set("last", frames * 0.5)
    return frames


def run(state: CausalState, chunks: int, prompt: str = "p") -> list[torch.Tensor]:
    made: list[torch.Tensor] = []
    for _ in range(chunks):
        latents = denoise(state, prompt)
        made += [latents, decode(state, latents)]
        state.advance(PLAN.chunk(state.next_index))
    return made


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_chunks_follow_each_other() -> None:
    state = make()
    assert (state.next_index, state.next_frame, state.remembered) == (0, 0, 0)
    run(state, 3)
    assert (state.next_index, state.next_frame, state.remembered) == (3, 5, 3)
    with pytest.raises(StateError, match="chunk 5 at frame 9 does not follow"):
        state.advance(PLAN.chunk(5))
    run(state, 2)
    assert state.remembered == 3


@pytest.mark.parametrize("back", [0, 1, 2, 3])
@pytest.mark.parametrize("half_done", [False, True])
def test_what_is_taken_back_comes_again_with_the_same_bits(back: int, half_done: bool) -> None:
    state, plain = make(), make()
    run(state, 4)
    run(plain, 4)
    lost = run(state, back, "another prompt")
    if half_done:
        decode(state, denoise(state, "a third"))
    state.rollback(back)
    assert (state.next_index, state.next_frame) == (4, 7)
    again, expected = run(state, 6), run(plain, 6)
    assert same(again, expected)
    assert not lost or not same(again[: len(lost)], lost)


def test_a_rollback_stops_at_what_the_open_stages_left() -> None:
    state, plain = make(), make()
    run(state, 2)
    state.rollback(2)
    assert state.remembered == 0
    assert same(run(state, 3), run(plain, 3))
    state.rollback(3)
    with pytest.raises(StateError) as caught:
        state.rollback(1)
    assert caught.value.code == "not_remembered"
    assert "up to 3" in str(caught.value)
    assert same(run(state, 3), run(make(), 3))


def test_forks_go_their_own_ways() -> None:
    state = make()
    run(state, 3)
    twin = state.fork()
    expected = make()
    run(expected, 3)
    here, there = run(state, 4), run(twin, 4, "another prompt")
    assert same(here, run(expected, 4))
    assert not same(here, there)
    state.free()
    twin.rollback(3)
    assert twin.next_index == 4
    run(twin, 1)


@pytest.mark.parametrize("chunks", [0, 1, 6])
def test_a_snapshot_goes_on_with_the_same_bits(chunks: int) -> None:
    state = make()
    run(state, chunks)
    data = state.snapshot()
    assert state.snapshot() == data
    other = make(seed=99)
    run(other, 2)
    other.restore(data)
    assert (other.next_index, other.next_frame) == (state.next_index, state.next_frame)
    assert other.remembered == 0
    assert same(run(other, 4), run(state, 4))
    other.rollback(3)
    state.rollback(3)
    assert same(run(other, 3), run(state, 3))


def test_a_snapshot_needs_a_quiet_moment() -> None:
    state = make()
    run(state, 1)
    denoise(state)
    with pytest.raises(StateError):
        state.snapshot()


@given(st.data())
def test_damaged_bytes_are_refused(data: st.DataObject) -> None:
    whole = bytearray(SNAPSHOT)
    kind = data.draw(st.sampled_from(["flip", "cut", "more", "other"]))
    if kind == "flip":
        whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    elif kind == "cut":
        del whole[data.draw(st.integers(0, len(whole) - 1)) :]
    elif kind == "more":
        whole += data.draw(st.binary(min_size=1, max_size=9))
    else:
        whole = bytearray(data.draw(st.binary(max_size=99)))
    with pytest.raises(SnapshotError) as caught:
        STATE.restore(bytes(whole))
    assert caught.value.code in ("snapshot_damaged", "snapshot_version")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 99) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)


@given(st.data())
def test_well_formed_bytes_of_nonsense_are_refused(data: st.DataObject) -> None:
    """The checksum is right, what stands inside is not."""
    values, tensors = unpack(SNAPSHOT)
    kind = data.draw(st.sampled_from(["value", "part", "inside", "tensor", "gone"]))
    if kind == "value":
        values[data.draw(st.sampled_from(sorted(values)))] = data.draw(
            JSON.filter(lambda v: not isinstance(v, int) or isinstance(v, bool) or v < 0)
        )
    elif kind == "part":
        values["parts"].pop(data.draw(st.sampled_from(sorted(values["parts"]))))
    elif kind == "inside":
        name = data.draw(st.sampled_from(["kv", "text", "decoder"]))
        part = values["parts"][name]
        key = data.draw(st.sampled_from(sorted(part)))
        part[key] = data.draw(JSON.filter(lambda v: v != part[key]))
        # A dictionary of other values is what a dump may well hold, a later frame or scene too.
        if key == "values" and isinstance(part[key], dict):
            return
        if key in ("next_frame", "shot") and (part[key] is None or type(part[key]) is int):
            return
    elif kind == "tensor":
        tensors[data.draw(st.text(max_size=5)) + "/x"] = torch.zeros(1)
        tensors.pop(next(name for name in sorted(tensors) if not name.endswith("/x")))
    else:
        tensors.pop(data.draw(st.sampled_from([n for n in sorted(tensors) if "matr" not in n])))
    with pytest.raises(SnapshotError):
        STATE.restore(pack(values, tensors))
    assert STATE.next_index == 0


STATE = make()
SNAPSHOT = b""


def setup_module() -> None:
    global SNAPSHOT
    state = make()
    run(state, 4)
    SNAPSHOT = state.snapshot()


def test_snapshots_of_another_version_or_state_are_named() -> None:
    magic, version, digest = HEAD.unpack_from(SNAPSHOT)
    other = HEAD.pack(magic, version + 1, digest) + SNAPSHOT[HEAD.size :]
    with pytest.raises(SnapshotError, match="version 2; this one reads 1") as caught:
        unpack(other)
    assert caught.value.code == "snapshot_version"
    fewer = CausalState({"kv": KvCache(KV, Rolling(5, 1))}, torch.Generator())
    with pytest.raises(SnapshotError, match=r"this state \['kv'\]") as caught:
        fewer.restore(SNAPSHOT)
    assert caught.value.code == "snapshot_mismatch"


def test_reset_is_as_new() -> None:
    state = make(undo=2)
    run(state, 3)
    state.reset()
    assert (state.next_index, state.next_frame, state.remembered) == (0, 0, 0)
    state["decoder"].set("last", torch.zeros(3))  # type: ignore[attr-defined]
    torch.randn(7, generator=state.generator)
    state.opened()
    assert same(run(state, 3), run(make(), 3))


def test_frames_before_the_first_chunk() -> None:
    state = CausalState({}, torch.Generator(), undo=1)
    state.next_frame = 4
    state.opened()
    state.opened()  # nothing more happens
    chunk = PLAN.chunk(0)._replace(first=4)
    state.advance(chunk)
    assert state.next_frame == 5
    with pytest.raises(StateError, match="under way"):
        state.next_frame = 9
    state.rollback(1)
    assert state.next_frame == 4


def test_opening_is_not_forgotten() -> None:
    with pytest.raises(StateError, match="before `opened`"):
        CausalState({}, torch.Generator(), undo=1).advance(PLAN.chunk(0))
    for name in ("", "a/b"):
        with pytest.raises(StateError, match="cannot name a part"):
            CausalState({name: Kept("cpu")}, torch.Generator())


@pytest.mark.parametrize("early", [False, True])
def test_the_decoder_may_be_behind_or_ahead(early: bool) -> None:
    """Its work at a chunk ends before or after the commit pass; the result is the same."""
    state, plain = make(), make()
    made: list[torch.Tensor] = []
    for _ in range(4):
        latents = denoise(state)
        if early:
            made += [latents, decode(state, latents)]
            state.settle(["decoder"])
            for forbidden in (state.snapshot, state.fork):
                with pytest.raises(StateError, match="decoder is at another chunk"):
                    forbidden()
        state.advance(PLAN.chunk(state.next_index), later=["decoder"])
        if not early:
            for forbidden in (state.snapshot, state.fork, state.reset, lambda: state.rollback(1)):
                with pytest.raises(StateError, match="decoder is at another chunk"):
                    forbidden()
            made += [latents, decode(state, latents)]
            state.settle(["decoder"])
    assert same(made, run(plain, 4))
    state.rollback(2)
    plain.rollback(2)
    assert same(run(state, 2), run(plain, 2))


def test_a_chunk_whose_frames_are_done_can_be_dropped() -> None:
    state, plain = make(), make()
    run(state, 4)
    run(plain, 4)
    decode(state, denoise(state))
    state.settle(["decoder"])  # and then the commit pass is given up
    state.rollback(3)
    plain.rollback(3)
    assert same(run(state, 4), run(plain, 4))
    state.snapshot()


def test_the_decoder_works_on_another_thread() -> None:
    state, plain = make(undo=2), make(undo=2)
    made: list[torch.Tensor] = []
    asked: list[int] = []

    def work(latents: torch.Tensor) -> None:
        made.append(decode(state, latents))
        state.settle(["decoder"])

    worker: threading.Thread | None = None
    for _ in range(30):
        latents = denoise(state)
        made_here = latents
        if worker is not None:
            worker.join()
        worker = threading.Thread(target=work, args=(latents,))
        made.append(made_here)
        worker.start()
        asked.append(state.nbytes())
        state.advance(PLAN.chunk(state.next_index), later=["decoder"])
    assert worker is not None
    worker.join()
    assert same(made, run(plain, 30))
    assert state.nbytes() == plain.nbytes()
    assert set(asked) == {state.nbytes()}


class Stubborn(Kept):
    """Cannot be freed."""

    def free(self) -> None:
        raise RuntimeError("stuck")


def test_everything_is_freed_on_every_path() -> None:
    state = make()
    run(state, 3)
    held = state.nbytes()
    assert held == sum(part.nbytes() for part in state.parts.values()) > 0
    assert state.host_nbytes() > 0
    denoise(state)
    for _ in range(2):
        state.free()
        assert state.nbytes() == state.host_nbytes() == 0
    state.settle(["decoder"])  # its work ends after the session has
    for late in (state.snapshot, state.fork, state.reset, lambda: state.rollback(0)):
        with pytest.raises(StateError, match="was freed"):
            late()
    with pytest.raises(StateError, match="was freed"):
        state.advance(PLAN.chunk(3))
    parts: dict[str, Part] = {
        "a": Stubborn("cpu"),
        "kv": KvCache(KV, Rolling(5)),
        "b": Stubborn("cpu"),
    }
    state = CausalState(parts, torch.Generator())
    with pytest.raises(RuntimeError, match="stuck"):
        state.free()
    assert state.nbytes() == 0
