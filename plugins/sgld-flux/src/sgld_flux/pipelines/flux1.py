"""The pipelines of FLUX.1: text, picture, noise, denoise, decode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from sgld.engine.job import Job
from sgld.engine.loading import Loader
from sgld.engine.pipeline import Loaded, Media, Pipeline
from sgld.engine.stage import Stage
from sgld.stages.denoise import Denoise
from sgld.stages.timesteps import Timesteps
from sgld_flux.pipelines.loading1 import load_flux1
from sgld_flux.stages.decode1 import Decode
from sgld_flux.stages.latents1 import EncodePicture, StartLatents
from sgld_flux.stages.predict1 import Predict
from sgld_flux.stages.schedule1 import flow_sampler
from sgld_flux.stages.text1 import EncodePrompt


class FluxDevPipeline(Pipeline):
    """FLUX.1 [dev]: the guidance scale is an input of the network."""

    # A forward of 1024×1024 has 4096 image and 512 text tokens of width 3072 and fills a large
    # GPU; several of 512×512 share one.
    batch_tokens: ClassVar[int] = 8192
    guided: ClassVar[bool] = True

    @classmethod
    def load(cls, loader: Loader) -> Loaded:
        return load_flux1(loader, guided=cls.guided)

    def stages(self, params: Any) -> Sequence[Stage]:
        return (
            EncodePrompt(),
            EncodePicture(),
            Timesteps(flow_sampler),
            StartLatents(),
            Denoise(Predict()),
            Decode(),
        )

    def media(self, job: Job) -> Media:
        return Media("image", job.slots.frames, 0, job.slots.latents)


class FluxSchnellPipeline(FluxDevPipeline):
    """FLUX.1 [schnell]: a few steps, and no guidance input."""

    guided: ClassVar[bool] = False
