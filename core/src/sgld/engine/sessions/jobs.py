"""A session's jobs: the stages of opening, of each chunk, of its frames and of its commit.

Everything here runs on the engine's thread, but for the frames that are decoded on the lane.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from sgld.causal.blocks import Chunk
from sgld.causal.state import CausalState
from sgld.engine.causal import CausalPipeline
from sgld.engine.delivery import to_pixels
from sgld.engine.forwards import Forwards
from sgld.engine.job import Job
from sgld.engine.pipeline import stages_of
from sgld.engine.running import Running
from sgld.engine.sessions.lane import Task
from sgld.engine.sessions.session import Session
from sgld.engine.stage import Stage, check_chain
from sgld.messages import Request
from sgld.realtime.messages import SessionReport

DENOISE: Final = "denoise"
"""Id of the stage whose seconds count as denoising; those of other chunk stages count as preparing
the chunk."""

PRESET: Final[Mapping[str, tuple[str, ...]]] = {
    "open": ("undo",),
    "chunk": ("undo", "state", "chunk", "controls"),
    "frames": ("undo", "state", "chunk", "controls", "latents"),
}
"""Slots that are there before the first stage of a list."""


class Given(Stage):
    """Stands for the slots that are preset, so that a list of stages can be checked."""

    id = "given"

    def __init__(self, kind: str) -> None:
        self.writes = PRESET[kind]  # pyright: ignore[reportAttributeAccessIssue]

    def run(self, job: Job) -> Any:  # never driven
        raise NotImplementedError


class Jobs:
    """Makes the jobs of sessions.

    Args:
        pipeline: the family.
        device: where latents live.
    """

    def __init__(self, pipeline: CausalPipeline, device: torch.device) -> None:
        self.pipeline = pipeline
        self._device = device

    def opening(self, session: Session) -> Running:
        """The stages that make the state; not started yet."""
        job = self._job(session, "open", {"undo": session.options.rewind_chunks})
        return self._running(session, job, "open_stages", "open")

    def chunk(self, session: Session, chunk: Chunk, controls: Mapping[str, Any]) -> Running:
        """The stages from controls to clean latents."""
        state = _state_of(session)
        slots = {"state": state, "chunk": chunk, "controls": controls}
        job = self._job(session, str(chunk.index), {"undo": session.options.rewind_chunks, **slots})
        job.generator = state.generator
        return self._running(session, job, "chunk_stages", "chunk")

    def frames(self, session: Session, made: Job) -> Running:
        """The stages from the latents of a chunk to its frames, as a job of its own."""
        slots = {name: getattr(made.slots, name) for name in PRESET["frames"]}
        job = self._job(session, f"{slots['chunk'].index}.frames", slots)
        return self._running(session, job, "frame_stages", "frames")

    def commit(self, session: Session, made: Job) -> Running:
        """The stages that leave the clean chunk in the caches, on the job that made it."""
        stages = stages_of(self.pipeline, "commit_stages", session.params)
        return Running(made, stages, _nobody)

    def _running(self, session: Session, job: Job, method: str, kind: str) -> Running:
        stages = stages_of(self.pipeline, method, session.params)
        check_chain([Given(kind), *stages])
        return Running(job, stages, _nobody)

    def _job(self, session: Session, name: str, slots: Mapping[str, Any]) -> Job:
        request = session.request
        job = Job(
            id=f"{request.id}@{name}",
            request=Request(request.id, request.params, (request.seed,), request.images),
            index=0,
            params=session.params,
            device=self._device,
            parts=self.pipeline.parts,
        )
        for slot, value in slots.items():
            setattr(job.slots, slot, value)
        return job


class FrameWork:
    """Decodes one chunk and hands it over. Runs on the lane, or in the engine's line when inline.

    Args:
        session: whose it is; only what does not change while frames are decoded is read.
        running: its frame stages.
        report: makes the chunk's report of frames, seconds of decoding and bytes of `parts`.
        parts: names of the parts of the state that the frame stages alone touch.
    """

    def __init__(
        self,
        session: Session,
        running: Running,
        report: Callable[[Any, float, int], SessionReport],
        parts: Sequence[str],
    ) -> None:
        self.running = running
        self._outlet = session.outlet
        self._state = _state_of(session)
        self._report = report
        self._parts = tuple(parts)

    def beside(self, forwards: Forwards) -> Callable[[Task], None]:
        """The work as a task of the lane."""

        def work(task: Task) -> None:
            running = self.running
            try:
                running.start()
                while not running.finished:
                    for place, call in running.waiting():
                        if task.cancelled:
                            return
                        running.settle(place, *forwards.beside(call))
                    running.advance()
                if not task.cancelled:
                    self.hand_over()
                    self._state.settle(self._parts)
            except Exception:
                task.stage = running.stage
                raise
            finally:
                running.close()

        return work

    def hand_over(self) -> None:
        """Give the finished frames to the reader.

        Raises RequestError (`non_finite_output`) for frames that are not finite.
        """
        job = self.running.job
        job.finite.note(job.slots.frames, job.slots.chunk.index + 1)
        job.finite.check(self.running.stage)
        pixels = to_pixels(job.slots.frames)
        held = sum(self._state.parts[name].nbytes() for name in self._parts)
        seconds = sum(self.running.timings.values())
        self._outlet.offer(self._report(pixels, seconds, held))


def split_seconds(timings: Mapping[str, float]) -> dict[str, float]:
    """Seconds of a chunk's stages as `prepare` and `denoise`."""
    denoise = timings.get(DENOISE, 0.0)
    return {"prepare": sum(timings.values()) - denoise, "denoise": denoise}


def chunk_report(
    id: str,
    index: int,
    event_id: int | None,
    seconds: dict[str, float],
    held: int,
    frames: npt.NDArray[np.uint8],
    decode: float,
    held_by_frames: int,
) -> SessionReport:
    """What is told of a chunk; the first arguments are known before it is decoded."""
    values = {"seconds": {**seconds, "decode": decode}, "bytes": held + held_by_frames}
    return SessionReport(id, "chunk", chunk=index, frames=frames, event_id=event_id, values=values)


def _state_of(session: Session) -> CausalState:
    if session.state is None:
        raise RuntimeError(f"session {session.id} has no state yet")
    return session.state


def _nobody(job: Job, stage: str, seconds: float) -> None:
    """Stages of sessions are told chunk by chunk."""
