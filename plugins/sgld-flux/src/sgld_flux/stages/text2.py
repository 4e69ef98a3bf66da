"""Prompts to the states of FLUX.2's language models."""

from __future__ import annotations

from typing import Any, Final

import torch

from sgld.engine.call import Call, StageRun
from sgld.engine.job import Job
from sgld.engine.stage import Stage

SYSTEM_MESSAGE: Final = (
    "You are an AI that reasons about image descriptions. You give structured responses focusing "
    "on object relationships, object\nattribution and actions without speculation."
)
"""What dev's language model was told in training, line break included (flux2 `system_messages`)."""
PICTURE_MARK: Final = "[IMG]"
"""Stands for a picture in Mistral's template, so a prompt must not hold it."""


class EncodePrompt(Stage):
    """Writes `text` and `negative`, each [1, L, D]; `negative` is None without guidance."""

    id = "text"
    writes = ("text", "negative")
    uses = ("text_encoder",)

    def run(self, job: Job) -> StageRun:
        calls = [self._call(job, job.params.prompt)]
        if job.params.uses_cfg:
            calls.append(self._call(job, job.params.negative_prompt or ""))
        results = yield calls
        job.slots.text = results[0]
        job.slots.negative = results[1] if len(results) > 1 else None

    def _call(self, job: Job, prompt: str) -> Call:
        length = job.params.max_sequence_length
        tokens = job.parts["tokenizer"](prompt, length)
        return Call(
            "text_encoder",
            {name: tensor.to(job.device) for name, tensor in tokens.items()},
            batch_key="text",
            tokens=length,
            memo=("text", length, prompt),
        )


class QwenPrompts:
    """klein: one user turn, an empty thought, then the answer would begin."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def __call__(self, prompt: str, length: int) -> dict[str, torch.Tensor]:
        """Ids and mask [1, length]."""
        text = self._tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}],
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=False,
        )
        return _padded(self._tokenizer, text, length)


class MistralPrompts:
    """dev: a fixed system message and the user's turn."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def __call__(self, prompt: str, length: int) -> dict[str, torch.Tensor]:
        """Ids and mask [1, length]."""
        turns = [
            {"role": role, "content": [{"type": "text", "text": text}]}
            for role, text in (
                ("system", SYSTEM_MESSAGE),
                ("user", prompt.replace(PICTURE_MARK, "")),
            )
        ]
        text = self._tokenizer.apply_chat_template(
            turns, tokenize=False, add_generation_prompt=False
        )
        # The template writes all special tokens itself.
        return _padded(self._tokenizer, text, length, add_special_tokens=False)


def _padded(tokenizer: Any, text: str, length: int, **options: Any) -> dict[str, torch.Tensor]:
    encoded = tokenizer(
        [text],
        padding="max_length",
        max_length=length,
        truncation=True,
        return_attention_mask=True,
        return_tensors="pt",
        **options,
    )
    return {"input_ids": encoded["input_ids"], "attention_mask": encoded["attention_mask"]}
