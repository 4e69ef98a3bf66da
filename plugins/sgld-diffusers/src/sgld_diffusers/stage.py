"""The one stage of the fallback: the whole pipeline, call by call."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, ClassVar

import torch

from sgld.api.errors import RequestError, SgldError
from sgld.engine.call import StageRun
from sgld.engine.job import Job
from sgld.engine.stage import Stage
from sgld_diffusers.arguments import call_arguments
from sgld_diffusers.checkpoint import group_of
from sgld_diffusers.loaded import Served
from sgld_diffusers.steps import Step, Steps
from sgld_diffusers.talk import Talk


class Before(IntEnum):
    """How far a run is: no component was called, only text encoders were, or others too."""

    CALLS = 0
    WORK = 1
    END = 2


class RunPipeline(Stage):
    """Runs `__call__` beside the engine: components are called by the engine, steps reported."""

    id: ClassVar[str] = "pipeline"
    writes: ClassVar[tuple[str, ...]] = ("result", "latents")

    def __init__(self, served: Served) -> None:
        self._served = served

    def run(self, job: Job) -> StageRun:
        served = self._served
        steps = Steps(served, job)
        arguments = call_arguments(served.described, job) | steps.arguments()
        pipeline = served.fresh(steps)
        job.slots.latents = None

        def work(talk: Talk) -> Any:
            steps.talk = talk
            return pipeline(**arguments)

        talk = Talk(work, job.device, f"sgld-pipeline-{job.id}")
        with served.lending(talk):
            before = Before.CALLS
            try:
                said = talk.begin()
                while said.kind in ("ask", "step"):
                    if said.kind == "ask":
                        reads = group_of(said.value.component) == "text_encoder"
                        before = max(before, Before.WORK if reads else Before.END)
                        said = talk.answer((yield said.value))
                    else:
                        step: Step = said.value
                        job.progress(step.number, step.total, step.latents)
                        said = talk.answer()
                if said.kind == "failed":
                    raise _refused(said.value, served.described.name, before)
                job.slots.result = said.value
                job.slots.latents = steps.latents
            finally:
                talk.end()


def _refused(error: BaseException, name: str, before: Before) -> BaseException:
    """What the pipeline's own code says before its work begins is about the request, whatever kind
    of error it takes for it; once the prompt is being read, only what speaks of values."""
    short = isinstance(error, MemoryError | torch.OutOfMemoryError | SgldError)
    kinds = {Before.CALLS: (Exception,), Before.WORK: (ValueError, TypeError, LookupError)}
    if short or not isinstance(error, kinds.get(before, ())):
        return error
    said = str(error).rstrip(".")
    if not said or not isinstance(error, ValueError):
        said = f"{type(error).__name__}: {said}".rstrip(": ")
    refusal = RequestError(f"{name} refuses the request: {said}.", code="invalid_parameter")
    refusal.__cause__ = error
    return refusal
