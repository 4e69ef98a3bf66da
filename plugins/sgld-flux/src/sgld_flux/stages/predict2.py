"""One denoising step of FLUX.2 as calls of its transformer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from sgld.engine.call import Call
from sgld.engine.job import Job
from sgld.stages.denoise import Frames, guide
from sgld_flux.stages.decode2 import decoded


class Predict:
    """One pass, with a guidance scale as input where the model takes one, or two guided passes."""

    reads: ClassVar[tuple[str, ...]] = ("text", "negative", "references", "grids")
    writes: ClassVar[tuple[str, ...]] = ("references", "memory")

    def calls(self, job: Job, index: int) -> Sequence[Call]:
        """The positive pass and, with classifier-free guidance, the negative one."""
        slots, parts = job.slots, job.parts
        latents = slots.latents
        tokens = latents.flatten(2).transpose(1, 2)
        if slots.references is not None:
            tokens = torch.cat((tokens, slots.references), dim=1)
        inputs: dict[str, Any] = {
            "hidden_states": tokens.to(parts["compute_dtype"]),
            "timestep": slots.sampler.time(index).reshape(1),
            "grids": ((0, *latents.shape[2:]), *slots.grids),
        }
        if parts["guidance_embeds"]:
            inputs["guidance"] = latents.new_full((1,), job.params.guidance_scale)
        if "memory" in slots and slots.memory is not None:
            inputs["memory"] = slots.memory
        texts = [slots.text] if slots.negative is None else [slots.text, slots.negative]
        return [
            Call(
                "transformer",
                {**inputs, "encoder_hidden_states": text},
                batch_key="flux2",
                tokens=tokens.shape[1] + text.shape[1],
            )
            for text in texts
        ]

    def combine(self, job: Job, index: int, results: Sequence[torch.Tensor]) -> torch.Tensor:
        """The guided velocity, float32 in the latents' layout [1, C, h, w]."""
        velocity = results[0].float()
        if len(results) > 1:
            velocity = guide(velocity, results[1].float(), job.params.guidance_scale)
        return velocity.transpose(1, 2).unflatten(2, job.slots.latents.shape[2:])

    def finish(self, job: Job) -> torch.Tensor:
        """The latents; what the references left is given up before the picture is decoded."""
        job.slots.references = job.slots.memory = None
        return job.slots.latents

    def preview(self, job: Job, clean: torch.Tensor) -> Frames:
        """The picture of an estimate."""
        return decoded(clean)
