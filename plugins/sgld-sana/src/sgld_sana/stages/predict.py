"""One denoising step of each SANA variant, as calls of its transformer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from sgld.engine.call import Call, StageRun
from sgld.engine.job import Job
from sgld.engine.stage import Stage
from sgld.stages.denoise import Frames, guide
from sgld_sana.models.config import tokens
from sgld_sana.stages.decode import decoded


class Predict:
    """SANA 1.0 and 1.5: one or two passes, a flow velocity."""

    reads: ClassVar[tuple[str, ...]] = ("text", "text_mask", "negative", "negative_mask")

    def calls(self, job: Job, index: int) -> Sequence[Call]:
        """The positive pass and, with guidance, the negative one."""
        slots = job.slots
        texts = [(slots.text, slots.text_mask)]
        if slots.negative is not None:
            texts.append((slots.negative, slots.negative_mask))
        latents = self.model_input(job, index)
        config, size = job.parts["config"], latents.shape[2:]
        shared = {
            "hidden_states": latents.to(job.parts["compute_dtype"]),
            "timestep": self.timestep(job, index),
            **self.extras(job),
        }
        cost = tokens(config, *(size if config.video else (1, *size)))
        return [
            Call(
                "transformer",
                {**shared, "encoder_hidden_states": text, "encoder_attention_mask": mask},
                batch_key="sana",
                tokens=cost,
            )
            for text, mask in texts
        ]

    def combine(self, job: Job, index: int, results: Sequence[torch.Tensor]) -> torch.Tensor:
        """The guided velocity, float32; of a network with twice the channels, the first half."""
        outputs = [result.float() for result in results]
        output = outputs[0]
        if len(outputs) == 2:
            output = guide(output, outputs[1], job.params.guidance_scale)
        return output[:, : job.parts["config"].in_channels]

    def model_input(self, job: Job, index: int) -> torch.Tensor:
        """What the transformer sees, [1, C, h, w] or [1, C, F, h, w]."""
        return job.slots.latents

    def timestep(self, job: Job, index: int) -> torch.Tensor:
        """The time of each row, [1], or of each latent frame, [1, F]; float32."""
        time = job.slots.sampler.time(index).reshape(1).float()
        return time * job.parts["config"].timestep_scale

    def extras(self, job: Job) -> dict[str, Any]:
        """Further inputs of the transformer."""
        return {}

    def finish(self, job: Job) -> torch.Tensor:
        """The latents that are decoded."""
        return job.slots.latents

    def preview(self, job: Job, clean: torch.Tensor) -> Frames:
        """The picture of an estimate."""
        return decoded(job, clean)


class PredictVideo(Predict):
    """SANA-Video: where a first frame is given, that one stands at time zero."""

    reads: ClassVar[tuple[str, ...]] = (*Predict.reads, "moving")

    def timestep(self, job: Job, index: int) -> torch.Tensor:
        time, moving = super().timestep(job, index), job.slots.moving
        return time if moving is None else time[:, None] * moving

    def preview(self, job: Job, clean: torch.Tensor) -> Frames:
        """The latent frame in the middle, decoded alone: a whole clip would take too long."""
        middle = clean.shape[2] // 2
        return decoded(job, clean[:, :, middle : middle + 1])


class PredictTrigFlow(Predict):
    """SANA-Sprint: the network knows flow times, the sampler angles; this translates.

    At angle s the flow time is τ = sin s / (sin s + cos s), and both noise and latents are scaled
    so that their deviations match (SANA-Sprint, arXiv 2503.09641, section 3.1).
    """

    def model_input(self, job: Job, index: int) -> torch.Tensor:
        sampler = job.slots.sampler
        length = self._flow(job, index)[1]
        return job.slots.latents / sampler.sigma_data * length

    def timestep(self, job: Job, index: int) -> torch.Tensor:
        return self._flow(job, index)[0].reshape(1)

    def extras(self, job: Job) -> dict[str, Any]:
        # In the precision of the text, as the published pipeline has it.
        scale = job.params.guidance_scale
        guidance = torch.full((1,), scale, dtype=job.parts["text_dtype"], device=job.device)
        return {"guidance": guidance * job.parts["config"].guidance_embeds_scale}

    def combine(self, job: Job, index: int, results: Sequence[torch.Tensor]) -> torch.Tensor:
        """The TrigFlow output of the network's flow output, float32."""
        time, length = self._flow(job, index)
        seen = self.model_input(job, index)
        output = (1 - 2 * time) * seen + (1 - 2 * time + 2 * time**2) * results[0]
        return (output / length).float() * job.slots.sampler.sigma_data

    def finish(self, job: Job) -> torch.Tensor:
        sampler = job.slots.sampler
        return sampler.clean / sampler.sigma_data

    def _flow(self, job: Job, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """τ of a step, and √(τ² + (1 - τ)²)."""
        angle = job.slots.sampler.time(index)
        time = torch.sin(angle) / (torch.cos(angle) + torch.sin(angle))
        return time, torch.sqrt(time**2 + (1 - time) ** 2)


class ScaleNoise(Stage):
    """Gives the starting noise the deviation that SANA-Sprint's latents have."""

    id = "scale"
    reads = ("latents", "sampler")
    writes = ("latents",)

    def run(self, job: Job) -> StageRun:
        job.slots.latents = job.slots.latents * job.slots.sampler.sigma_data
        return
        yield
