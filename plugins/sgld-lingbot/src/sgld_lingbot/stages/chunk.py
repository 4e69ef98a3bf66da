"""What happens in every chunk: the camera moves, noise becomes latents, latents are remembered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch

from sgld.causal.kept import Kept
from sgld.engine.call import Call, StageRun
from sgld.engine.job import Job
from sgld.engine.stage import Stage
from sgld.stages.sampler import Sampler
from sgld_lingbot.models.camera import plucker
from sgld_lingbot.models.dit import ChunkCamera
from sgld_lingbot.models.steering import Steering
from sgld_lingbot.stages.condition import CONDITION, FRAMES, LATENTS, piece_of
from sgld_wan.stages.causal import TEXT, kv_cache, text_cache

CAMERA = "camera"
"""Name of the camera among the parts of the state."""


class Steer(Stage):
    """Moves the camera by the chunk's `actions` and makes the network's condition of it. Without
    any the network is told nothing of a camera.

    Actions are one list of keys per latent frame; a shorter list is continued with its last entry.
    """

    id = "camera"
    reads = ("state", "chunk", "controls")

    def run(self, job: Job) -> StageRun:
        slots, params = job.slots, job.params
        steering = cast("Steering", slots.state[CAMERA])
        steering.condition = None  # the old one's memory, before the new one needs it
        levels = slots.controls.get("actions")
        if levels is None:
            return
        levels = list(levels)[: slots.chunk.frames]
        levels += [levels[-1] if levels else []] * (slots.chunk.frames - len(levels))
        moves = torch.from_numpy(steering.steer(levels)).float().to(job.device)
        rays = plucker(moves, params.height, params.width)
        steering.condition = ChunkCamera(rays.to(job.parts["compute_dtype"]))
        return
        yield


class ShowFirstFrame(Stage):
    """Writes `shown` [1, mask + C, f, h, w]: what the network is shown of the still picture in this
    chunk; the mask is 1 at the given frame and 0 elsewhere."""

    id = "shown"
    reads = ("state", "chunk")
    writes = ("shown",)

    def __init__(self, mask_channels: int) -> None:
        self._channels = mask_channels

    def run(self, job: Job) -> StageRun:
        slots, chunk = job.slots, job.slots.chunk
        kept = cast("Kept", slots.state[CONDITION])
        part = piece_of(chunk, kept.get(LATENTS), kept.get(FRAMES))
        mask = part.new_zeros(1, self._channels, *part.shape[2:])
        if chunk.first == 0:
            mask[:, :, 0] = 1
        slots.shown = torch.cat([mask, part], dim=1)
        return
        yield


class DenoiseChunk(Stage):
    """Opens the chunk in the cache and denoises it; writes `latents` [1, C, f, h, w], clean.

    Noise is float32 and drawn channel by channel, as the published code does.

    Args:
        sampler: makes the sampler of one chunk.
    """

    id = "denoise"
    reads = ("state", "chunk", "shown", "texts")
    writes = ("latents",)
    uses = ("transformer",)

    def __init__(self, sampler: Callable[[Job], Sampler]) -> None:
        self._sampler = sampler

    def run(self, job: Job) -> StageRun:
        slots, frames = job.slots, job.slots.chunk.frames
        kv_cache(slots.state).begin(frames)
        size = slots.shown.shape[3:]
        latents = job.noise((1, job.parts["latent_channels"], frames, *size))
        sampler = self._sampler(job)
        steps = len(sampler.times)
        for index in range(steps):
            times = sampler.time(index).expand(1, frames)
            velocity = yield _call(job, latents, times, "forward")
            latents = sampler.step(velocity, index, latents)
            _report(job, index + 1, steps, latents)
        slots.latents = latents


class CommitChunk(Stage):
    """Runs the clean chunk through the network at time zero for its keys and values."""

    id = "commit"
    reads = ("state", "latents", "shown", "texts")
    uses = ("transformer",)

    def run(self, job: Job) -> StageRun:
        latents = job.slots.latents
        kv_cache(job.slots.state).clean()
        yield _call(job, latents, torch.zeros(1, latents.shape[2], device=job.device), "remember")


def _call(job: Job, latents: torch.Tensor, times: torch.Tensor, method: str) -> Call:
    slots, state = job.slots, job.slots.state
    inputs: dict[str, Any] = {
        "hidden_states": torch.cat([latents, slots.shown], dim=1).to(job.parts["compute_dtype"]),
        "timestep": times,
        "encoder_hidden_states": slots.texts.get(TEXT),
        "cache": kv_cache(state),
        "text_cache": text_cache(state),
        "camera": cast("Steering", state[CAMERA]).condition,
    }
    return Call("transformer", inputs, method=method)


def _report(job: Job, step: int, steps: int, latents: torch.Tensor) -> None:
    """Steps are counted over the whole clip where it has an end."""
    slots = job.slots
    count = slots.chunk_count if "chunk_count" in slots else 0
    if count:
        step, steps = step + steps * slots.chunk.index, steps * count
    job.progress(step, steps, latents)
