"""The latents a job starts from: noise, or a picture with noise mixed in."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from sgld.engine.call import Call, StageRun
from sgld.engine.job import Job
from sgld.engine.stage import Stage
from sgld.media.images import fit_image
from sgld_flux.models.shared import pack


class Grid(NamedTuple):
    """A picture's tokens: rows and columns of 2×2 latents."""

    rows: int
    columns: int

    @classmethod
    def of(cls, job: Job) -> Grid:
        """The grid of the job's size."""
        patch = 2 * job.parts["vae_stride"]
        return cls(job.params.height // patch, job.params.width // patch)

    @property
    def tokens(self) -> int:
        """How many there are."""
        return self.rows * self.columns


class EncodePicture(Stage):
    """Writes `picture`: normalised latents [1, C, h, w] of the input picture, None without one.

    A sample of the posterior, not its mean, with noise that is drawn before the starting noise:
    what diffusers' image-to-image pipeline does.
    """

    id = "picture"
    writes: ClassVar[tuple[str, ...]] = ("picture",)
    uses: ClassVar[tuple[str, ...]] = ("vae",)

    def run(self, job: Job) -> StageRun:
        job.slots.picture = None
        if not job.request.images:
            return
        pixels = to_pixels(job.request.images[0], job.params.height, job.params.width)
        mean, deviation = yield Call("vae", {"pixels": pixels.to(job.device)}, method="encode")
        sample = mean + deviation * job.noise(tuple(mean.shape)).to(mean.dtype)
        job.slots.picture = job.parts["latent_scale"].normalise(sample)


class StartLatents(Stage):
    """Writes `latents` [1, N, 4C]: packed noise, mixed with the picture for the first step's level.

    They have the transformer's precision, as in the reference, which rounds them after every step.
    """

    id = "latents"
    reads: ClassVar[tuple[str, ...]] = ("picture", "sampler")
    writes: ClassVar[tuple[str, ...]] = ("latents",)

    def run(self, job: Job) -> StageRun:
        grid, dtype = Grid.of(job), job.parts["compute_dtype"]
        shape = (1, job.parts["latent_channels"], 2 * grid.rows, 2 * grid.columns)
        latents = job.noise(shape).to(dtype)
        if job.slots.picture is not None:
            level = (job.slots.sampler.time(0) / 1000).to(dtype)
            latents = level * latents + (1 - level) * job.slots.picture.to(dtype)
        job.slots.latents = pack(latents)
        return
        yield


def to_pixels(image: npt.NDArray[np.uint8], height: int, width: int) -> torch.Tensor:
    """The picture stretched to the output's size, as [1, 3, H, W] in -1..1."""
    fitted = fit_image(image, height, width, "stretch")
    pixels = torch.from_numpy(np.ascontiguousarray(fitted)).float().div(255).mul(2).sub(1)
    return pixels.permute(2, 0, 1)[None]
