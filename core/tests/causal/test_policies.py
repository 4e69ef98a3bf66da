"""What policies keep, against traces of a reference implementation and against its rule."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from sgld.api.errors import ParameterError
from sgld.causal.errors import StateError
from sgld.causal.kv import KvCache, KvShape
from sgld.causal.policies import GlobalSink, Growing, PinnedSink, Policy, Rolling
from sgld.causal.positions import Absolute, AtRead, ShotOffset

TRACES: dict[str, Any] = json.loads((Path(__file__).parent / "data/cache_traces.json").read_text())
TOKENS: int = TRACES["frame_tokens"]


def cache(policy: Policy, **more: Any) -> KvCache:
    return KvCache(KvShape(1, 1, 2, 1, torch.float32, "cpu"), policy, **more)


def fill(kv: KvCache, value: float = 0.0) -> None:
    rows = torch.full((1, len(kv.frames), 1, 2), value)
    kv.write(0, rows, rows)


def push(kv: KvCache, frames: int, *, shot: int = 0) -> None:
    kv.begin(frames, shot=shot)
    fill(kv)
    kv.clean()
    fill(kv)
    kv.commit()


def indices(kv: KvCache) -> list[int]:
    return [frame.index for frame in kv.kept]


def pin_of(policy: Policy, kv: KvCache, open_frames: int) -> list[int]:
    """Start and length in tokens of what is pinned now, as the reference tells it."""
    kept = kv.kept[: len(kv.kept) - open_frames]
    if not isinstance(policy, PinnedSink):
        return [-1, 0]
    order = [frame.index for frame in kept]
    extra = sorted(policy.stay(kept) - {index for index in order if index < policy.sink})
    return [order.index(extra[0]) * TOKENS, len(extra) * TOKENS] if extra else [-1, 0]


@pytest.mark.parametrize("name", TRACES["cases"])
def test_traces_of_the_reference(name: str) -> None:
    case = TRACES["cases"][name]
    window, sink = case["window"], case["sink"]
    recache = case.get("clean_recache", False)
    policy = PinnedSink(window, sink, recache) if "multi" in name else Rolling(window, sink)
    kv = cache(policy, positions=ShotOffset(case.get("rope_offset", 0.0)))
    size, shot, trace = TRACES["chunk_frames"], 0, iter(case["trace"])
    for index, prompt in enumerate(case["prompts"]):
        shot += bool(index and prompt.startswith(TRACES["scene_cut_prefix"]))
        chunk, call, offset, before, after = next(trace)
        assert (chunk, call) == (index, "denoise0")
        assert [kv.next_frame * TOKENS, len(kv.kept) * TOKENS] == before[:2]
        assert pin_of(policy, kv, 0) == before[2:]
        kv.begin(size, shot=shot)
        assert [kv.next_frame * TOKENS, len(kv.kept) * TOKENS] == after[:2]
        assert pin_of(policy, kv, size) == after[2:]
        assert kv.positions == tuple(frame + offset for frame in kv.frames)
        fill(kv)
        _, call, offset, _, after = next(trace)
        assert call == "context"
        kv.clean()
        fill(kv)
        assert [kv.next_frame * TOKENS, len(kv.kept) * TOKENS] == after[:2]
        if not (recache and index and prompt != case["prompts"][index - 1]):
            assert pin_of(policy, kv, size) == after[2:]
        kv.commit()


def test_windows_that_are_no_multiple_of_the_chunk() -> None:
    kv = cache(Rolling(window=7, sink=2))
    seen = []
    for _ in range(4):
        kv.begin(3)
        seen.append(indices(kv))
        fill(kv)
        kv.commit()
    assert seen == [
        [0, 1, 2],
        [0, 1, 2, 3, 4, 5],
        [0, 1, 4, 5, 6, 7, 8],
        [0, 1, 7, 8, 9, 10, 11],
    ]


def test_recent_shows_less_than_is_kept() -> None:
    kv = cache(Rolling(window=9, sink=2, recent=2))
    for _ in range(3):
        push(kv, 2)
    kv.begin(2)
    fill(kv)
    assert indices(kv) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert sorted(kv.read(0).positions) == [0, 1, 4, 5, 6, 7]
    none = cache(Rolling(window=9, sink=1, recent=0))
    for _ in range(3):
        push(none, 2)
    none.begin(1)
    fill(none)
    assert sorted(none.read(0).positions) == [0, 6]


def test_a_global_sink_outlives_a_cut() -> None:
    kv = cache(GlobalSink(window=8, sink=2, clean_recache=True))
    for shot in (0, 0, 0, 1):
        push(kv, 2, shot=shot)
    assert indices(kv) == [0, 1, 6, 7]
    rolling = cache(GlobalSink(window=8, sink=2))
    for shot in (0, 0, 0, 1, 1):
        push(rolling, 2, shot=shot)
    assert indices(rolling) == [0, 1, 4, 5, 6, 7, 8, 9]


def test_rolling_goes_around_a_pin_that_does_not_line_up() -> None:
    kv = cache(PinnedSink(window=9, sink=2))
    for shot in (0, 0, 1, 1, 1):
        push(kv, 3, shot=shot)
    assert indices(kv) == [0, 1, 6, 7, 10, 11, 12, 13, 14]
    push(kv, 3, shot=2)
    assert indices(kv) == [0, 1, 6, 7, 13, 14, 15, 16, 17]
    push(kv, 3, shot=2)
    assert indices(kv) == [0, 1, 14, 15, 16, 17, 18, 19, 20]
    push(kv, 3, shot=2)
    assert indices(kv) == [0, 1, 15, 16, 19, 20, 21, 22, 23]


def test_a_scene_number_that_comes_back_is_a_new_scene() -> None:
    kv = cache(PinnedSink(window=8, sink=1))
    for shot in (0, 1, 0, 1, 1, 1, 1):
        push(kv, 2, shot=shot)
    assert indices(kv) == [0, 6, 8, 9, 10, 11, 12, 13]


def test_positions() -> None:
    shots = cache(Rolling(4, 1), positions=ShotOffset(0.5))
    push(shots, 2)
    push(shots, 1, shot=3)
    shots.begin(2, shot=3)
    fill(shots)
    view = shots.read(0)
    assert view.query == shots.positions == (4.5, 5.5)
    assert sorted(view.positions) == [0.0, 3.5, 4.5, 5.5]
    read = cache(Rolling(4, 1), positions=AtRead())
    push(read, 2)
    push(read, 2)
    read.begin(2)
    fill(read)
    assert read.positions == (2.0, 3.0)
    # Frames 0, 3, 4, 5 are kept; 4 and 5 lie in the slots of 1 and 2.
    assert read.read(0).positions == (0.0, 2.0, 3.0, 1.0)
    assert Absolute().place(7, 3) == 7.0


def test_growing_keeps_everything_and_says_when_it_is_full() -> None:
    for policy in (Growing(5), Rolling(-1, limit=5), Rolling(0, sink=2, limit=5)):
        kv = cache(policy)
        push(kv, 2)
        push(kv, 2)
        with pytest.raises(StateError) as caught:
            kv.begin(2)
        assert caught.value.code == "history_full"
        assert indices(kv) == [0, 1, 2, 3]
        assert kv.frames == ()
        push(kv, 1)


def test_a_chunk_that_can_never_fit_is_refused_at_once() -> None:
    kv = cache(Rolling(window=6, sink=4))
    with pytest.raises(StateError, match="has room for 6"):
        kv.begin(7)
    push(kv, 3)
    push(kv, 2)
    with pytest.raises(StateError) as caught:
        kv.begin(3)
    assert caught.value.code == "history_full"


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Rolling(-2), "window"),
        (lambda: Rolling(0), "limit"),
        (lambda: Rolling(-1, limit=-4), "limit"),
        (lambda: Rolling(4, sink=4), "sink"),
        (lambda: Rolling(4, sink=-1), "sink"),
        (lambda: Rolling(4, recent=-1), "recent"),
        (lambda: Growing(0), "limit"),
        (lambda: GlobalSink(0), "window"),
        (lambda: GlobalSink(4, 4), "sink"),
        (lambda: PinnedSink(4, 2), "sink"),
        (lambda: PinnedSink(4, -1), "sink"),
    ],
)
def test_settings_that_leave_no_room_are_refused(make: Any, field: str) -> None:
    with pytest.raises(ParameterError) as caught:
        make()
    assert [problem.field for problem in caught.value.problems] == [field]


class Careless(Rolling):
    """Drops what is not there."""

    def drop(self, kept: Any, chunk: Any) -> list[int]:
        return [10**6]


def test_a_policy_that_drops_what_is_not_kept_is_found_out() -> None:
    with pytest.raises(StateError, match="not kept"):
        cache(Careless(4)).begin(1)
