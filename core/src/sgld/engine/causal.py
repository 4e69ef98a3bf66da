"""Pipelines that generate chunk by chunk: what a family gives, and the loop for ordinary requests.

The same four lists of stages serve a request (`EachChunk` runs them in one job) and a realtime
session (`sgld.engine.sessions` runs them as jobs of their own, so that a chunk is decoded while the
next one is denoised).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch

from sgld.api.errors import ParameterError, Problem
from sgld.api.specs import CacheSpec
from sgld.causal.blocks import BlockPlan, Chunk
from sgld.engine.call import StageRun
from sgld.engine.delivery import to_pixels
from sgld.engine.job import Job
from sgld.engine.pipeline import Pipeline, stages_of
from sgld.engine.stage import Stage
from sgld.plugins.resolve import Entry


class CausalPipeline(Pipeline):
    """A pipeline with memory. Slots that the engine and the stages share:

    undo      int, preset: how many chunks `state` must be able to take back
    state     `sgld.causal.state.CausalState`, made by the open stages: all that outlives a chunk
    chunk     `sgld.causal.blocks.Chunk`, preset for the chunk, frame and commit stages
    controls  mapping, preset: what the user wants from this chunk (`prompt`, `actions`, ...)
    latents   written by the chunk stages: this chunk's clean latents, frames in `frame_dim`
    frames    written by the frame stages: RGB in 0..1, [F, H, W, 3]

    `job.generator` is `state`'s own from the chunk stages on. The frame stages of chunk n may run
    beside the commit stages of n and the chunk stages of n + 1, on another thread: they touch
    `latents` and their own part of the state only.
    """

    frame_parts: ClassVar[tuple[str, ...]] = ()
    """Names of the parts of `state` that the frame stages alone touch, such as the decoder's
    history. Declared, a session's frames are decoded beside the next chunk; empty: after it."""

    frames_per_latent: ClassVar[int] = 1
    """Frames that a latent frame decodes to; the very first latent frame gives one."""

    frame_dim: ClassVar[int] = 2
    """Dimension of `latents` that counts latent frames: 2 for [B, C, F, H, W]."""

    state_fields: ClassVar[tuple[str, ...]] = ("num_frames", "width", "height")
    """Parameters that decide how large `state` is: named when a request's can never fit."""

    cache_policy: Entry[CacheSpec] | None = None
    """What the user picked among `PipelineSpec.caches`; a family passes it with its own policy to
    `sgld.engine.cache_policy.remake`."""

    def frames(self, chunk: Chunk) -> int:
        """How many frames this chunk decodes to."""
        first = self.frames_per_latent - 1 if chunk.first == 0 else 0
        return chunk.frames * self.frames_per_latent - first

    def clip_part(self, params: Any, chunk: Chunk) -> slice:
        """Which of a chunk's frames belong to a request's clip; a session shows all of them."""
        return slice(None)

    @abstractmethod
    def plan(self, params: Any) -> BlockPlan:
        """Chunk sizes; of a session (`params` is then the session's) `total` is ignored."""

    @abstractmethod
    def open_stages(self, params: Any) -> Sequence[Stage]:
        """What happens once: text, first frame, caches. Writes `state`."""

    @abstractmethod
    def chunk_stages(self, params: Any) -> Sequence[Stage]:
        """One chunk from its controls to clean latents; reads `state`, writes `latents`."""

    @abstractmethod
    def frame_stages(self, params: Any) -> Sequence[Stage]:
        """Latents to frames with the decoder's history; reads `state`, `latents`."""

    @abstractmethod
    def commit_stages(self, params: Any) -> Sequence[Stage]:
        """The pass over the clean chunk that leaves its keys and values in the caches."""

    @abstractmethod
    def state_bytes(self, params: Any, *, undo: int = 0) -> int:
        """What `state` will hold on the device at most, computed from configurations alone."""

    def undo_bytes(self, params: Any, *, undo: int, device: torch.device) -> int:
        """What `state` will hold in host memory at most (`CausalState.host_nbytes`) so that `undo`
        chunks can be taken back; never falls with `undo`, 0 for 0. `device`: where the state lives,
        since what is copied from a GPU takes more there (`sgld.causal.host.host_bytes`)."""
        return 0

    def controls(self, params: Any, index: int) -> Mapping[str, Any]:
        """What a request wants from chunk `index`; a session asks its adapter instead."""
        return {}

    def stages(self, params: Any) -> Sequence[Stage]:
        return (EachChunk(self),)


