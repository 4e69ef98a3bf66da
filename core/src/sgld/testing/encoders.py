"""Tiny encoders and a tokenizer for checkpoints made in code.

`write_character_tokenizer` needs nothing but the standard library; the two model builders need
transformers and say so when it is missing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sgld.api.errors import UserError
from sgld.testing.randomness import reinitialise

PAD, END, UNKNOWN = "<pad>", "</s>", "<unk>"
SPACE = "▁"
PRINTABLE = range(33, 127)


def write_character_tokenizer(folder: Path, *, max_length: int = 512) -> None:
    """Write a T5-like tokenizer with one token per printable ASCII character into `folder`.

    98 tokens: pad 0, end 1, unknown 2, the word mark 3, then `!` to `~`. It appends the end token
    and can be read by `transformers.AutoTokenizer`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "tokenizer.json", _tokenizer_json())
    settings = {
        "backend": "tokenizers",
        "eos_token": END,
        "extra_ids": 0,
        "extra_special_tokens": [],
        "model_max_length": max_length,
        "pad_token": PAD,
        "tokenizer_class": "T5Tokenizer",
        "unk_token": UNKNOWN,
    }
    _write_json(folder / "tokenizer_config.json", settings)


def tiny_text_encoder(seed: int, **overrides: Any) -> Any:
    """Build a random UMT5 encoder (2 layers, width 32, 4 heads, vocabulary 128) in float32.

    `overrides` are fields of `transformers.UMT5Config`. Raises UserError without transformers.
    """
    transformers = _transformers()
    fields: dict[str, Any] = {
        "vocab_size": 128,
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 37,
        "num_layers": 2,
        "num_heads": 4,
        "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 128,
        "feed_forward_proj": "gated-gelu",
        "is_encoder_decoder": False,
        **overrides,
    }
    return reinitialise(transformers.UMT5EncoderModel(transformers.UMT5Config(**fields)), seed)


def tiny_vision_encoder(seed: int, **overrides: Any) -> Any:
    """Build a random CLIP image tower (2 layers, width 160, 2 heads, 17 tokens) in float32.

    `overrides` are fields of `transformers.CLIPVisionConfig`. Raises UserError without
    transformers.
    """
    transformers = _transformers()
    fields: dict[str, Any] = {
        "hidden_size": 160,
        "intermediate_size": 192,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 32,
        "patch_size": 8,
        "hidden_act": "gelu",
        **overrides,
    }
    return reinitialise(transformers.CLIPVisionModel(transformers.CLIPVisionConfig(**fields)), seed)


def write_image_processor(folder: Path, image_size: int) -> None:
    """Write CLIP image preprocessing (shortest edge, centre crop, bicubic) into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {
        "crop_size": {"height": image_size, "width": image_size},
        "do_center_crop": True,
        "do_convert_rgb": True,
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_processor_type": "CLIPImageProcessor",
        "image_std": [0.26862954, 0.26130258, 0.27577711],
        "resample": 3,
        "rescale_factor": 1 / 255,
        "size": {"shortest_edge": image_size},
    }
    _write_json(folder / "preprocessor_config.json", settings)


def save(model: Any, folder: Path) -> None:
    """`model.save_pretrained(folder)` as safetensors, without transformers' progress bars."""
    with quiet():
        model.save_pretrained(folder)


@contextmanager
def quiet() -> Iterator[None]:
    """Hide transformers' progress bars while open; needs transformers."""
    logging = _transformers().utils.logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _transformers() -> Any:
    try:
        import transformers  # noqa: PLC0415
    except ImportError as error:
        raise UserError(
            "Tiny encoders are built with the package 'transformers', which is not installed.",
            code="missing_package",
            remedy="Install it, for example with: pip install transformers",
        ) from error
    return transformers


def _tokenizer_json() -> dict[str, Any]:
    pieces: list[tuple[str, float]] = [(PAD, 0.0), (END, 0.0), (UNKNOWN, 0.0), (SPACE, -2.0)]
    pieces += [(chr(code), -3.0) for code in PRINTABLE]
    metaspace = {
        "type": "Metaspace",
        "replacement": SPACE,
        "prepend_scheme": "always",
        "split": True,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_special(index, text) for index, text in enumerate((PAD, END, UNKNOWN))],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace],
        },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [_sequence("A"), _end()],
            "pair": [_sequence("A"), _end(), _sequence("B"), _end()],
            "special_tokens": {END: {"id": END, "ids": [1], "tokens": [END]}},
        },
        "decoder": metaspace,
        "model": {"type": "Unigram", "unk_id": 2, "vocab": pieces, "byte_fallback": False},
    }


def _special(index: int, text: str) -> dict[str, Any]:
    off = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": index, "content": text, **off, "special": True}


def _sequence(name: str) -> dict[str, Any]:
    return {"Sequence": {"id": name, "type_id": 0}}


def _end() -> dict[str, Any]:
    return {"SpecialToken": {"id": END, "type_id": 0}}


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
