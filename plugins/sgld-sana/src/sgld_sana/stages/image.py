"""The first frame of image-to-video."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from sgld.engine.call import Call, StageRun
from sgld.engine.job import Job
from sgld.engine.stage import Stage
from sgld.media.images import fit_image
from sgld_sana.stages.size import generated_size


def to_pixels(image: npt.NDArray[np.uint8], height: int, width: int) -> torch.Tensor:
    """The image fitted to the video's size, as [1, 3, 1, H, W] in -1..1."""
    fitted = fit_image(image, height, width, "crop")
    pixels = torch.from_numpy(np.ascontiguousarray(fitted)).float().div(255).mul(2).sub(1)
    return pixels.permute(2, 0, 1)[None, :, None]


class PinFirstFrame(Stage):
    """Puts the picture's latents in place of the first frame's noise and writes `moving` [1, F].

    `moving` is 0 at the given frame and 1 elsewhere: the share of a step's time that a frame has.
    Without a picture it is None and nothing is pinned.
    """

    id = "condition"
    reads = ("latents",)
    writes = ("latents", "moving")
    uses = ("vae",)

    def run(self, job: Job) -> StageRun:
        job.slots.moving = None
        if not job.request.images:
            return
        height, width = generated_size(job.params, job.parts["config"])
        pixels = to_pixels(job.request.images[0], height, width)
        video = pixels.to(job.device, job.parts["vae_dtype"])
        encoded = yield Call("vae", {"video": video}, method="encode")
        first = job.parts["latent_scale"].normalise(encoded).float()
        latents = job.slots.latents
        job.slots.latents = torch.cat([first, latents[:, :, 1:]], dim=2)
        job.slots.moving = torch.ones(1, latents.shape[2], device=job.device)
        job.slots.moving[:, 0] = 0
