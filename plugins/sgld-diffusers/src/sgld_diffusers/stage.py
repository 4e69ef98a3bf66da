"""The one stage of the fallback: the whole pipeline, call by call."""

from __future__ import annotations

from typing import Any, ClassVar

from sgld.api.errors import RequestError
from sgld.engine.call import StageRun
from sgld.engine.job import Job
from sgld.engine.stage import Stage
from sgld_diffusers.arguments import call_arguments
from sgld_diffusers.loaded import Served
from sgld_diffusers.steps import Step, Steps
from sgld_diffusers.talk import Talk


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
            started = False
            try:
                said = talk.begin()
                while said.kind in ("ask", "step"):
                    if said.kind == "ask":
                        started = True
                        said = talk.answer((yield said.value))
                    else:
                        step: Step = said.value
                        job.progress(step.number, step.total, step.latents)
                        said = talk.answer()
                if said.kind == "failed":
                    raise _refused(said.value, served.described.name, started=started)
                job.slots.result = said.value
                job.slots.latents = steps.latents
            finally:
                talk.end()


def _refused(error: BaseException, name: str, *, started: bool) -> BaseException:
    """What a pipeline says before it has done anything is about the request."""
    if not started and isinstance(error, ValueError | TypeError):
        refusal = RequestError(f"{name} refuses the request: {error}", code="invalid_parameter")
        refusal.__cause__ = error
        return refusal
    return error
