"""The pipelines of Wan 2.1 and 2.2: text, picture, noise, denoise, decode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from sgld.engine.job import Job
from sgld.engine.loading import Loader
from sgld.engine.pipeline import Loaded, Media, Pipeline
from sgld.engine.stage import Stage
from sgld.stages.denoise import Denoise
from sgld.stages.latents import InitialNoise
from sgld.stages.renoise import RenoiseSampler
from sgld.stages.sampler import Sampler, SchedulerSampler
from sgld.stages.timesteps import Timesteps
from sgld_wan.pipelines.loading import load_wan
from sgld_wan.schedulers import scheduler_maker, stored_shift
from sgld_wan.stages.decode import Decode
from sgld_wan.stages.image import EncodeImage, FirstFrameChannels, FirstFrameLatents
from sgld_wan.stages.predict import Predict, PredictWithChannels, PredictWithPinnedFrame
from sgld_wan.stages.text import EncodePrompt


class WanPipeline(Pipeline):
    """What all variants share; this one is text-to-video."""

    # A 1.3B forward of 480×832×81 has 32 760 tokens and fills a large GPU; so does half of that.
    batch_tokens: ClassVar[int] = 16_384
    # As Wan's own code runs them; the VAE's picture suffers visibly in bfloat16.
    float32_groups: ClassVar[tuple[str, ...]] = ("vae", "image_encoder")

    @classmethod
    def load(cls, loader: Loader) -> Loaded:
        return load_wan(loader)

    def stages(self, params: Any) -> Sequence[Stage]:
        return (
            EncodePrompt(),
            *self.image_stages(params),
            Timesteps(self.sampler),
            InitialNoise(latent_shape),
            Denoise(self.denoiser()),
            Decode(),
        )

    def image_stages(self, params: Any) -> Sequence[Stage]:
        """Stages that prepare the conditioning image."""
        return ()

    def denoiser(self) -> Predict:
        """How one step predicts."""
        return Predict()

    def sampler(self, job: Job) -> Sampler:
        """The checkpoint's own scheduler, with the request's shift if one is given."""
        shift = getattr(job.params, "flow_shift", None)
        make = scheduler_maker(job.parts["scheduler"], shift)
        return SchedulerSampler(make, job.params.num_inference_steps, job.device)

    def used(self, job: Job) -> Mapping[str, Any]:
        """Shift, boundary and second scale, where they came from the checkpoint or a rule."""
        params, used = job.params, {}
        if getattr(params, "flow_shift", None) is None:
            used["flow_shift"] = stored_shift(job.parts["scheduler"])
        if getattr(params, "boundary_ratio", 0.0) is None:
            used["boundary_ratio"] = job.parts["boundary_ratio"]
        if getattr(params, "guidance_scale_2", 0.0) is None:
            used["guidance_scale_2"] = params.guidance_scale
        return used

    def media(self, job: Job) -> Media:
        return Media("video", job.slots.frames, job.params.fps, job.slots.latents)


class WanImagePipeline(WanPipeline):
    """Image-to-video by extra latent channels (Wan 2.1 with CLIP tokens, 2.2 A14B without)."""

    def image_stages(self, params: Any) -> Sequence[Stage]:
        tower = (EncodeImage(),) if "image_processor" in self.parts else ()
        return (*tower, FirstFrameChannels())

    def denoiser(self) -> Predict:
        return PredictWithChannels()


class WanPinnedFramePipeline(WanPipeline):
    """Wan 2.2 TI2V-5B: text-to-video, or image-to-video by a pinned first frame."""

    def image_stages(self, params: Any) -> Sequence[Stage]:
        return (FirstFrameLatents(),)

    def denoiser(self) -> Predict:
        return PredictWithPinnedFrame()


class FewSteps:
    """Mixin: distilled checkpoints, sampled by predicting clean latents and adding noise again."""

    def sampler(self, job: Job) -> Sampler:
        """The fixed list of steps of the family's parameters."""
        params = job.params
        return RenoiseSampler(params.dmd_denoising_steps, params.flow_shift, job.noise, job.device)


class WanDmdPipeline(FewSteps, WanPipeline):
    """FastWan and TurboWan text-to-video."""


class WanDmdImagePipeline(FewSteps, WanImagePipeline):
    """TurboWan image-to-video on the two A14B experts."""


class WanDmdPinnedFramePipeline(FewSteps, WanPinnedFramePipeline):
    """FastWan 2.2 TI2V-5B."""


def latent_shape(job: Job) -> tuple[int, int, int, int, int]:
    """[1, C, F, h, w] of the job's size and frame count."""
    time, space = job.parts["vae_stride"]
    params = job.params
    frames = (params.num_frames - 1) // time + 1
    return (1, job.parts["latent_channels"], frames, params.height // space, params.width // space)


__all__ = [
    "WanDmdImagePipeline",
    "WanDmdPinnedFramePipeline",
    "WanDmdPipeline",
    "WanImagePipeline",
    "WanPinnedFramePipeline",
    "WanPipeline",
    "latent_shape",
]