class EachChunk(Stage):
    """Opens the state, generates every chunk of a request and hands its frames out as they are
    decoded.

    The open stages may leave `lead`, frames [F, H, W, 3] that the request itself gave and that come
    before those of chunk 0, and `lead_latents`, what they were decoded from: then they have
    committed them, and `state.next_frame` stands behind them.

    Writes `frames`, uint8 [F, H, W, 3] on the CPU: all of them, for the output.
    """

    id = "chunks"
    writes = ("frames", "latents")

    def __init__(self, pipeline: CausalPipeline) -> None:
        self._pipeline = pipeline

    def run(self, job: Job) -> StageRun:
        pipeline, params, slots = self._pipeline, job.params, job.slots
        slots.undo = 0
        try:
            yield from _each(stages_of(pipeline, "open_stages", params), job)
            slots.state.opened()
            job.generator = slots.state.generator
            plan = left_over(pipeline.plan(params), slots.state.next_frame)
            slots.chunk_count = plan.count
            kept = [slots.lead_latents] if "lead_latents" in slots else []
            pieces: list[torch.Tensor] = []
            for chunk in plan.chunks():
                slots.chunk = chunk._replace(first=slots.state.next_frame)
                slots.controls = pipeline.controls(params, chunk.index)
                yield from _each(stages_of(pipeline, "chunk_stages", params), job)
                yield from _each(stages_of(pipeline, "frame_stages", params), job)
                if job.request.want_latents:
                    kept.append(slots.latents)
                pieces.append(_pixels(job)[pipeline.clip_part(params, slots.chunk)])
                job.hand_out(chunk.index + 1, plan.count, pieces[-1])
                if chunk.index + 1 < plan.count:
                    yield from _each(stages_of(pipeline, "commit_stages", params), job)
                    slots.state.advance(slots.chunk)
        finally:
            if "state" in slots:
                slots.state.free()
        job.stage = self.id
        slots.frames = torch.cat(pieces)
        wanted = job.request.want_latents
        slots.latents = torch.cat(kept, dim=pipeline.frame_dim) if wanted else None


def left_over(plan: BlockPlan, given: int) -> BlockPlan:
    """What is left of a plan when its first `given` latent frames are there already: they take the
    place of a first chunk of another size, and of as much of the whole.

    Raises ParameterError when nothing is left.
    """
    if not given:
        return plan
    if plan.total and plan.total <= given:
        frames = f"{given} latent frames are given and the clip has {plan.total}."
        raise ParameterError([Problem("num_frames", None, frames, "Make the clip longer.")])
    return plan._replace(first=0, total=max(0, plan.total - given))


def _each(stages: Sequence[Stage], job: Job) -> StageRun:
    for stage in stages:
        job.stage = stage.id
        yield from stage.run(job)


def _pixels(job: Job) -> torch.Tensor:
    """The chunk's frames as uint8 on the CPU, behind those that the request gave itself."""
    slots = job.slots
    frames = slots.frames
    if slots.chunk.index == 0 and "lead" in slots:
        frames = torch.cat([slots.lead, frames])
        slots.lead = slots.lead[:0]
    job.finite.note(frames, 0)
    pixels = torch.from_numpy(to_pixels(frames))
    # Now, not at the end of the stage: what is handed out cannot be taken back.
    job.finite.check(f"{job.stage} of chunk {slots.chunk.index}")
    return pixels
