"""The pipelines of SANA: text, time table, noise, denoise, decode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from sgld.engine.job import Job
from sgld.engine.loading import Loader
from sgld.engine.pipeline import Loaded, Media, Pipeline
from sgld.engine.stage import Stage
from sgld.stages.denoise import Denoise
from sgld.stages.latents import InitialNoise
from sgld.stages.sampler import Sampler, SchedulerSampler
from sgld.stages.timesteps import Timesteps
from sgld_sana import instructions
from sgld_sana.pipelines.loading import load_sana
from sgld_sana.schedulers import (
    PinnedFrameSampler,
    TrigFlowSampler,
    scheduler_maker,
    stored_shift,
)
from sgld_sana.stages.decode import Decode
from sgld_sana.stages.image import PinFirstFrame
from sgld_sana.stages.predict import (
    Predict,
    PredictTrigFlow,
    PredictVideo,
    ScaleNoise,
)
from sgld_sana.stages.size import generated_size
from sgld_sana.stages.text import EncodePrompt


class SanaPipeline(Pipeline):
    """SANA 1.0 and 1.5: text to picture."""

    # A 1.6B forward at 1024x1024 has 1024 tokens; a large GPU is full with about sixteen of them.
    batch_tokens: ClassVar[int] = 16_384

    @classmethod
    def load(cls, loader: Loader) -> Loaded:
        return load_sana(loader)

    def stages(self, params: Any) -> Sequence[Stage]:
        generated_size(params, self.parts["config"])  # refused here, before any work
        return (
            EncodePrompt(instructions.IMAGE),
            Timesteps(self.sampler),
            InitialNoise(latent_shape),
            Denoise(Predict()),
            Decode(),
        )

    def sampler(self, job: Job) -> Sampler:
        """The checkpoint's own scheduler, with the request's shift if one is given."""
        make = scheduler_maker(job.parts["scheduler"], job.params.flow_shift)
        return SchedulerSampler(make, job.params.num_inference_steps, job.device)

    def used(self, job: Job) -> Mapping[str, Any]:
        """The shift, where it came from the checkpoint."""
        if job.params.flow_shift is not None:
            return {}
        return {"flow_shift": stored_shift(job.parts["scheduler"])}

    def media(self, job: Job) -> Media:
        return Media("image", job.slots.frames, 0, job.slots.latents)


class SanaSprintPipeline(SanaPipeline):
    """SANA-Sprint: text to picture in one to four steps."""

    @classmethod
    def load(cls, loader: Loader) -> Loaded:
        return load_sana(loader, trigflow=True)

    def stages(self, params: Any) -> Sequence[Stage]:
        generated_size(params, self.parts["config"])
        return (
            EncodePrompt(instructions.IMAGE),
            Timesteps(self.sampler),
            InitialNoise(latent_shape),
            ScaleNoise(),
            Denoise(PredictTrigFlow()),
            Decode(),
        )

    def sampler(self, job: Job) -> Sampler:
        """Angles from the request; there is no shift."""
        params = job.params
        return TrigFlowSampler(
            job.parts["scheduler"],
            params.num_inference_steps,
            params.max_timesteps,
            params.middle,
            job.device,
            job.generator,
        )

    def used(self, job: Job) -> Mapping[str, Any]:
        """The middle angle of two steps."""
        return {"intermediate_timesteps": job.params.middle}


class SanaVideoPipeline(SanaPipeline):
    """SANA-Video: text to video, or picture to video when the request has a picture."""

    # As the published examples run it: the Wan VAE's picture suffers visibly in bfloat16.
    float32_groups: ClassVar[tuple[str, ...]] = ("vae",)

    @classmethod
    def load(cls, loader: Loader) -> Loaded:
        return load_sana(loader, video=True)

    def stages(self, params: Any) -> Sequence[Stage]:
        generated_size(params, self.parts["config"])
        return (
            EncodePrompt(instructions.VIDEO),
            Timesteps(self.sampler),
            InitialNoise(latent_shape),
            PinFirstFrame(),
            Denoise(PredictVideo()),
            Decode(),
        )

    def sampler(self, job: Job) -> Sampler:
        sampler = super().sampler(job)
        return PinnedFrameSampler(sampler) if job.request.images else sampler

    def media(self, job: Job) -> Media:
        return Media("video", job.slots.frames, job.params.fps, job.slots.latents)


class SanaImageToVideoPipeline(SanaVideoPipeline):
    """SANA-Video checkpoints that come with a scheduler for image-to-video."""


def latent_shape(job: Job) -> tuple[int, ...]:
    """[1, C, h, w] of a picture, [1, C, F, h, w] of a video."""
    config, (time, space) = job.parts["config"], job.parts["vae_stride"]
    height, width = generated_size(job.params, config)
    frames = ((job.params.num_frames - 1) // time + 1,) if config.video else ()
    return (1, config.in_channels, *frames, height // space, width // space)


__all__ = [
    "SanaImageToVideoPipeline",
    "SanaPipeline",
    "SanaSprintPipeline",
    "SanaVideoPipeline",
    "latent_shape",
]
