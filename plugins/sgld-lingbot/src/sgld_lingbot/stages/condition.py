"""The picture that the world begins with, as the network is shown it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, cast

import torch

from sgld.causal.blocks import Chunk
from sgld.causal.kept import Kept
from sgld.engine.call import StageRun
from sgld.engine.job import Job
from sgld.engine.stage import Stage
from sgld_wan.stages.image import to_pixels
from sgld_wan.stages.stream import first_frame_latents

CONDITION: Final = "condition"
"""Name of the condition among the parts of the state."""
LATENTS: Final = "latents"
FRAMES: Final = "frames"


class Still(NamedTuple):
    """How much of the still clip there is.

    Args:
        frames: latent frames of the clip of picture and grey that chunks are shown pieces of.
        kept: latent frames of it that differ and are kept; the last stands for all later ones.
    """

    frames: int
    kept: int


class EncodeFirstFrame(Stage):
    """Puts the latents of the first frame, stretched to the size of the video, and of the grey
    frames after it into the part `condition`, once for the whole generation.

    Args:
        still: how much of it a job needs.
    """

    id = "condition"
    reads = ("state",)
    uses = ("vae",)

    def __init__(self, still: Callable[[Job], Still]) -> None:
        self._still = still

    def run(self, job: Job) -> StageRun:
        params, still = job.params, self._still(job)
        image = to_pixels(job.request.images[0], params.height, params.width, "stretch")
        latents = yield from first_frame_latents(job, image, still.kept)
        part = cast("Kept", job.slots.state[CONDITION])
        part.set(LATENTS, latents)
        part.set(FRAMES, still.frames)


def piece_of(chunk: Chunk, latents: torch.Tensor, frames: int) -> torch.Tensor:
    """What a chunk is shown of a still clip of so many latent frames, [1, C, f, h, w].

    Past the end of the clip it is shown the last frames again, as many as it has (lingbot-world,
    realtime: the last slice). `latents` are the clip's first frames; the last of them stands for
    all that follow.
    """
    first = min(chunk.first, frames - chunk.frames)
    first, end = min(first, latents.shape[2] - 1), first + chunk.frames
    part = latents[:, :, first:end]
    more = chunk.frames - part.shape[2]
    last = latents[:, :, -1:].expand(-1, -1, more, -1, -1)
    return torch.cat([part, last], dim=2) if more else part
