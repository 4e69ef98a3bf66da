"""Text to embeddings, for families whose text encoder needs nothing but the text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

import torch

from sgld.engine.call import Call, StageRun
from sgld.engine.job import Job
from sgld.engine.stage import Stage


class EncodePrompt(Stage):
    """Writes `text`, and `negative` where guidance runs (else None), as `text_encoder` gives them.

    Outputs of one request share their prompt, so its embedding is remembered by the text. That is
    right because the inputs come from the text alone.

    Args:
        tokenise: one text → the inputs of the text encoder, tensors with one row, on the CPU.
    """

    id = "text"
    writes: ClassVar[tuple[str, ...]] = ("text", "negative")
    uses: ClassVar[tuple[str, ...]] = ("text_encoder",)

    def __init__(self, tokenise: Callable[[str], Mapping[str, torch.Tensor]]) -> None:
        self._tokenise = tokenise

    def run(self, job: Job) -> StageRun:
        texts: list[str] = [job.params.prompt]
        if job.params.uses_cfg:
            texts.append(job.params.negative_prompt)
        results = yield [self._call(job, text) for text in texts]
        job.slots.text, job.slots.negative = (*results, None)[:2]

    def _call(self, job: Job, text: str) -> Call:
        inputs = {name: ids.to(job.device) for name, ids in self._tokenise(text).items()}
        return Call("text_encoder", inputs, batch_key=self.id, memo=(self.id, text))
