"""One denoising step of FLUX.1, as calls of its transformer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch

from sgld.engine.call import Call
from sgld.engine.job import Job
from sgld.stages.denoise import Frames, guide
from sgld_flux.stages.decode1 import decoded
from sgld_flux.stages.latents1 import Grid


class Predict:
    """One pass, or two with true guidance; the embedded guidance scale is an input of both."""

    reads: ClassVar[tuple[str, ...]] = ("text", "negative")

    def calls(self, job: Job, index: int) -> Sequence[Call]:
        """The positive pass and, with true guidance, the negative one."""
        slots, grid = job.slots, Grid.of(job)
        shared = {
            "hidden_states": slots.latents,
            "timestep": slots.sampler.time(index).reshape(1),
            "rows": grid.rows,
            "columns": grid.columns,
        }
        if job.parts["guided"]:
            scale: float = job.params.guidance_scale
            shared["guidance"] = torch.full((1,), scale, device=job.device)
        texts = [text for text in (slots.text, slots.negative) if text is not None]
        return [
            Call(
                "transformer",
                {
                    **shared,
                    "encoder_hidden_states": text.states,
                    "pooled_projections": text.pooled,
                },
                batch_key="flux.1",
                tokens=grid.tokens + text.states.shape[1],
            )
            for text in texts
        ]

    def combine(self, job: Job, index: int, results: Sequence[torch.Tensor]) -> torch.Tensor:
        """The velocity, guided if there was a negative pass."""
        if len(results) == 1:
            return results[0]
        return guide(results[0], results[1], job.params.true_cfg_scale)

    def finish(self, job: Job) -> torch.Tensor:
        """The latents that are decoded."""
        return job.slots.latents

    def preview(self, job: Job, clean: torch.Tensor) -> Frames:
        """The picture of an estimate."""
        return decoded(job, clean)
