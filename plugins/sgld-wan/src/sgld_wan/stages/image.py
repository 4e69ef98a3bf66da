"""The conditioning image of image-to-video: CLIP tokens, and latents that the model is shown."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from sgld.engine.call import Call, StageRun
from sgld.engine.job import Job
from sgld.engine.stage import Stage
from sgld.media.images import FitMode, fit_image


def to_pixels(
    image: npt.NDArray[np.uint8], height: int, width: int, fit: FitMode = "crop"
) -> torch.Tensor:
    """The image fitted to the video's size, as [1, 3, 1, H, W] in -1..1."""
    fitted = fit_image(image, height, width, fit)
    pixels = torch.from_numpy(np.ascontiguousarray(fitted)).float().div(255).mul(2).sub(1)
    return pixels.permute(2, 0, 1)[None, :, None]


class EncodeImage(Stage):
    """Writes `image_tokens` [1, 257, D]: the CLIP tower's last but one hidden state (Wan 2.1)."""

    id = "image"
    writes = ("image_tokens",)
    uses = ("image_encoder",)

    def run(self, job: Job) -> StageRun:
        picture = Image.fromarray(job.request.images[0])
        pixels = job.parts["image_processor"](images=picture, return_tensors="pt")["pixel_values"]
        job.slots.image_tokens = yield Call(
            "image_encoder", {"pixel_values": pixels.to(job.device)}, batch_key="image"
        )


class FirstFrameChannels(Stage):
    """Writes `condition` [1, 4 + C, F, h, w]: a mask and the latents of image-then-zeros.

    The mask says, per pixel frame, which frames are given; the four pixel frames of a latent frame
    become four channels, and the first frame counts four times (Wan2.1 `wan/image2video.py`).
    """

    id = "condition"
    writes = ("condition",)
    uses = ("vae",)

    def run(self, job: Job) -> StageRun:
        params, stride = job.params, job.parts["vae_stride"]
        image = to_pixels(job.request.images[0], params.height, params.width)
        video = torch.zeros(1, 3, params.num_frames, params.height, params.width)
        video[:, :, :1] = image
        encoded = yield Call("vae", {"video": video.to(job.device)}, method="encode")
        latents = job.parts["latent_scale"].normalise(encoded.float())
        mask = torch.zeros(1, stride[0], *latents.shape[2:], device=latents.device)
        mask[:, :, 0] = 1
        job.slots.condition = torch.cat([mask, latents], dim=1)


class FirstFrameLatents(Stage):
    """Writes `condition` [1, C, 1, h, w] and `mask` [1, 1, F, h, w], which is 0 at the given frame.

    Without an image the mask is None and nothing is pinned (Wan2.2 `wan/textimage2video.py`).
    """

    id = "condition"
    writes = ("condition", "mask")
    uses = ("vae",)

    def run(self, job: Job) -> StageRun:
        job.slots.condition = job.slots.mask = None
        if not job.request.images:
            return
        params, stride = job.params, job.parts["vae_stride"]
        image = to_pixels(job.request.images[0], params.height, params.width)
        encoded = yield Call("vae", {"video": image.to(job.device)}, method="encode")
        latents = job.parts["latent_scale"].normalise(encoded.float())
        frames = (params.num_frames - 1) // stride[0] + 1
        mask = torch.ones(1, 1, frames, *latents.shape[3:], device=latents.device)
        mask[:, :, 0] = 0
        job.slots.condition, job.slots.mask = latents, mask
