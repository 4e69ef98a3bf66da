"""What leaves the engine: finished outputs and reports on the way, as plain data."""

from __future__ import annotations

import time

import numpy as np
import numpy.typing as npt
import torch

from sgld.engine.pipeline import Pipeline, media_of
from sgld.engine.running import Running
from sgld.messages import Output


def make_output(pipeline: Pipeline, running: Running, began: float) -> Output:
    """The output of a job whose stages have all run; `began` is when its request started.

    Raises what the family's `media` and `used` raise, and `non_finite_output`.
    """
    job = running.job
    begin = time.perf_counter()
    media = media_of(pipeline, job)
    job.finite.note(media.frames, 0)
    job.finite.check(running.stage)
    pixels = to_pixels(media.frames)
    wanted = job.request.want_latents and media.latents is not None
    timings = dict(running.timings)
    timings["output"] = time.perf_counter() - begin
    timings["total"] = time.perf_counter() - began
    return Output(
        index=job.index,
        seed=job.seed,
        kind=media.kind,
        frames=pixels,
        fps=media.fps,
        parameters={**job.request.params, **pipeline.used(job), "seed": job.seed},
        latents=plain(media.latents) if wanted and media.latents is not None else None,
        timings=timings,
    )


def to_pixels(frames: torch.Tensor) -> npt.NDArray[np.uint8]:
    """Frames in 0..1, [F, H, W, 3] on any device, as uint8; uint8 frames as they are."""
    if frames.dtype == torch.uint8:
        return frames.cpu().numpy()
    return frames.clamp(0, 1).mul(255).round().to(torch.uint8).cpu().numpy()


def plain(tensor: torch.Tensor) -> npt.NDArray[np.float32]:
    """A float32 array of its own: on the CPU a tensor would share its memory with it, and a
    sampler that steps in place would change what was already given away."""
    return tensor.to("cpu", torch.float32, copy=True).numpy()
