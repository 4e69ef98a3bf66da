"""Small tokenizers made in code: no vocabulary file, no network.

    clip()                  one token per byte, alone and at the end of a word
    t5()                    one token per printable ASCII character
    gemma()                 characters, and bytes for all others; the begin token in front
    qwen(), llama(), glm()  one token per byte, and whole words where a template is long

Every one can encode any prompt, so two prompts never look the same to the text encoder.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from sgld.testing.encoders import write_character_tokenizer

PRINTABLE: Final = range(33, 127)
QWEN_SPECIAL: Final = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>",
    "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip
QWEN_CHAT: Final = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
LLAMA_SPECIAL: Final = (
    "<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
    "<|eot_id|>", "<pad>",
)  # fmt: skip
GLM_SPECIAL: Final = ("<|endoftext|>", "[gMASK]", "<sop>", "<|user|>", "<|assistant|>")


def clip(pad: str = "<|endoftext|>") -> Any:
    """A CLIP tokenizer: 256 bytes, 256 bytes that end a word, start 512 and end 513.

    `pad` is the token after the end; SDXL's second tokenizer uses `!`.
    """
    from transformers import CLIPTokenizer  # noqa: PLC0415

    letters = _bytes()
    pieces = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>"]
    vocab = {piece: index for index, piece in enumerate([*pieces, "<|endoftext|>"])}
    # Merges join nothing but the mark of a word's end, which the vocabulary has for each byte.
    return CLIPTokenizer(vocab=vocab, merges=[], model_max_length=77, pad_token=pad)


def t5(max_length: int = 512) -> Any:
    """A T5 tokenizer with 98 tokens: pad 0, end 1, unknown 2, the word mark, then `!` to `~`."""
    from transformers import AutoTokenizer  # noqa: PLC0415

    with TemporaryDirectory(prefix="sgld-") as folder:
        write_character_tokenizer(Path(folder), max_length=max_length)
        return AutoTokenizer.from_pretrained(folder)


def gemma() -> Any:
    """A Gemma tokenizer: pad 0, end 1, begin 2, unknown 3, mask 4, bytes, then characters."""
    from transformers import GemmaTokenizer  # noqa: PLC0415

    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    octets = [f"<0x{value:02X}>" for value in range(256)]
    pieces = [*special, *octets, "▁", *map(chr, PRINTABLE)]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    return GemmaTokenizer(vocab=vocab, merges=[], padding_side="right", model_max_length=8192)


def qwen(template: str = "") -> Any:
    """A Qwen2 tokenizer with the chat template of a language model.

    The words of `template` get a token each: pipelines cut a fixed number of tokens off the front,
    and with one token per byte nothing of the prompt would be left within their length.
    """
    from transformers import Qwen2Tokenizer  # noqa: PLC0415

    vocab = {piece: index for index, piece in enumerate([*QWEN_SPECIAL, *_bytes()])}
    made = Qwen2Tokenizer(
        vocab=vocab,
        merges=[],
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_max_length=131072,
        padding_side="right",
        extra_special_tokens=list(QWEN_SPECIAL[1:]),
    )
    made.add_tokens(words(template))
    made.chat_template = QWEN_CHAT
    return made


def llama(template: str = "") -> Any:
    """A Llama 3 tokenizer: the begin token in front; `template` as in `qwen`."""
    return _fast(
        LLAMA_SPECIAL,
        words(template),
        begin="<|begin_of_text|>",
        bos_token="<|begin_of_text|>",
        eos_token="<|end_of_text|>",
        pad_token="<pad>",
        padding_side="right",
    )


def glm() -> Any:
    """A GLM-4 tokenizer: mask and begin tokens in front, padding on the left."""
    return _fast(
        GLM_SPECIAL,
        (),
        begin="[gMASK]<sop>",
        eos_token="<|endoftext|>",
        pad_token="<|endoftext|>",
        padding_side="left",
    )


def words(template: str) -> list[str]:
    """The different words of a template with three letters or more, in order of appearance."""
    letters = "".join(letter if letter.isalpha() else " " for letter in template)
    return list(dict.fromkeys(word for word in letters.split() if len(word) > 2))


def _fast(special: Sequence[str], added: Sequence[str], *, begin: str, **settings: Any) -> Any:
    """One token per byte behind `special`, then `added`; `begin` is put before every text."""
    from tokenizers import AddedToken, Tokenizer, decoders, models  # noqa: PLC0415
    from tokenizers.pre_tokenizers import ByteLevel  # noqa: PLC0415
    from tokenizers.processors import TemplateProcessing  # noqa: PLC0415
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415

    vocab = {piece: index for index, piece in enumerate([*special, *_bytes()])}
    # Typed as Any: the package's stubs do not know that these attributes can be set.
    made: Any = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    made.pre_tokenizer = ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(text, special=True) for text in special])
    made.add_tokens([AddedToken(text, special=False) for text in added])
    front = [text for text in special if text in begin]
    made.post_processor = TemplateProcessing(
        single=[*front, "$A"],
        pair=[*front, "$A", "$B"],
        special_tokens=[(text, vocab[text]) for text in front],
    )
    return PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=131072, **settings)


def _bytes() -> list[str]:
    from tokenizers.pre_tokenizers import ByteLevel  # noqa: PLC0415

    return sorted(ByteLevel.alphabet())
