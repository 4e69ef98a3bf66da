"""Prompts to UMT5 embeddings, as the public Wan code prepares them."""

from __future__ import annotations

import html
import re
from typing import Any

import ftfy
import torch

from sgld.engine.call import Call, StageRun
from sgld.engine.job import Job
from sgld.engine.stage import Stage

LENGTH = 512
"""Text length of every released model."""


def clean(prompt: str) -> str:
    """Mend broken Unicode, resolve HTML entities (twice: they come nested), fold white space."""
    text = html.unescape(html.unescape(ftfy.fix_text(prompt))).strip()
    return re.sub(r"\s+", " ", text).strip()


class EncodePrompt(Stage):
    """Writes `text` and `negative`, each [1, L, D] with zeros after the prompt's own tokens.

    The transformer has no text mask: it attends to the zero rows too, so L is part of the model's
    input and not a matter of speed (Wan2.1, `wan/modules/model.py`).
    """

    id = "text"
    writes = ("text", "negative")
    uses = ("text_encoder",)

    def run(self, job: Job) -> StageRun:
        calls = [prompt_call(job, job.params.prompt)]
        if job.params.uses_cfg:
            calls.append(prompt_call(job, job.params.negative_prompt or ""))
        results = yield calls
        job.slots.text = results[0]
        job.slots.negative = results[1] if len(results) > 1 else None


def prompt_call(job: Job, prompt: str) -> Call:
    """The call that encodes one prompt; its result is [1, L, D].

    L is the request's `max_sequence_length`, else the part `text_length` of the checkpoint.
    """
    length = getattr(job.params, "max_sequence_length", job.parts.get("text_length", LENGTH))
    tokens = tokenize(job.parts["tokenizer"], clean(prompt), length)
    return Call(
        "text_encoder",
        {name: tensor.to(job.device) for name, tensor in tokens.items()},
        batch_key="text",
        tokens=length,
        memo=("text", length, prompt),
    )


def tokenize(tokenizer: Any, text: str, length: int) -> dict[str, torch.Tensor]:
    """Token ids and mask [1, length] of one prompt, cut and padded to `length`."""
    encoded = tokenizer(
        [text],
        padding="max_length",
        max_length=length,
        truncation=True,
        add_special_tokens=True,
        return_attention_mask=True,
        return_tensors="pt",
    )
    return {"input_ids": encoded["input_ids"], "attention_mask": encoded["attention_mask"]}
