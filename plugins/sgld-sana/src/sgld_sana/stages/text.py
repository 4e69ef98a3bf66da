"""Prompts to Gemma-2 states, as SANA's published pipelines prepare them."""

from __future__ import annotations

from typing import Any

import torch

from sgld.engine.call import Call, StageRun
from sgld.engine.job import Job
from sgld.engine.stage import Stage
from sgld_sana.models.text import first_and_last


def clean(prompt: str) -> str:
    """Lower case, without white space at the ends; nothing else is touched."""
    return prompt.lower().strip()


class EncodePrompt(Stage):
    """Writes `text`, `text_mask`, `negative` and `negative_mask`: [1, L, D] and [1, L].

    An instruction stands in front of the prompt but not of the negative prompt. Both are padded on
    the right; of the prompt, the first token and the last L - 1 are kept, so that most of the
    instruction is read by the encoder and not seen by the transformer.
    """

    id = "text"
    writes = ("text", "text_mask", "negative", "negative_mask")
    uses = ("text_encoder",)

    def __init__(self, instruction: str) -> None:
        self._instruction = instruction

    def run(self, job: Job) -> StageRun:
        params, slots = job.params, job.slots
        given = params.complex_human_instruction
        instruction = self._instruction if given is None else given
        wanted = [(full_prompt(params), instruction)]
        if params.uses_cfg:
            wanted.append((params.negative_prompt, ""))
        length = params.max_sequence_length
        encoded = [
            tokenize(job.parts["tokenizer"], clean(prompt), prefix, length)
            for prompt, prefix in wanted
        ]
        results = yield [
            self._call(job, tokens, ("text", length, *text))
            for tokens, text in zip(encoded, wanted, strict=True)
        ]
        states = [result.to(job.parts["compute_dtype"]) for result in results]
        masks = [first_and_last(part["attention_mask"], length).to(job.device) for part in encoded]
        slots.text, slots.text_mask = states[0], masks[0]
        slots.negative = states[1] if len(states) > 1 else None
        slots.negative_mask = masks[1] if len(masks) > 1 else None

    def _call(self, job: Job, tokens: dict[str, torch.Tensor], memo: tuple[Any, ...]) -> Call:
        return Call(
            "text_encoder",
            {
                **{name: tensor.to(job.device) for name, tensor in tokens.items()},
                "length": job.params.max_sequence_length,
            },
            batch_key="text",
            tokens=tokens["input_ids"].shape[1],
            memo=memo,
        )


def full_prompt(params: Any) -> str:
    """The prompt, with the motion score behind it in videos."""
    score = getattr(params, "motion_score", 0)
    return f"{params.prompt} motion score: {score}." if score else params.prompt


def tokenize(tokenizer: Any, text: str, instruction: str, length: int) -> dict[str, torch.Tensor]:
    """Token ids and mask [1, L] of `instruction` + `text`, padded on the right.

    L is `length`, and with an instruction its tokens more; two of them are counted twice in that
    (the first token, and the blank at its end).
    """
    longest = len(tokenizer.encode(instruction)) + length - 2 if instruction else length
    encoded = tokenizer(
        [instruction + text],
        padding="max_length",
        padding_side="right",
        max_length=longest,
        truncation=True,
        add_special_tokens=True,
        return_attention_mask=True,
        return_tensors="pt",
    )
    return {"input_ids": encoded["input_ids"], "attention_mask": encoded["attention_mask"]}
