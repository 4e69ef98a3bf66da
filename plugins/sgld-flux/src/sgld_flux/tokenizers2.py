"""Byte tokenizers with the chat templates of FLUX.2's language models, for made-up checkpoints.

    write_qwen(folder)      right padding, an empty thought before the answer
    write_mistral(folder)   left padding, system message and instruction in brackets

Every byte is one token, so any prompt can be written, and prompts of a few hundred characters are
cut off. Needs the package `tokenizers` only.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

QWEN_SPECIAL: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
QWEN_WORDS: Final = ("<think>", "</think>")
QWEN_TEMPLATE: Final = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}"
    "{{- '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}"
    "{{- '<think>\\n\\n</think>\\n\\n' }}"
    "{%- endif %}{%- endif %}"
)
MISTRAL_SPECIAL: Final = (
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "<pad>",
    "[IMG]",
)  # fmt: skip
MISTRAL_TEMPLATE: Final = (
    "{{- bos_token }}"
    "{%- for message in messages %}"
    "{%- set mark = 'SYSTEM_PROMPT' if message.role == 'system' else 'INST' %}"
    "{{- '[' + mark + ']' }}"
    "{%- for part in message.content %}"
    "{{- part.text if part.type == 'text' else '[IMG]' }}"
    "{%- endfor %}"
    "{{- '[/' + mark + ']' }}"
    "{%- endfor %}"
)


def write_qwen(folder: Path) -> None:
    """Write Qwen3's kind of tokenizer (261 tokens) into `folder`."""
    _write(
        folder,
        QWEN_SPECIAL,
        QWEN_WORDS,
        QWEN_TEMPLATE,
        {
            "tokenizer_class": "Qwen2Tokenizer",
            "bos_token": None,
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "unk_token": None,
            "model_max_length": 131072,
            "padding_side": "right",
        },
    )


def write_mistral(folder: Path) -> None:
    """Write Mistral-Small's kind of tokenizer (265 tokens) into `folder`."""
    _write(
        folder,
        MISTRAL_SPECIAL,
        (),
        MISTRAL_TEMPLATE,
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<s>",
            "eos_token": "</s>",
            "pad_token": "<pad>",
            "unk_token": "<unk>",
            "model_max_length": 131072,
            "padding_side": "left",
        },
    )


def _write(
    folder: Path,
    special: Sequence[str],
    words: Sequence[str],
    template: str,
    settings: dict[str, Any],
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    pieces = [*special, *words, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    # Typed as Any: the package's stubs do not know that these attributes can be set.
    tokenizer: Any = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in special])
    tokenizer.add_tokens([AddedToken(text, special=False) for text in words])
    tokenizer.save(str(folder / "tokenizer.json"))
    text = json.dumps({"clean_up_tokenization_spaces": False, **settings}, indent=2)
    (folder / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
