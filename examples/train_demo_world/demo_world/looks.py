"""What the world can look like, and the captions that ask for it.

    day | dusk | night  x  clear | fog  x  warm | cold | mono  x  tall | low        36 looks

A look is four words. A caption names any of them by any of their words, in any order, among filler;
what it does not name is day, clear, warm, tall. The text encoder reads words (`write_tokenizer`),
so the vocabulary is fixed and every other word is one and the same unknown token.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

TIMES: Final = ("day", "dusk", "night")
WEATHERS: Final = ("clear", "fog")
PALETTES: Final = ("warm", "cold", "mono")
SHAPES: Final = ("tall", "low")
AXES: Final[tuple[tuple[str, ...], ...]] = (TIMES, WEATHERS, PALETTES, SHAPES)

WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "day": ("day", "noon", "daylight", "sunny", "bright", "morning"),
    "dusk": ("dusk", "sunset", "evening", "twilight"),
    "night": ("night", "midnight", "dark", "moonlit"),
    "clear": ("clear", "cloudless", "crisp"),
    "fog": ("fog", "foggy", "mist", "misty", "haze", "hazy"),
    "warm": ("warm", "red", "orange", "golden", "desert"),
    "cold": ("cold", "blue", "icy", "frozen", "winter"),
    "mono": ("mono", "grey", "gray", "monochrome", "colorless", "stone"),
    "tall": ("tall", "high", "towering", "towers"),
    "low": ("low", "short", "small", "stumps"),
}
"""The words that mean each value; the first one is its name."""

FILLER: Final = (
    *("a", "an", "the", "in", "at", "on", "of", "with", "and", "under", "over", "through", "among"),
    *("by", "it", "is", "very", "some", "walk", "walking", "world", "place", "land", "landscape"),
    *("view", "scene", "pillars", "pillar", "columns", "column", "blocks", "ground", "floor"),
    *("field", "sky", "weather", "air", "light", "colors", "colours", "color", "colour"),
    *("palette", "time"),
)
PAD, END, UNKNOWN = "<pad>", "</s>", "<unk>"
VOCABULARY: Final = (
    PAD,
    END,
    UNKNOWN,
    ",",
    ".",
    *(word for words in WORDS.values() for word in words),
    *FILLER,
)
IDS: Final[Mapping[str, int]] = {word: index for index, word in enumerate(VOCABULARY)}
TEXT_LENGTH: Final = 16
"""Tokens of a caption, the end token included; longer ones are cut."""


class Look(NamedTuple):
    """One of the 36 looks, by the names of its four values."""

    time: str = "day"
    weather: str = "clear"
    palette: str = "warm"
    shape: str = "tall"

    @property
    def indices(self) -> tuple[int, int, int, int]:
        """Places of the four values on their axes."""
        return tuple(axis.index(word) for axis, word in zip(AXES, self, strict=True))  # type: ignore


ALL: Final = tuple(
    Look(time, weather, palette, shape)
    for time in TIMES
    for weather in WEATHERS
    for palette in PALETTES
    for shape in SHAPES
)


def read_caption(caption: str) -> Look:
    """The look that a caption asks for; of two words of one axis the last one counts."""
    look = Look()
    meaning = {word: value for value, words in WORDS.items() for word in words}
    for word in caption.lower().replace(",", " ").replace(".", " ").split():
        value = meaning.get(word)
        for name, axis in zip(Look._fields, AXES, strict=True):
            if value in axis:
                look = look._replace(**{name: value})
    return look


def plain_caption(look: Look) -> str:
    """The shortest caption of a look: its four names."""
    return " ".join(look)


def random_look(draw: random.Random) -> Look:
    """Any look."""
    return draw.choice(ALL)


def changed(look: Look, draw: random.Random) -> Look:
    """Another look: one word of it is another, in a quarter of all cases several may be."""
    while True:
        if draw.random() < 0.25:
            new = random_look(draw)
        else:
            axis = draw.randrange(len(AXES))
            new = look._replace(**{Look._fields[axis]: draw.choice(AXES[axis])})
        if new != look:
            return new


def random_caption(look: Look, draw: random.Random) -> str:
    """Words for a look as somebody may say it: synonyms, any order, filler, unknown words; what is
    the default anyway is sometimes left out."""
    if draw.random() < 0.3:
        return plain_caption(look)
    named = []
    for value, default in zip(look, Look(), strict=True):
        if value == default and draw.random() < 0.35:
            continue
        words = WORDS[value]
        named.append(words[0] if draw.random() < 0.5 else draw.choice(words))
    draw.shuffle(named)
    room = TEXT_LENGTH - 1 - len(named)
    for _ in range(min(room, draw.choice((0, 0, 1, 2, 3, 4, 6)))):
        filler = draw.choice((*FILLER, ",", "zzz")) if draw.random() < 0.9 else "zzz"
        named.insert(draw.randint(0, len(named)), filler)
    return " ".join(named)


def token_ids(caption: str) -> list[int]:
    """What the tokenizer of `write_tokenizer` makes of a caption, padded to `TEXT_LENGTH`."""
    words = caption.lower().replace(",", " , ").replace(".", " . ").split()
    ids = [IDS.get(word, IDS[UNKNOWN]) for word in words][: TEXT_LENGTH - 1]
    ids.append(IDS[END])
    return ids + [IDS[PAD]] * (TEXT_LENGTH - len(ids))


def write_tokenizer(folder: Path) -> None:
    """Write a word tokenizer that `transformers.AutoTokenizer` reads."""
    folder.mkdir(parents=True, exist_ok=True)
    special = [PAD, END, UNKNOWN]
    off = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    end = {"SpecialToken": {"id": END, "type_id": 0}}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": IDS[word], "content": word, **off, "special": True} for word in special
        ],
        "normalizer": {"type": "Lowercase"},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": "[,.]"}, "behavior": "Isolated",
                 "invert": False},
                {"type": "WhitespaceSplit"},
            ],
        },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"Sequence": {"id": "A", "type_id": 0}}, end],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, end,
                     {"Sequence": {"id": "B", "type_id": 0}}, end],
            "special_tokens": {END: {"id": END, "ids": [IDS[END]], "tokens": [END]}},
        },
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": dict(IDS), "unk_token": UNKNOWN},
    }  # fmt: skip
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": TEXT_LENGTH,
        "pad_token": PAD,
        "eos_token": END,
        "unk_token": UNKNOWN,
    }
    for name, content in (("tokenizer.json", tokenizer), ("tokenizer_config.json", settings)):
        text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        (folder / name).write_text(text, encoding="utf-8")


def batch_ids(captions: Sequence[str]) -> list[list[int]]:
    """`token_ids` of each."""
    return [token_ids(caption) for caption in captions]
