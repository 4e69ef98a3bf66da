"""Prompts to CLIP's pooled vector and T5's states, as the public FLUX.1 pipelines prepare them."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import torch

from sgld.engine.call import Call, StageRun
from sgld.engine.job import Job
from sgld.engine.stage import Stage

CLIP_LENGTH = 77
"""Text length of CLIP; every token beyond it is cut off."""


class Text(NamedTuple):
    """One prompt as the transformer takes it: states [1, L, D] and pooled [1, P]."""

    states: torch.Tensor
    pooled: torch.Tensor


class EncodePrompt(Stage):
    """Writes `text` and `negative` (None without true guidance), each a `Text`.

    The transformer has no text mask: it attends to the padding too, so L is part of the model's
    input and not a matter of speed.
    """

    id = "text"
    writes: ClassVar[tuple[str, ...]] = ("text", "negative")
    uses: ClassVar[tuple[str, ...]] = ("text_encoder", "text_encoder_2")

    def run(self, job: Job) -> StageRun:
        params = job.params
        prompts = [(params.prompt, params.prompt if params.prompt_2 is None else params.prompt_2)]
        if params.uses_cfg:
            prompts.append((params.negative_prompt, params.negative_prompt))
        results = yield [call for pair in prompts for call in self._calls(job, *pair)]
        texts = [Text(*results[place : place + 2]) for place in range(0, len(results), 2)]
        job.slots.text = texts[0]
        job.slots.negative = texts[1] if len(texts) > 1 else None

    def _calls(self, job: Job, pooled: str, states: str) -> tuple[Call, Call]:
        length: int = job.params.max_sequence_length
        return (
            _call(job, "text_encoder_2", "tokenizer_2", states, length),
            _call(job, "text_encoder", "tokenizer", pooled, CLIP_LENGTH),
        )


def _call(job: Job, component: str, tokenizer: str, prompt: str, length: int) -> Call:
    ids = tokenize(job.parts[tokenizer], prompt, length)
    return Call(
        component,
        {"input_ids": ids.to(job.device)},
        batch_key="text",
        tokens=length,
        memo=(length, prompt),
    )


def tokenize(tokenizer: Any, prompt: str, length: int) -> torch.Tensor:
    """Token ids [1, length] of one prompt, cut and padded to `length`."""
    encoded = tokenizer(
        [prompt], padding="max_length", max_length=length, truncation=True, return_tensors="pt"
    )
    return encoded["input_ids"]
