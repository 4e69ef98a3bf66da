"""Chunks of latents to frames, and frames to latents piece by piece."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import torch

from sgld.engine.call import Call, StageRun
from sgld.engine.job import Job
from sgld.engine.stage import Stage
from sgld.stages.denoise import Frames
from sgld_wan.models.vae_history import VaeHistory
from sgld_wan.models.vae_slots import settled_latents
from sgld_wan.models.vae_stream import History
from sgld_wan.stages.decode import to_frames

DECODER: Final = "decoder"
"""Name of the decoder's history among the parts of a causal state."""

LATENTS_PER_CALL: Final = 4
"""Latent frames encoded by one call, so that a long condition does not hold up other work."""


class DecodeChunk(Stage):
    """Decodes `latents` [1, C, f, h, w] where the stream stands; writes `frames` [F, H, W, 3] in
    0..1, F = 4f (4f - 3 for the first chunk).

    The part `decoder` of `state` is a `VaeHistory`. It is open afterwards: the state commits it.
    """

    id = "decode"
    reads = ("state", "latents")
    writes = ("frames",)
    uses = ("vae",)

    def run(self, job: Job) -> StageRun:
        history: VaeHistory = job.slots.state[DECODER]
        latents = job.slots.latents.to(job.parts["vae_dtype"])
        inputs = {
            "latents": job.parts["latent_scale"].restore(latents),
            "history": history.take(),
        }
        video, after = yield Call("vae", inputs, method="decode_chunk")
        history.put(after)
        job.slots.frames = to_frames(video)


def first_frame_latents(
    job: Job, image: torch.Tensor, frames: int, *, encoded: int | None = None
) -> Frames:
    """The normalised latents [1, C, frames, h, w] of a picture followed by grey frames.

    The encoder looks back over a bounded time, so from some latent frame on (`settled_latents` of
    `sgld_wan.models.vae_slots`) all are the same: they are encoded once and repeated, to the bit
    what encoding all would give. With `encoded` fewer are encoded and the last of them is repeated,
    which is an approximation. How good it is depends on the weights: with random ones, where the
    past dies away slowly, the error of the last latent (norm of the difference over norm) is about
    1 after 4 latents, 0.02 to 0.4 after 10, 0.001 to 0.03 after 16, and 0 from 30 on.

    Args:
        job: names the device and has the parts `latent_scale`, `vae_stride` and `vae_config`.
        image: [1, 3, 1, H, W] in -1..1.
        frames: latent frames wanted.
        encoded: encode at most so many; None: all that differ from each other.
    """
    if frames < 1 or (encoded is not None and encoded < 1):
        raise ValueError(f"frames={frames}, encoded={encoded}: both must be 1 or more")
    stride, settled = job.parts["vae_stride"][0], settled_latents(job.parts["vae_config"])
    count = min(frames, settled if encoded is None else min(encoded, settled))
    latents = yield from encoded_stream(job, _picture_then_grey(image, count, stride))
    if count < frames:
        tail = latents[:, :, -1:].expand(-1, -1, frames - count, -1, -1)
        latents = torch.cat([latents, tail], dim=2)
    return latents


def encoded_stream(job: Job, pieces: Iterable[torch.Tensor]) -> Frames:
    """The normalised latents [1, C, f, h, w] of a video that comes in pieces, one call for each.

    Args:
        job: names the device and has the part `latent_scale`.
        pieces: [1, 3, F, H, W] in -1..1; F is 4k + 1 in the first and a multiple of 4 later.
    """
    history: History | None = None
    latents: list[torch.Tensor] = []
    for piece in pieces:
        inputs: dict[str, Any] = {"video": piece.to(job.device), "history": history}
        encoded, history = yield Call("vae", inputs, method="encode_chunk")
        latents.append(job.parts["latent_scale"].normalise(encoded.float()))
    return torch.cat(latents, dim=2)


def video_pieces(video: torch.Tensor, stride: int) -> Iterator[torch.Tensor]:
    """A whole video [1, 3, 4k + 1, H, W] in pieces for `encoded_stream`."""
    begin, end = 0, 1 + stride * (LATENTS_PER_CALL - 1)
    while begin < video.shape[2]:
        yield video[:, :, begin:end]
        begin, end = end, end + stride * LATENTS_PER_CALL


def _picture_then_grey(image: torch.Tensor, latents: int, stride: int) -> Iterator[torch.Tensor]:
    yield image
    grey = torch.zeros(1, 1, 1, 1, 1).expand(-1, 3, stride * LATENTS_PER_CALL, *image.shape[3:])
    left = latents - 1
    while left > 0:
        yield grey[:, :, : stride * left]
        left -= LATENTS_PER_CALL
