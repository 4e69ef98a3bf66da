"""Every plan cuts a clip without gaps, whatever the sizes."""

from __future__ import annotations

import subprocess
import sys
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgld.causal.blocks import BlockPlan, Chunk

SIZES = st.integers(1, 9)
TOTALS = st.integers(1, 60)


def covered(plan: BlockPlan) -> list[int]:
    return [frame for c in plan.chunks() for frame in range(c.first, c.first + c.frames)]


@given(SIZES, st.integers(0, 12), TOTALS)
def test_chunks_cover_every_frame_once_in_order(size: int, first: int, total: int) -> None:
    plan = BlockPlan(size, first, total)
    chunks = list(plan.chunks())
    assert covered(plan) == list(range(total))
    assert [chunk.index for chunk in chunks] == list(range(plan.count))
    assert all(chunk.frames == size for chunk in chunks[1:-1])
    assert chunks[0].frames == min(first or size, total)
    assert plan.even == (chunks[-1].frames == (size if len(chunks) > 1 else first or size))
    for chunk in chunks:
        assert plan.chunk(chunk.index) == chunk
        for frame in range(chunk.first, chunk.first + chunk.frames):
            assert plan.chunk_at(frame) == chunk
    for past in (plan.count, -1):
        with pytest.raises(IndexError):
            plan.chunk(past)
    for frame in (total, -1):
        with pytest.raises(IndexError):
            plan.chunk_at(frame)


@given(SIZES, TOTALS)
def test_a_remainder_in_front_leaves_no_short_chunk(size: int, total: int) -> None:
    plan = BlockPlan.remainder_first(size, total)
    sizes = [chunk.frames for chunk in plan.chunks()]
    assert sum(sizes) == total
    assert plan.even
    assert all(frames == size for frames in sizes[1:])
    if total >= size:
        assert size <= sizes[0] < 2 * size
    else:
        assert sizes == [total]


@given(SIZES, st.integers(0, 12), TOTALS)
def test_rounding_gives_the_nearest_whole_number_of_chunks(
    size: int, first: int, frames: int
) -> None:
    plan = BlockPlan(size, first)
    head = first or size
    whole = [head + n * size for n in range(80)]
    assert plan.round_frames(frames) == min(n for n in whole if n >= frames)
    below = [n for n in whole if n <= frames]
    assert plan.round_frames(frames, up=False) == (max(below) if below else head)
    assert BlockPlan(size, first, plan.round_frames(frames)).even


def test_first_blocks_of_one_and_three() -> None:
    assert [c.frames for c in BlockPlan(3, 1, 10).chunks()] == [1, 3, 3, 3]
    assert [c.frames for c in BlockPlan(3, 0, 8).chunks()] == [3, 3, 2]
    assert [c.frames for c in BlockPlan.remainder_first(3, 11).chunks()] == [5, 3, 3]
    assert BlockPlan(4, 1).chunk(5) == Chunk(5, 17, 4)


def test_an_endless_plan_goes_on() -> None:
    plan = BlockPlan(3)
    assert plan.count == 0
    assert plan.even
    assert [c.first for c in islice(plan.chunks(), 4)] == [0, 3, 6, 9]
    assert plan.chunk(10**6).first == 3 * 10**6
    assert BlockPlan.remainder_first(3, 0) == plan


@pytest.mark.parametrize(
    "plan", [BlockPlan(0), BlockPlan(-1), BlockPlan(3, -1), BlockPlan(3, 0, -3)]
)
def test_sizes_that_make_no_plan_are_refused(plan: BlockPlan) -> None:
    for use in (lambda: plan.chunk(0), lambda: plan.count, lambda: next(plan.chunks())):
        with pytest.raises(ValueError, match="1 frame or more"):
            use()


def test_deciding_needs_no_torch() -> None:
    names = ", ".join(
        f"sgld.causal.{name}" for name in ("blocks", "books", "policies", "positions")
    )
    code = f"import sys, {names}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
