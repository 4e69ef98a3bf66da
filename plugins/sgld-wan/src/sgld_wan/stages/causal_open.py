"""What happens once, before the first chunk: the state, and frames that the request gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from sgld.api.errors import ParameterError, Problem
from sgld.causal.cache import Part
from sgld.causal.state import CausalState
from sgld.engine.call import StageRun
from sgld.engine.job import Job
from sgld.engine.stage import Stage
from sgld_wan.stages.causal import FollowPrompt, kv_cache, prefixes, remembered
from sgld_wan.stages.image import to_pixels
from sgld_wan.stages.stream import DecodeChunk, encoded_stream, video_pieces


class OpenState(Stage):
    """Writes `state`.

    Args:
        parts: makes the parts of a job's state; `slots.undo` says how far back they must go.
    """

    id = "open"
    writes = ("state",)

    def __init__(self, parts: Callable[[Job], Mapping[str, Part]]) -> None:
        self._parts = parts

    def run(self, job: Job) -> StageRun:
        undo = job.slots.undo
        job.slots.state = CausalState(self._parts(job), job.generator, undo=undo)
        return
        yield


class GivenFrames(Stage):
    """The pictures of the request become the beginning of the clip.

    They are encoded as one video, and run through the network at time zero block by block, so that
    chunk 0 goes on from them. Writes `lead` and `lead_latents` (see `EachChunk`). One picture alone
    can be held fast within chunk 0 instead, where the family was trained so: then it writes `pin`
    (see `DenoiseChunk`).

    Args:
        size: latent frames of one block.
        first: latent frames of the first block; 0: like the others.
        controls: `(params, chunk index) -> controls`, for the prompt.
        pins: hold a single picture fast instead.
    """

    id = "given"
    reads = ("state",)
    uses = ("vae", "text_encoder", "transformer")

    def __init__(
        self,
        size: int,
        *,
        first: int = 0,
        controls: Callable[[Any, int], Mapping[str, Any]],
        pins: bool = False,
    ) -> None:
        self._size = size
        self._first = first or size
        self._controls = controls
        self._pins = pins

    def run(self, job: Job) -> StageRun:
        images, slots, params = job.request.images, job.slots, job.params
        if not images:
            return
        _check_count(len(images), job.parts["vae_stride"][0], params.num_frames)
        pictures = [to_pixels(image, params.height, params.width) for image in images]
        pieces = video_pieces(torch.cat(pictures, dim=2), job.parts["vae_stride"][0])
        latents = yield from encoded_stream(job, pieces)
        if self._pins and latents.shape[2] == 1:
            slots.pin = latents
            return
        slots.controls = self._controls(params, 0)
        yield from FollowPrompt().run(job)
        begin, end = 0, self._first
        while begin < latents.shape[2]:
            part = latents[:, :, begin:end]
            for prefix in prefixes(slots.state):
                kv_cache(slots.state, prefix).begin(part.shape[2])
            yield from remembered(job, part)
            for prefix in prefixes(slots.state):
                kv_cache(slots.state, prefix).seal()
            begin, end = end, end + self._size
        slots.latents = slots.lead_latents = latents
        yield from DecodeChunk().run(job)
        slots.lead = slots.frames
        slots.state.next_frame = latents.shape[2]


def _check_count(count: int, stride: int, num_frames: int) -> None:
    """Raise ParameterError unless `count` pictures are a clip that the VAE can encode, shorter than
    what is asked for."""
    if (count - 1) % stride:
        message = f"{count} pictures are no beginning of a clip: give one, or {stride}k+1."
        raise ParameterError([Problem("image_path", count, message)])
    if count >= num_frames:
        message = f"{count} frames are given and num_frames is {num_frames}."
        raise ParameterError([Problem("num_frames", num_frames, message, "Make the clip longer.")])
