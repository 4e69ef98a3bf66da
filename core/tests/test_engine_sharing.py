"""Forwards that requests share and results that are remembered: what may go wrong stays apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from free_engine import ONE, FreePipeline, Opaque, Rig, call

from sgld.engine.batching import BatchLimit, NotPartableError, gather, part
from sgld.engine.call import Call, StageRun
from sgld.engine.job import Job
from sgld.engine.memo import Memo

# --- shared forwards -----------------------------------------------------------------------------


def test_a_companion_may_die_of_the_result_of_a_shared_forward() -> None:
    def body(job: Job) -> StageRun:
        for _ in range(3):
            yield [call(1), call(2)]
            if job.request.id == "bad":
                raise OSError("after a shared forward")
        job.slots.frames = ONE

    rig = Rig(FreePipeline(body), batching=16)
    rig.submit("a", "bad", "b", seeds=(1, 2))
    rig.drain()
    assert rig.last("bad").kind == "failed"
    assert rig.last("a").kind == rig.last("b").kind == "done"


def test_results_of_any_nest_are_parted_and_others_run_alone() -> None:
    seen: dict[str, list[Any]] = {}

    def body(job: Job) -> StageRun:
        value = float(job.seed)
        got = seen.setdefault(job.request.id, [])
        for _ in range(2):
            for method in ("pair", "whole", "opaque"):
                got.append((yield call(value, method=method)))

    rig = Rig(FreePipeline(body), batching=8)
    rig.submit("a", seeds=(3,))
    rig.submit("b", seeds=(5,))
    rig.drain()
    for id, value in (("a", 3.0), ("b", 5.0)):
        pair, whole, opaque = seen[id][:3]
        assert pair["a"].tolist() == [[2 * value] * 2]
        assert pair["b"][0].tolist() == [[value + 1] * 2]
        assert pair["b"][1] is None
        assert pair["c"].first.tolist() == [[3 * value] * 2]
        assert pair["c"].rest[0].tolist() == [[value] * 2]
        assert whole.item() == 2 * value
        assert opaque.tensor.tolist() == [[2 * value] * 2]
    # Shared and found impossible once, alone from then on.
    assert rig.module.rows.count(2) == 4
    assert rig.module.rows.count(1) == 8


def test_calls_that_cannot_be_joined_are_run_alone() -> None:
    odd = [
        {"x": torch.ones(1, 2), "y": torch.ones(2, 2)},
        {"x": torch.ones(1, 2), "y": torch.tensor(3.0)},
    ]
    for inputs in odd:
        one = Call("m", inputs, batch_key=1)
        assert gather(one, [one], BatchLimit(8, 0)) == []
    arrays = [Call("m", {"x": torch.ones(1, 2), "y": np.ones(3)}, batch_key=1) for _ in range(2)]
    assert gather(arrays[0], arrays[1:], BatchLimit(8, 0)) == []
    shared = [Call("m", {"x": torch.ones(1, 2), "y": [1, "a"]}, batch_key=1) for _ in range(2)]
    assert gather(shared[0], shared[1:], BatchLimit(8, 0)) == [0]


@pytest.mark.parametrize(
    ("mode", "threshold", "tokens", "wanted"),
    [
        ("auto", 64, 16, 3),
        ("auto", 64, 40, 0),
        ("auto", 64, 0, 0),  # the cost is not known
        ("auto", 0, 0, 0),
        ("off", 64, 1, 0),
        (1, 0, 0, 0),
        (3, 0, 99, 2),
        (64, 0, 0, 5),
    ],
)
def test_limits(mode: Any, threshold: int, tokens: int, wanted: int) -> None:
    calls = [call(1, tokens=tokens) for _ in range(6)]
    assert len(gather(calls[0], calls[1:], BatchLimit(mode, threshold))) == wanted


def test_a_result_with_other_rows_is_not_parted() -> None:
    calls = [call(1), call(2)]
    for result in (
        torch.ones(3, 2),
        torch.tensor(1.0),
        {},
        (None,),
        [torch.ones(2), torch.ones(1)],
    ):
        with pytest.raises(NotPartableError, match=r"m\.forward returned"):
            part(result, calls)


def test_a_job_of_another_kind_is_not_starved_by_pairs_that_share_forwards() -> None:
    """Pairs that share forwards of four rows with a single one between them leave a half step in
    every turn; the job whose calls join none must still get its turns."""
    order: list[str] = []

    def body(job: Job) -> StageRun:
        id = job.request.id
        for _ in range(12):
            order.append(id)
            if id == "other":
                yield Call("m", {"x": torch.ones(1, 7)}, batch_key="k")
            elif id == "single":
                yield [call(1)]
            else:
                yield [call(1), call(2)]

    rig = Rig(FreePipeline(body), batching=4, max_running=8)
    rig.submit("single", "a", "b", "c", "d", "other")
    rig.drain()
    upto = order[: len(order) - order[::-1].index("other")]
    # When the other one is through its 12 steps, none has had many more turns than it.
    assert max(upto.count(id) for id in ("a", "b", "c", "d", "single")) <= 14
    ahead = [order[:i].count("a") - order[:i].count("other") for i in range(len(order))]
    assert max(ahead[: len(upto)]) <= 3


# --- memo ----------------------------------------------------------------------------------------


def test_a_remembered_result_may_be_written_into() -> None:
    seen: list[list[float]] = []

    def body(job: Job) -> StageRun:
        result = yield call(1, memo="same")
        seen.append(result.flatten().tolist())
        result.add_(100)

    rig = Rig(FreePipeline(body), batching="off", max_running=1)
    rig.submit("a", "b", "c")
    rig.drain()
    assert seen == [[2, 2]] * 3
    assert rig.module.rows == [1]


def test_equal_memo_keys_of_different_methods_are_different() -> None:
    seen: list[Any] = []

    def body(job: Job) -> StageRun:
        seen.append((yield call(1, memo="same")))
        seen.append((yield call(1, memo="same", method="whole")))

    rig = Rig(FreePipeline(body))
    rig.submit("a")
    rig.drain()
    assert [seen[0].tolist(), seen[1].tolist()] == [[[2, 2]], 2]


def test_a_remembered_row_of_a_shared_forward_keeps_no_other_row_alive() -> None:
    def body(job: Job) -> StageRun:
        yield call(float(job.seed), memo=job.seed)

    rig = Rig(FreePipeline(body), batching=8)
    rig.submit("r", seeds=(1, 2, 3, 1, 2))
    rig.drain()
    assert rig.module.rows == [3]  # twins wait for the first and then have its result
    memo = rig.engine._forwards._memo
    assert memo.nbytes() == 3 * 8
    assert all(held.untyped_storage().nbytes() == 8 for held, _ in memo._held.values())


def test_memo_forgets_the_oldest_and_refuses_what_it_cannot_copy() -> None:
    memo = Memo(100)
    for number in range(5):
        memo.put(number, (torch.ones(10), None))
    assert [number in memo for number in range(5)] == [False, False, False, True, True]
    memo.get(3)
    memo.put(5, [torch.ones(10)])
    assert 3 in memo
    assert 4 not in memo
    memo.put("large", torch.ones(26))
    memo.put("opaque", Opaque(torch.ones(1)))
    assert "large" not in memo
    assert "opaque" not in memo
    assert memo.nbytes() == 80
