"""The pipeline of sgld that runs a pipeline of diffusers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sgld.engine.job import Job
from sgld.engine.loading import Loader
from sgld.engine.pipeline import Loaded, Media, Pipeline
from sgld.engine.stage import Stage
from sgld_diffusers.checkpoint import instance, pipeline_class
from sgld_diffusers.inspecting import wanted_class
from sgld_diffusers.loaded import Served
from sgld_diffusers.loading import load_pipeline
from sgld_diffusers.reading.described import describe
from sgld_diffusers.result import frames_of
from sgld_diffusers.stage import RunPipeline


class DiffusersPipeline(Pipeline):
    """One stage, the whole pipeline. One request runs at a time: the object keeps a request's
    guidance and schedule on itself."""

    @classmethod
    def load(cls, loader: Loader) -> Loaded:
        place = pipeline_class(loader.files, wanted_class(loader.pipeline_class))
        described = describe(place.source, instance(loader.files, place))
        pipeline, modules = load_pipeline(loader)
        served = Served(pipeline, described, modules, loader.device)
        return Loaded(dict(served.lent), {"served": served})

    def stages(self, params: Any) -> Sequence[Stage]:
        return (RunPipeline(self.parts["served"]),)

    def media(self, job: Job) -> Media:
        served: Served = self.parts["served"]
        frames = frames_of(job.slots.result, served.described)
        job.slots.size = tuple(frames.shape[:3])
        if served.described.kind == "image":
            return Media("image", frames, 0, job.slots.latents)
        return Media("video", frames, job.params.fps, job.slots.latents)

    def used(self, job: Job) -> Mapping[str, Any]:
        count, height, width = job.slots.size
        real = {"height": height, "width": width}
        served: Served = self.parts["served"]
        return real | ({"num_frames": count} if served.described.kind == "video" else {})
