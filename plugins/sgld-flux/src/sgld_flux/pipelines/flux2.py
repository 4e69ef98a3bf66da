"""The pipelines of FLUX.2: references, text, noise, denoise, decode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from sgld.engine.job import Job
from sgld.engine.loading import Loader
from sgld.engine.pipeline import Loaded, Media, Pipeline
from sgld.engine.stage import Stage
from sgld.stages.denoise import Denoise
from sgld.stages.latents import InitialNoise
from sgld.stages.sampler import Sampler
from sgld.stages.timesteps import Timesteps
from sgld_flux.params2 import GRID
from sgld_flux.pipelines.loading2 import load_flux2
from sgld_flux.stages.decode2 import Decode
from sgld_flux.stages.predict2 import Predict
from sgld_flux.stages.references2 import EncodeReferences, RememberReferences
from sgld_flux.stages.sampler2 import flux2_sampler
from sgld_flux.stages.text2 import EncodePrompt


class Flux2Pipeline(Pipeline):
    """dev, klein and klein base: reference pictures are tokens in every step."""

    # One klein-4B forward at 1024×1024 has 4608 tokens and nearly fills a large GPU.
    batch_tokens: ClassVar[int] = 9216

    @classmethod
    def load(cls, loader: Loader) -> Loaded:
        return load_flux2(loader)

    def stages(self, params: Any) -> Sequence[Stage]:
        return (
            EncodeReferences(),
            EncodePrompt(),
            *self.reference_stages(),
            Timesteps(sampler),
            InitialNoise(latent_shape),
            Denoise(Predict()),
            Decode(),
        )

    def reference_stages(self) -> Sequence[Stage]:
        """What else is done with reference pictures before denoising."""
        return ()

    def media(self, job: Job) -> Media:
        return Media("image", job.slots.frames, 0, job.slots.latents)


class Flux2KeptReferencesPipeline(Flux2Pipeline):
    """klein KV: keys and values of the reference pictures are computed once."""

    def reference_stages(self) -> Sequence[Stage]:
        return (RememberReferences(),)


def latent_shape(job: Job) -> tuple[int, int, int, int]:
    """[1, C, h, w] of the job's size; one latent token stands for 16×16 pixels."""
    params = job.params
    return (1, job.parts["latent_channels"], params.height // GRID, params.width // GRID)


def sampler(job: Job) -> Sampler:
    """The schedule for the tokens of the generated picture; references do not count."""
    _, _, rows, columns = latent_shape(job)
    steps = job.params.num_inference_steps
    return flux2_sampler(job.parts["scheduler"], rows * columns, steps, job.device)
