"""Storage of the ring: nothing moves, nothing is copied for reading, bytes are exact, and what is
generated again has the same bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from sgld.causal.errors import SnapshotError, StateError
from sgld.causal.kv import KvCache, KvShape, attend, kv_bytes, kv_host_bytes
from sgld.causal.policies import GlobalSink, Growing, Policy, Rolling
from sgld.causal.view import View
from sgld.ops.attention import attend as dense_attend

SHAPE = KvShape(2, 2, 4, 3, torch.float32, "cpu")
WINDOW = Rolling(window=7, sink=2)


def chunk(kv: KvCache, seed: int, frames: int = 3, shot: int = 0) -> None:
    """One chunk whose keys and values follow from its seed."""
    kv.begin(frames, shot=shot)
    random = torch.Generator().manual_seed(seed)
    for layer in range(kv.shape.layers):
        tokens = len(kv.frames) * kv.shape.frame_tokens
        size = (2, kv.shape.batch, tokens, kv.shape.heads, kv.shape.head_dim)
        kv.write(layer, *torch.randn(size, generator=random).to(kv.shape.dtype))


def grown(policy: Policy = WINDOW, chunks: int = 5, undo: int = 0) -> KvCache:
    kv = KvCache(SHAPE, policy, undo)
    for seed in range(chunks):
        chunk(kv, seed)
        kv.commit()
    return kv


def bits(kv: KvCache) -> list[tuple[tuple[float, ...], list[bytes]]]:
    """What every layer sees, segment by segment as it lies."""
    views = [kv.read(layer) for layer in range(kv.shape.layers)]
    return [(view.positions, [_bytes(half) for s in view.segments for half in s]) for view in views]


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def pointers(kv: KvCache) -> set[int]:
    views = [kv.read(layer) for layer in range(kv.shape.layers)]
    return {half.untyped_storage().data_ptr() for v in views for s in v.segments for half in s}


@pytest.mark.parametrize("window", [6, 7, 8, 9, 11])
@pytest.mark.parametrize("sink", [0, 1, 2, 3])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_whole_history_is_one_segment_without_copies(window: int, sink: int, size: int) -> None:
    kv = KvCache(SHAPE, Rolling(window, sink))
    storages: set[int] = set()
    for seed in range(12):
        chunk(kv, seed, size)
        for layer in range(2):
            (segment,) = kv.read(layer).segments
            assert segment.k.shape[1] == len(kv.kept) * SHAPE.frame_tokens
        storages |= pointers(kv)
        kv.commit()
    assert len(kv.kept) == window
    assert len(storages) == SHAPE.layers


def test_committed_frames_stay_where_they_are() -> None:
    kv = grown(chunks=1)
    address = kv.read(0).segments[0].k.data_ptr()
    before = kv.read(0).segments[0].k[:, :6].clone()
    for seed in range(1, 9):
        chunk(kv, seed)
        kv.commit()
        (segment,) = kv.read(0).segments
        assert segment.k.data_ptr() == address
        assert torch.equal(segment.k[:, :6], before)  # the sink


def test_a_later_forward_takes_the_place_of_an_earlier_one() -> None:
    kv, clean = grown(chunks=4), grown(chunks=4)
    chunk(kv, 100)
    for layer in range(2):
        kv.write(layer, *(torch.full((1, 9, 2, 4), value) for value in (7.0, 8.0)))
    chunk(clean, 200)
    for layer in range(2):
        clean.write(layer, *(torch.full((1, 9, 2, 4), value) for value in (7.0, 8.0)))
    assert bits(kv) == bits(clean)


@pytest.mark.parametrize("policy", [WINDOW, Rolling(9, 2, recent=2), Rolling(-1, limit=30)])
def test_attention_over_views_is_dense_attention(policy: Policy) -> None:
    kv = KvCache(SHAPE, policy)
    made: list[torch.Tensor] = []
    many = 0
    for seed in range(6):
        chunk(kv, seed)
        view = kv.read(1)
        many = max(many, len(view.segments))
        random = torch.Generator().manual_seed(seed)
        made.append(torch.randn(2, 2, 1, 9, 2, 4, generator=random)[1])
        clip = torch.cat(made, dim=2)
        rows = [int(frame) * 3 + token for frame in view.positions for token in range(3)]
        q = torch.randn(1, 9, 2, 4, generator=random)
        expected = dense_attend(q, clip[0][:, rows], clip[1][:, rows])
        torch.testing.assert_close(attend(q, view, dense_attend), expected, atol=1e-5, rtol=1e-5)
        scaled = dense_attend(q, clip[0][:, rows], clip[1][:, rows], scale=0.3)
        got = attend(q, view, dense_attend, scale=0.3)
        torch.testing.assert_close(got, scaled, atol=1e-5, rtol=1e-5)
        kv.commit()
    assert (many > 1) == bool(isinstance(policy, Rolling) and policy.recent)


def test_one_segment_reaches_the_kernel_as_it_lies() -> None:
    kv = grown()
    seen: list[int] = []

    def kernel(q: Any, k: torch.Tensor, v: torch.Tensor, *, scale: Any) -> torch.Tensor:
        seen.append(k.data_ptr())
        return q

    view = kv.read(0)
    attend(torch.zeros(1, 3, 2, 4), view, kernel)
    assert seen == [view.segments[0].k.data_ptr()]


def test_keys_are_turned_at_every_place() -> None:
    kv = KvCache(SHAPE, Rolling(8, 2, recent=3))
    for seed in range(4):
        chunk(kv, seed)
        kv.commit()
    chunk(kv, 9)
    given: list[tuple[torch.Size, tuple[float, ...]]] = []

    def rotate(k: torch.Tensor, places: tuple[float, ...]) -> torch.Tensor:
        given.append((k.shape, places))
        return k

    view = kv.read(0)
    attend(torch.zeros(1, 9, 2, 4), view, dense_attend, rotate=rotate)
    assert given == [(torch.Size((1, view.tokens, 2, 4)), view.positions)]
    assert len(view.positions) * SHAPE.frame_tokens == view.tokens


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("policy", [WINDOW, Growing(13), Rolling(5)])
@pytest.mark.parametrize("batch", [1, 3])
def test_bytes_are_what_the_formula_says(dtype: torch.dtype, policy: Policy, batch: int) -> None:
    shape = KvShape(3, 2, 8, 5, dtype, "cpu", batch)
    kv = KvCache(shape, policy, undo=2)
    for seed in range(4):
        chunk(kv, seed, 2)
        storages = {
            half.untyped_storage().data_ptr(): half.untyped_storage().nbytes()
            for layer in range(3)
            for segment in kv.read(layer).segments
            for half in segment
        }
        assert kv.nbytes() == kv_bytes(shape, policy, undo=2) == sum(storages.values())
        assert kv.host_nbytes() <= kv_host_bytes(shape, 2, 2)
        kv.commit()
    kv.free()
    assert kv.nbytes() == kv.host_nbytes() == 0


def test_host_memory_for_rollback_is_what_the_formula_says() -> None:
    kv = KvCache(SHAPE, Rolling(9, 3), undo=2)
    assert kv_host_bytes(SHAPE, 3, 0) == 0
    for seed in range(9):
        chunk(kv, seed)
        if seed >= 5:
            assert kv.host_nbytes() == kv_host_bytes(SHAPE, 3, 2)
        kv.commit()
    assert kv.host_nbytes() == 2 * 3 * SHAPE.frame_bytes
    kv.rollback(2)
    assert kv.host_nbytes() == 0


@pytest.mark.parametrize("policy", [WINDOW, Rolling(9, 0, recent=4), Growing(60)])
@pytest.mark.parametrize("back", [1, 2, 3])
@pytest.mark.parametrize("half_done", [False, True])
def test_a_chunk_made_again_has_the_same_bits(policy: Policy, back: int, half_done: bool) -> None:
    plain = grown(policy, 8, undo=3)
    again = grown(policy, 8, undo=3)
    for seed in (50, 51, 52)[:back]:
        chunk(again, seed, 2)
        again.commit()
    if half_done:
        chunk(again, 99)
    again.rollback(back)
    assert [f.index for f in again.kept] == [f.index for f in plain.kept]
    for seed in range(8, 14):
        chunk(plain, seed)
        chunk(again, seed)
        assert bits(plain) == bits(again)
        plain.commit()
        again.commit()


def test_what_a_cut_forgot_comes_back_though_later_chunks_took_its_place() -> None:
    policy = GlobalSink(9, 3, clean_recache=True)
    kv = grown(policy, 4, undo=3)
    before = bits(kv)
    for seed, shot in ((4, 1), (5, 1), (6, 1)):
        chunk(kv, seed, shot=shot)
        kv.clean()
        kv.commit()
    assert [frame.index for frame in kv.kept] == [0, 1, 2, *range(15, 21)]
    kv.rollback(3)
    assert bits(kv) == before


def test_rollback_goes_as_far_as_it_remembers_and_no_further() -> None:
    kv = grown(chunks=6, undo=2)
    before = bits(kv)
    with pytest.raises(StateError) as caught:
        kv.rollback(3)
    assert caught.value.code == "not_remembered"
    assert caught.value.remedy
    assert bits(kv) == before
    with pytest.raises(StateError):
        kv.rollback(-1)
    kv.rollback(2)
    with pytest.raises(StateError):
        kv.rollback(1)
    kv.rollback(0)
    assert bits(kv) == bits(grown(chunks=4))


def test_dropping_an_open_chunk_without_undo() -> None:
    kv = grown(chunks=1)
    before = bits(kv)
    chunk(kv, 7)  # into free slots: nothing is lost
    kv.rollback(0)
    assert bits(kv) == before
    kv = grown(chunks=5)
    kv.begin(3)  # nothing written yet
    kv.rollback(0)
    assert bits(kv) == bits(grown(chunks=5))
    chunk(kv, 7)
    with pytest.raises(StateError, match="not saved"):
        kv.rollback(0)


def test_what_a_fork_overwrites_is_not_lost_to_its_origin() -> None:
    kv = grown(chunks=5)
    kv.begin(3)
    other = kv.fork()
    other.write(0, torch.zeros(1, 9, 2, 4), torch.zeros(1, 9, 2, 4))
    with pytest.raises(StateError, match="not saved"):
        other.rollback(0)
    kv.rollback(0)
    assert bits(kv) == bits(grown(chunks=5))


def test_forks_share_a_layer_until_one_writes_it() -> None:
    kv = grown()
    other = kv.fork()
    assert pointers(kv) == pointers(other)
    other.begin(3)
    other.write(0, torch.zeros(1, 9, 2, 4), torch.zeros(1, 9, 2, 4))
    own = other.read(0).segments[0].k.untyped_storage().data_ptr()
    assert own not in pointers(kv)
    assert bits(kv) == bits(grown())
    other.write(1, torch.zeros(1, 9, 2, 4), torch.zeros(1, 9, 2, 4))
    assert not pointers(kv) & pointers(other)
    # The last owner writes in place.
    address = pointers(kv)
    chunk(kv, 5)
    assert pointers(kv) == address


@pytest.mark.parametrize("first", [0, 1])
def test_a_fork_and_its_origin_go_on_as_if_alone(first: int) -> None:
    alone = {seed: grown(undo=2) for seed in (100, 200)}
    kv = grown(undo=2)
    pair = [kv, kv.fork()]
    for turn in range(4):
        for place in (first, 1 - first):
            seed = 100 + 100 * place
            chunk(pair[place], seed + turn)
            chunk(alone[seed], seed + turn)
            assert bits(pair[place]) == bits(alone[seed])
            pair[place].commit()
            alone[seed].commit()
    pair[first].rollback(2)
    alone[100 + 100 * first].rollback(2)
    assert bits(pair[first]) == bits(alone[100 + 100 * first])
    assert bits(pair[1 - first]) == bits(alone[100 + 100 * (1 - first)])


def test_a_fork_survives_its_origin() -> None:
    kv = grown(undo=1)
    other = kv.fork()
    kv.free()
    address = pointers(other)
    chunk(other, 5)
    assert pointers(other) == address  # alone again, so there was nothing to copy
    other.rollback(1)
    assert bits(other) == bits(grown(chunks=4))


@pytest.mark.parametrize("policy", [WINDOW, Rolling(8, 2, recent=3), Growing(60)])
def test_what_is_written_down_goes_on_with_the_same_bits(policy: Policy) -> None:
    plain = grown(policy, 6)
    other = KvCache(SHAPE, policy)
    chunk(other, 77)  # whatever it was in the middle of
    other.load(*plain.dump())
    assert bits(other) == bits(plain)
    for seed in range(6, 12):
        chunk(plain, seed)
        chunk(other, seed)
        assert bits(plain) == bits(other)
        plain.commit()
        other.commit()


def spoil(change: Callable[[dict[str, Any], dict[str, Any]], object]) -> str:
    """The code with which a changed dump is refused; the cache is as before."""
    values, tensors = grown().dump()
    values, tensors = dict(values), dict(tensors)
    change(values, tensors)
    kv = grown(chunks=2)
    before = bits(kv)
    with pytest.raises(SnapshotError) as caught:
        kv.load(values, tensors)
    assert bits(kv) == before
    return caught.value.code


@pytest.mark.parametrize(
    "change",
    [
        lambda v, t: v.pop("frames"),
        lambda v, t: v.update(frames=[[1, 2]]),
        lambda v, t: v["frames"].reverse(),
        lambda v, t: v["frames"][0].__setitem__(5, 99),
        lambda v, t: v["frames"][0].__setitem__(5, v["frames"][1][5]),
        lambda v, t: v["frames"][0].__setitem__(0, -1),
        lambda v, t: v["frames"][0].__setitem__(3, "no"),
        lambda v, t: v["frames"][0].__setitem__(4, None),
        lambda v, t: v["frames"][0].__setitem__(0, True),
        lambda v, t: v.update(next_frame=3),
        lambda v, t: v.update(shot="x"),
        lambda v, t: t.pop("kv.1"),
        lambda v, t: t.update({"kv.7": t["kv.0"]}),
        lambda v, t: t.update({"kv.0": t["kv.0"][:, :, 1:]}),
        lambda v, t: t.update({"kv.0": t["kv.0"].double()}),
    ],
)
def test_a_dump_that_cannot_be_is_refused(change: Any) -> None:
    assert spoil(change) == "snapshot_damaged"


def test_a_dump_of_another_cache_is_refused_by_name() -> None:
    assert spoil(lambda v, t: v.update(made=None)) == "snapshot_mismatch"
    values, tensors = grown().dump()
    other = KvCache(SHAPE._replace(heads=1), Rolling(8))
    with pytest.raises(
        SnapshotError, match=r"heads is 2 there and 1 here; policy is 'Rolling"
    ) as e:
        other.load(values, tensors)
    assert e.value.code == "snapshot_mismatch"
    assert e.value.remedy


def test_filling_again_sees_only_what_was_before() -> None:
    kv = grown(Rolling(9, 3), chunks=5, undo=1)
    before = bits(kv)
    kept = [frame.index for frame in kv.kept]
    assert kept == [0, 1, 2, 9, 10, 11, 12, 13, 14]
    for place in (0, 3, 6):
        kv.reopen(kept[place : place + 3])
        assert kv.positions == tuple(map(float, kept[place : place + 3]))
        for layer in range(2):
            kv.write(layer, *torch.full((2, 1, 9, 2, 4), float(place)))
        assert sorted(kv.read(0).positions) == kept[: place + 3]
        kv.seal()
    held = kv.ordered(1).k[0, :, 0, 0].tolist()
    assert held == [0.0] * 9 + [3.0] * 9 + [6.0] * 9
    assert [frame.index for frame in kv.kept] == kept
    assert kv.next_frame == 15
    chunk(kv, 5)
    kv.commit()
    kv.rollback(1)  # filling and chunk are one step
    assert bits(kv) == before


def test_filling_a_scene_again_cuts_nothing() -> None:
    kv = KvCache(SHAPE, GlobalSink(9, 3, clean_recache=True))
    for seed, shot in ((0, 0), (1, 1), (2, 1)):
        chunk(kv, seed, shot=shot)
        kv.clean()
        kv.commit()
    kept = kv.kept
    kv.reopen([3, 4, 5])  # the chunk that began the scene
    kv.clean()
    assert kv.kept == kept


def test_wrong_use_is_refused() -> None:
    kv = KvCache(SHAPE, WINDOW)
    zeros = torch.zeros(1, 9, 2, 4)
    for frames, shot in ((0, 0), (-1, 0), (1, -1)):
        with pytest.raises(StateError, match=f"frames={frames}, shot={shot}"):
            kv.begin(frames, shot=shot)
    kv.begin(3)
    for wrong in (zeros[:, :6], zeros[..., :2], zeros.expand(2, -1, -1, -1)):
        with pytest.raises(StateError, match="the open chunk takes"):
            kv.write(0, wrong, zeros)
        with pytest.raises(StateError, match="the open chunk takes"):
            kv.write(0, zeros, wrong)
    for layer in (-1, 2):
        with pytest.raises(StateError, match="there are 2 layers"):
            kv.write(layer, zeros, zeros)
    with pytest.raises(StateError, match="before it is written"):
        kv.read(0)
    kv.write(0, zeros, zeros)
    with pytest.raises(StateError, match="1 of 2 layers"):
        kv.commit()
    with pytest.raises(StateError, match="open already"):
        kv.reopen([0])
    kv.reset()
    with pytest.raises(StateError, match="not kept"):
        kv.reopen([0])
    kv.free()
    with pytest.raises(StateError, match="was freed"):
        kv.begin(1)


def test_an_empty_cache_shows_nothing() -> None:
    kv = KvCache(SHAPE, WINDOW)
    assert kv.read(0) == View((), (), ())
    assert kv.kept == ()
    assert kv.frames == ()
    other = KvCache(SHAPE, WINDOW)
    other.load(*kv.dump())
    assert other.kept == ()
    kv.commit()  # a step in which nothing happened
    assert kv.kept == ()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_what_is_made_again_has_the_same_bits() -> None:
    shape = SHAPE._replace(device="cuda", dtype=torch.bfloat16)
    runs = []
    for forget in (False, True):
        kv = KvCache(shape, WINDOW, undo=2)
        for seed in range(6):
            chunk(kv, seed)
            kv.commit()
        if forget:
            for seed in (70, 71):
                chunk(kv, seed)
                kv.commit()
            chunk(kv, 72)
            kv.rollback(2)
        for seed in range(6, 9):
            chunk(kv, seed)
            kv.commit()
        both = [kv.ordered(layer) for layer in range(2)]
        runs.append([half.float().cpu() for segment in both for half in segment])
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))
