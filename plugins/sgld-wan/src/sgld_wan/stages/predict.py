"""One denoising step of each Wan variant, as calls of its transformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from sgld.engine.call import Call
from sgld.engine.job import Job
from sgld.stages.denoise import Frames, guide
from sgld.stages.renoise import TRAIN_STEPS
from sgld_wan.stages.decode import decoded


class Predict:
    """Text-to-video: one or two passes of one transformer, or of two split by noise level.

    `boundary` is the noise level, as a share of the training steps, from which the `transformer` is
    used; below it `transformer_2` is, with its own guidance scale (Wan 2.2 A14B).
    """

    reads: ClassVar[tuple[str, ...]] = ("text", "negative")

    def calls(self, job: Job, index: int) -> Sequence[Call]:
        """The positive pass and, with guidance at this step, the negative one."""
        name, scale = self.expert(job, index)
        texts = [job.slots.text]
        if scale > 1 and job.slots.negative is not None:
            texts.append(job.slots.negative)
        latents = self.model_input(job, index)
        shared = {
            "hidden_states": latents.to(job.parts["compute_dtype"]),
            "timestep": self.timestep(job, index),
            **self.extras(job),
        }
        tokens = latents.shape[2] * latents.shape[3] * latents.shape[4] // 4
        return [
            Call(name, {**shared, "encoder_hidden_states": text}, batch_key="wan", tokens=tokens)
            for text in texts
        ]

    def combine(self, job: Job, index: int, results: Sequence[torch.Tensor]) -> torch.Tensor:
        """The guided velocity."""
        if len(results) == 1:
            return results[0]
        return guide(results[0], results[1], self.expert(job, index)[1])

    def expert(self, job: Job, index: int) -> tuple[str, float]:
        """The transformer of step `index` and its guidance scale."""
        params = job.params
        # Distilled models take no scale: their guidance is in the weights.
        scale: float = getattr(params, "guidance_scale", 1.0)
        boundary: float | None = getattr(params, "boundary_ratio", None)
        if boundary is None:
            boundary = job.parts["boundary_ratio"]
        if boundary is None or job.slots.sampler.times[index] >= boundary * TRAIN_STEPS:
            return "transformer", scale
        second: float | None = getattr(params, "guidance_scale_2", None)
        return "transformer_2", scale if second is None else second

    def model_input(self, job: Job, index: int) -> torch.Tensor:
        """What the transformer sees, [1, C, F, h, w]."""
        return job.slots.latents

    def timestep(self, job: Job, index: int) -> torch.Tensor:
        """The time of each row, [1], or of each latent frame, [1, F]."""
        return job.slots.sampler.time(index).reshape(1)

    def extras(self, job: Job) -> dict[str, Any]:
        """Further inputs of the transformer."""
        return {}

    def finish(self, job: Job) -> torch.Tensor:
        """The latents that are decoded."""
        return job.slots.latents

    def preview(self, job: Job, clean: torch.Tensor) -> Frames:
        """The latent frame in the middle, decoded alone: a whole clip would take too long."""
        middle = clean.shape[2] // 2
        return decoded(job, clean[:, :, middle : middle + 1])


class PredictWithChannels(Predict):
    """Image-to-video by extra channels, and by CLIP tokens where the checkpoint has a tower."""

    reads: ClassVar[tuple[str, ...]] = (*Predict.reads, "condition")

    def model_input(self, job: Job, index: int) -> torch.Tensor:
        return torch.cat([job.slots.latents, job.slots.condition], dim=1)

    def extras(self, job: Job) -> dict[str, Any]:
        if "image_tokens" not in job.slots:
            return {}
        tokens = job.slots.image_tokens.to(job.parts["compute_dtype"])
        return {"encoder_hidden_states_image": tokens}


class PredictWithPinnedFrame(Predict):
    """Wan 2.2 TI2V-5B: the given first frame replaces its latents and stands at time zero."""

    reads: ClassVar[tuple[str, ...]] = (*Predict.reads, "condition", "mask")

    def model_input(self, job: Job, index: int) -> torch.Tensor:
        return self._pinned(job)

    def timestep(self, job: Job, index: int) -> torch.Tensor:
        time, mask = job.slots.sampler.time(index), job.slots.mask
        if mask is None:
            return time.reshape(1)
        return mask[:, 0, :, 0, 0] * time

    def finish(self, job: Job) -> torch.Tensor:
        return self._pinned(job)

    def _pinned(self, job: Job) -> torch.Tensor:
        slots = job.slots
        if slots.mask is None:
            return slots.latents
        return (1 - slots.mask) * slots.condition + slots.mask * slots.latents
