"""`EachChunk`: a causal pipeline as an ordinary request, whatever its stages do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sgld.api.errors import ParameterError, RequestError
from sgld.causal.blocks import BlockPlan
from sgld.causal.kept import Kept
from sgld.causal.state import CausalState
from sgld.engine.call import Call, StageRun
from sgld.engine.causal import CausalPipeline, left_over
from sgld.engine.job import Job
from sgld.engine.pipeline import Media
from sgld.engine.running import Running
from sgld.engine.stage import Stage
from sgld.messages import Request

ROOM = torch.zeros(8)


class Does(Stage):
    """A stage that calls once, then does something to its job."""

    def __init__(self, name: str, act: Callable[[Job], None]) -> None:
        self.id = name  # type: ignore[misc]
        self._act = act

    def run(self, job: Job) -> StageRun:
        yield Call("network", {"stage": self.id})
        self._act(job)


class Clip(CausalPipeline):
    """Latents that count chunks, and frames of one pixel; `trouble` may act at a stage."""

    frames_per_latent = 1

    def __init__(self, given: int = 0, trouble: dict[str, Callable[[Job], None]] | None = None):
        super().__init__({})
        self.given, self.trouble = given, trouble or {}
        self.seen: list[tuple[Any, ...]] = []
        self.states: list[CausalState] = []

    @classmethod
    def load(cls, loader: Any) -> Any:
        raise NotImplementedError

    def plan(self, params: Any) -> BlockPlan:
        return params

    def _stages(self, **acts: Callable[[Job], None]) -> Sequence[Stage]:
        def both(name: str, act: Callable[[Job], None]) -> Callable[[Job], None]:
            def do(job: Job) -> None:
                act(job)
                self.trouble.get(name, lambda job: None)(job)

            return do

        return [Does(name, both(name, act)) for name, act in acts.items()]

    def open_stages(self, params: Any) -> Sequence[Stage]:
        return self._stages(open=self._open, given=self._give)

    def chunk_stages(self, params: Any) -> Sequence[Stage]:
        return self._stages(chunk=self._chunk)

    def frame_stages(self, params: Any) -> Sequence[Stage]:
        return self._stages(frame=self._frame)

    def commit_stages(self, params: Any) -> Sequence[Stage]:
        return self._stages(commit=lambda job: self.seen.append(("commit", job.slots.chunk.index)))

    def state_bytes(self, params: Any, *, undo: int = 0) -> int:
        return 0

    def media(self, job: Job) -> Media:
        return Media("video", job.slots.frames, 8, job.slots.latents)

    def _open(self, job: Job) -> None:
        assert job.slots.undo == 0
        part = Kept("cpu")
        part.set("room", ROOM.clone())
        job.slots.state = CausalState({"part": part}, job.generator)
        self.states.append(job.slots.state)

    def _give(self, job: Job) -> None:
        if self.given:
            job.slots.state.next_frame = self.given
            job.slots.lead = torch.zeros(self.given, 1, 1, 3)
            job.slots.lead_latents = torch.zeros(1, 1, self.given, 1, 1)

    def _chunk(self, job: Job) -> None:
        chunk = job.slots.chunk
        assert job.generator is job.slots.state.generator
        self.seen.append(tuple(chunk))
        value = (chunk.index + 1) / 10
        job.slots.latents = torch.full((1, 1, chunk.frames, 1, 1), value)

    def _frame(self, job: Job) -> None:
        latents = job.slots.latents
        job.slots.frames = latents[0, 0, :, :, :, None].expand(-1, 1, 1, 3)


class Rig:
    """Runs a clip to its end or to some stage, and notes what is handed out."""

    def __init__(self, pipeline: Clip, plan: BlockPlan, *, latents: bool = True) -> None:
        self.handed: list[tuple[int, int, int]] = []
        request = Request("r", {}, (1,), want_latents=latents)
        job = Job(
            id="r#0",
            request=request,
            index=0,
            params=plan,
            device=torch.device("cpu"),
            parts={},
            give=lambda job, part, total, frames: self.handed.append((part, total, len(frames))),
        )
        self.job, self.stages = job, []
        self.running = Running(job, pipeline.stages(plan), lambda *_: None)

    def run(self, until: str = "") -> Rig:
        self.running.start()
        while not self.running.finished and self.running.waiting():
            ((place, call),) = self.running.waiting()
            self.stages.append((call.inputs["stage"], self.job.stage))
            if call.inputs["stage"] == until:
                break
            self.running.settle(place, None, None)
            self.running.advance()
        return self


def test_chunks_are_handed_out_and_joined() -> None:
    pipeline = Clip()
    rig = Rig(pipeline, BlockPlan(3, 1, 6)).run()
    assert rig.handed == [(1, 3, 1), (2, 3, 3), (3, 3, 2)]
    # The last chunk needs no clean pass: nothing follows it.
    assert pipeline.seen == [(0, 0, 1), ("commit", 0), (1, 1, 3), ("commit", 1), (2, 4, 2)]
    frames = rig.job.slots.frames
    assert frames.dtype == torch.uint8
    assert frames[:, 0, 0, 0].tolist() == [26] + [51] * 3 + [76] * 2
    assert rig.job.slots.latents.shape == (1, 1, 6, 1, 1)
    assert {stage for stage, _ in rig.stages} == {"open", "given", "chunk", "frame", "commit"}
    assert all(stage == told for stage, told in rig.stages)
    assert rig.job.stage == "chunks"


def test_latents_are_kept_only_when_asked_for() -> None:
    assert Rig(Clip(), BlockPlan(2, 0, 4), latents=False).run().job.slots.latents is None


def test_given_frames_come_first_and_count() -> None:
    pipeline = Clip(given=2)
    rig = Rig(pipeline, BlockPlan(3, 1, 7)).run()
    assert rig.handed == [(1, 2, 2 + 3), (2, 2, 2)]
    assert [row for row in pipeline.seen if row[0] != "commit"] == [(0, 2, 3), (1, 5, 2)]
    assert rig.job.slots.frames[:, 0, 0, 0].tolist() == [0, 0] + [26] * 3 + [51] * 2
    assert rig.job.slots.latents.shape[2] == 7


@given(
    size=st.integers(1, 5),
    first=st.integers(0, 4),
    total=st.integers(1, 30),
    already=st.integers(0, 30),
)
def test_what_is_left_of_a_plan(size: int, first: int, total: int, already: int) -> None:
    plan = BlockPlan(size, first, total)
    if already >= total:
        with pytest.raises(ParameterError, match="num_frames"):
            left_over(plan, already)
        return
    rest = left_over(plan, already)
    assert sum(chunk.frames for chunk in rest.chunks()) == total - already
    if not already:
        assert rest == plan
    elif total - already >= size:
        assert rest.chunk(0).frames == size


STAGES = ("open", "given", "chunk", "frame", "commit")


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("how", ["raises", "closed", "failed"])
def test_state_is_freed_however_it_ends(stage: str, how: str) -> None:
    def raises(job: Job) -> None:
        raise RequestError("trouble")

    pipeline = Clip(trouble={stage: raises} if how == "raises" else {})
    rig = Rig(pipeline, BlockPlan(2, 0, 6))
    if how == "raises":
        with pytest.raises(RequestError, match="trouble"):
            rig.run()
        rig.running.close()
    else:
        rig.run(until=stage)
        rig.running.close() if how == "closed" else rig.running.fail(RequestError("lost"))
    assert len(pipeline.states) == (0 if stage == "open" and how != "raises" else 1)
    assert [state.nbytes() for state in pipeline.states] == [0] * len(pipeline.states)


def test_frames_that_are_not_finite_are_not_handed_out() -> None:
    def spoil(job: Job) -> None:
        if job.slots.chunk.index == 1:
            job.slots.frames = job.slots.frames * float("nan")

    pipeline = Clip(trouble={"frame": spoil})
    rig = Rig(pipeline, BlockPlan(2, 0, 6))
    with pytest.raises(RequestError, match="frame of chunk 1") as error:
        rig.run()
    assert error.value.code == "non_finite_output"
    assert rig.handed == [(1, 3, 2)]
    assert pipeline.states[0].nbytes() == 0
