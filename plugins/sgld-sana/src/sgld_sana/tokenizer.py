"""A Gemma tokenizer with one token per printable ASCII character, written without any library.

For checkpoints made in code: 356 tokens with the special ids of Gemma (pad 0, end 1, begin 2,
unknown 3), bytes for every other character, the begin token in front, no merges.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

PAD, END, BEGIN, UNKNOWN, MASK = "<pad>", "<eos>", "<bos>", "<unk>", "<mask>"
SPECIAL: Final = (PAD, END, BEGIN, UNKNOWN, MASK)
SPACE: Final = "▁"
PRINTABLE: Final = range(33, 127)


def write_gemma_tokenizer(folder: Path) -> None:
    """Write the files that `transformers.AutoTokenizer` reads into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {
        "add_bos_token": True,
        "backend": "tokenizers",
        "bos_token": BEGIN,
        "eos_token": END,
        "mask_token": MASK,
        "model_max_length": 8192,
        "pad_token": PAD,
        "padding_side": "left",  # as Gemma's own; the pipelines ask for the right
        "tokenizer_class": "GemmaTokenizer",
        "unk_token": UNKNOWN,
    }
    _write(folder / "tokenizer_config.json", settings)
    _write(folder / "tokenizer.json", _tokenizer())


def vocabulary() -> dict[str, int]:
    """Token → id."""
    names = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), SPACE, *map(chr, PRINTABLE)]
    return {name: index for index, name in enumerate(names)}


def _tokenizer() -> dict[str, Any]:
    begin = {"SpecialToken": {"id": BEGIN, "type_id": 0}}
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_special(index, text) for index, text in enumerate(SPECIAL)],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"String": " "},
            "behavior": "MergedWithPrevious",
            "invert": False,
        },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [begin, first],
            "pair": [begin, first, begin, second],
            "special_tokens": {BEGIN: {"id": BEGIN, "ids": [2], "tokens": [BEGIN]}},
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": UNKNOWN,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": vocabulary(),
            "merges": [],
        },
    }


def _special(index: int, text: str) -> dict[str, Any]:
    off = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": index, "content": text, **off, "special": True}


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
