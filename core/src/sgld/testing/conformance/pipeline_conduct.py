"""How a pipeline's stages behave: what they touch, how they report, how they end."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import groupby
from typing import Final

import torch

from sgld.engine.call import StageRun
from sgld.engine.causal import CausalPipeline
from sgld.engine.job import Job
from sgld.engine.stage import Stage
from sgld.messages import Request
from sgld.testing.bench import Engines
from sgld.testing.conformance.base import broken, expect
from sgld.testing.conformance.pipeline_base import OfPipeline
from sgld.testing.engine_rig import EngineRig
from sgld.testing.watching import StageWatch, Watch

MORE: Final = 2
"""Requests after which a leak shows."""


class Conduct(OfPipeline):
    """Stages as the engine sees them."""

    def test_stages_keep_their_word(self, bench: Engines) -> None:
        """Stages read and write the slots that they declare and no others, and yield calls only."""
        rig = bench.rig(batching="off")
        guided = self.guided if "cfg" in self.entry().spec.features else {}
        with _watched(rig) as watch:
            request = rig.request(**guided)
            rig.submit(request)
            rig.turn()
        faults = list(dict.fromkeys(fault for run in watch.runs for fault in run.faults))
        expect(
            not faults,
            expected="stages that keep to their `reads`, `writes` and `uses`",
            got="; ".join(faults),
            remedy="Correct what the stage declares. A shared stage that calls your own code takes "
            "further slots from it: `reads` of a denoiser.",
        )
        rig.output(request)

    def test_progress_counts(self, bench: Engines) -> None:
        """Steps are reported one by one, from 1 to the last."""
        rig = bench.rig(batching="off")
        request = rig.request()
        rig.run(request)
        steps = [(event.stage, event.step, event.total) for event in rig.events(request, "step")]
        expect(
            steps,
            expected="at least one step of progress",
            got="none",
            remedy="Call `job.progress(step, total, latents)` after each step.",
        )
        rounds = _rounds(steps)
        wrong = [row for row in rounds if row != [(*row[0][:1], n, len(row)) for n in _from1(row)]]
        expect(
            not wrong,
            expected="steps 1, 2, ... up to their total, in each stage (and in each chunk)",
            got=f"(stage, step, total): {wrong[:1]}",
            remedy="Count steps from 1, report each once, with the same total.",
        )

    def test_cancels_between_steps(self, bench: Engines) -> None:
        """A cancelled request runs no further forward, closes its stages and frees its tensors."""
        rig = bench.rig(batching="off")
        with _watched(rig) as watch:
            request = self._to_first_step(rig)
            before = dict(rig.engine.forwards)
            rig.engine.cancel(request.id)
            rig.turn()
            faults = [run for run in watch.runs if run.unclosed]
            expect(
                not faults,
                expected="stages that close cleanly when they are cancelled",
                got="; ".join(f"stage {run.id!r}: {run.unclosed}" for run in faults),
                remedy="Let GeneratorExit through: free in `finally`, and yield nothing there.",
            )
            after = dict(rig.engine.forwards)
            ends = [event.kind for event in rig.events(request)][-1:]
            expect(
                after == before and ends == ["cancelled"],
                expected="no forward after the cancellation, whose event is the last",
                got=f"forwards {before} then {after}, last event {ends}",
                remedy="Run components only by yielding calls.",
            )
            rig.told.clear()
            kept = _alive(watch.runs)
        expect(
            not kept,
            expected="every tensor of a cancelled request is freed",
            got=f"still held: slots {', '.join(kept)}",
            remedy="Keep tensors of a request in its job's slots only, not on stages, the pipeline "
            "or its parts.",
        )

    def test_done_requests_are_freed(self, bench: Engines) -> None:
        """Nothing of a request that is done stays behind."""
        rig = bench.rig(batching="off")
        with _watched(rig) as watch:
            request = rig.request()
            rig.run(request)
            rig.told.clear()
            watch.media.clear()
            kept = _alive(watch.runs)
        expect(
            not kept,
            expected="every tensor of a request that is done is freed",
            got=f"still held: slots {', '.join(kept)}",
            remedy="Keep tensors of a request in its job's slots only, not on stages, the pipeline "
            "or its parts.",
        )

    def test_nothing_piles_up(self, bench: Engines) -> None:
        """After each further request there are as many tensors as before it."""
        rig = bench.rig(batching="off")
        rig.plain()  # what is made once may stay
        with _float_tensors() as count:
            found: list[int] = []
            for seed in range(11, 12 + MORE):
                rig.run(rig.request(seed=seed))
                rig.told.clear()
                if seed in (11, 11 + MORE):
                    found.append(count())
        left = found[1] - found[0]
        expect(
            left < MORE,
            expected=f"as many tensors after {MORE} further requests as before",
            got=f"{left} more",
            remedy="Keep no results or intermediate tensors of requests anywhere; a cache has a "
            "bound.",
        )

    def test_state_is_as_large_as_it_says(self, bench: Engines) -> None:
        """`state_bytes` of a causal pipeline is what its state holds at most: that is reserved."""
        rig = bench.rig(batching="off")
        pipeline = rig.pipeline
        if not isinstance(pipeline, CausalPipeline):
            return
        request = rig.request()
        params = rig.plan.params_class.model_validate(dict(request.params))
        promised = pipeline.state_bytes(params)
        sizes: list[int] = []
        with _after_commits(pipeline, sizes):
            rig.run(request)
        expect(
            sizes and max(sizes) <= promised,
            expected=f"a state of at most state_bytes={promised:,}",
            got=f"{max(sizes, default=0):,} bytes",
            remedy="Add up the formulas of the parts: kv_bytes, cross_bytes, kept_bytes.",
        )
        expect(
            promised <= 2 * max(sizes),
            expected=f"state_bytes within twice of the {max(sizes):,} bytes that are used",
            got=f"{promised:,}",
            remedy="A session reserves this much: others are refused for what nobody uses.",
        )

    def _to_first_step(self, rig: EngineRig) -> Request:
        request = rig.request()
        rig.submit(request)
        stepped = rig.turn(until=lambda: bool(rig.events(request, "step")))
        ended = rig.events(request, "done", "failed")
        if not stepped or ended:
            rig.output(request)
            broken(
                expected="a step between the first and the last forward",
                got=f"{len(rig.events(request, 'step'))} steps, and the request was done",
                remedy="Yield at least one call for each step, and report progress after each.",
            )
        return request


@contextmanager
def _float_tensors() -> Iterator[Callable[[], int]]:
    """Counts the tensors of floating point that were made inside and are still there."""

    def count() -> int:
        gc.collect()
        # By type: objects that claim to be of another class may do work when they are asked for it.
        made = (value for value in gc.get_objects() if issubclass(type(value), torch.Tensor))
        return sum(value.is_floating_point() for value in made)

    gc.freeze()  # what is there already need not be looked through: it takes seconds
    try:
        yield count
    finally:
        gc.unfreeze()


@contextmanager
def _watched(rig: EngineRig) -> Iterator[Watch]:
    watch = Watch(rig.pipeline)
    try:
        yield watch
    finally:
        watch.release()


@contextmanager
def _after_commits(pipeline: CausalPipeline, sizes: list[int]) -> Iterator[None]:
    """Notes how large the state is when frames are asked for: all of it is there then."""
    frame_stages = pipeline.frame_stages

    def noted(params: object) -> object:
        return [*frame_stages(params), _Weigh(sizes)]

    pipeline.frame_stages = noted  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        vars(pipeline).pop("frame_stages")


def _alive(runs: list[StageWatch]) -> list[str]:
    """Slots whose tensors are still held by somebody."""

    def held() -> list[str]:
        return sorted(
            {name for run in runs for name, tensor in run.tensors if tensor() is not None}
        )

    if held():
        gc.collect()  # a cycle is no leak, but collecting takes time
    return held()


def _rounds(steps: list[tuple[str, int, int]]) -> list[list[tuple[str, int, int]]]:
    """Steps of one stage and chunk each: a step 1 begins a new round."""
    rounds: list[list[tuple[str, int, int]]] = []
    for stage, rows in groupby(steps, lambda row: row[0]):
        for row in rows:
            if row[1] == 1 or not rounds or rounds[-1][0][0] != stage:
                rounds.append([])
            rounds[-1].append(row)
    return rounds


def _from1(rows: list[tuple[str, int, int]]) -> range:
    return range(1, len(rows) + 1)


class _Weigh(Stage):
    """A stage that notes the size of the state."""

    id = "weigh"
    reads = ("state",)

    def __init__(self, sizes: list[int]) -> None:
        self._sizes = sizes

    def run(self, job: Job) -> StageRun:
        self._sizes.append(job.slots.state.nbytes())
        yield from ()
