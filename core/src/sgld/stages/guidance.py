"""The denoiser of a family that is guided by its negative prompt, from two small functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch

from sgld.engine.call import Call
from sgld.engine.job import Job
from sgld.stages.denoise import Frames, guide


class Guidance:
    """A `sgld.stages.denoise.Denoiser`: one forward a step, two where `params.uses_cfg`.

    Args:
        predict: `(job, time, text) -> Call`: the forward of `transformer` for `job.slots.latents`
            at a model time, [1] on the device, with `text` as the text stage wrote it. Give the
            call a `batch_key` where rows of other requests may join it.
        decode: latents → frames; for previews.
        reads: slots that `predict` reads beside `latents` and `sampler`.
    """

    uses: ClassVar[tuple[str, ...]] = ("transformer", "vae")

    def __init__(
        self,
        predict: Callable[[Job, torch.Tensor, Any], Call],
        decode: Callable[[Job, torch.Tensor], Frames],
        *,
        reads: Sequence[str] = (),
    ) -> None:
        self.reads: tuple[str, ...] = ("text", "negative", *reads)
        self._predict = predict
        self._decode = decode

    def calls(self, job: Job, index: int) -> Sequence[Call]:
        """The pass for the prompt, and the one for the negative prompt."""
        slots = job.slots
        time = slots.sampler.time(index).reshape(1)
        texts = [slots.text, slots.negative] if job.params.uses_cfg else [slots.text]
        return [self._predict(job, time, text) for text in texts]

    def combine(self, job: Job, index: int, results: Sequence[torch.Tensor]) -> torch.Tensor:
        """Guided by `params.guidance_scale`."""
        if len(results) == 1:
            return results[0]
        return guide(results[0], results[1], job.params.guidance_scale)

    def finish(self, job: Job) -> torch.Tensor:
        """The latents as the last step left them."""
        return job.slots.latents

    def preview(self, job: Job, clean: torch.Tensor) -> Frames:
        """The estimate as the result would be shown."""
        return self._decode(job, clean)
