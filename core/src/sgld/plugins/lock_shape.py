"""Whether JSON has the form of a lock: every field is there, none is unknown, each has its type.

Public: `misshapen(plain) -> list[str]`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, cast, get_args

from sgld.plugins.find import Found, Source


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, cast("list[Any]", value)))


def _is_table(value: Any) -> bool:
    """Text to text; the keys of a JSON object are text in any case."""
    return isinstance(value, dict) and all(map(_is_text, cast("dict[str, Any]", value).values()))


Check = tuple[Callable[[Any], bool], str]

TEXT: Final[Check] = (_is_text, "text")
TABLE: Final[Check] = (_is_table, "an object of texts")
FIELDS: Final[Mapping[str, Check]] = {
    "core": TEXT,
    "plugins": (lambda value: isinstance(value, list), "a list"),
    "platform": TEXT,
    "pipeline": TEXT,
    "choices": TABLE,
    "features": (_is_texts, "a list of texts"),
    "prefer": TABLE,
    "records": TEXT,
    "digest": TEXT,
}
PLUGIN: Final[Mapping[str, Check]] = {
    **dict.fromkeys(Found._fields, TEXT),
    "source": (
        lambda value: _is_text(value) and value in get_args(Source),
        f"one of {', '.join(get_args(Source))}",
    ),
}


def misshapen(plain: Any) -> list[str]:
    """What is wrong with the form of a lock, each in a few words; empty when nothing is."""
    wrong = list(_faults("it", plain, FIELDS))
    if wrong:
        return wrong
    rows = enumerate(plain["plugins"])
    return [fault for i, row in rows for fault in _faults(f"plugins[{i}]", row, PLUGIN)]


def _faults(name: str, value: Any, checks: Mapping[str, Check]) -> Iterable[str]:
    if not isinstance(value, dict):
        yield f"{name} is no object"
        return
    table = cast("dict[str, Any]", value)
    for key in sorted(table.keys() - checks.keys()):
        yield f"{name} has an unknown field {key!r:.80}"
    for key, (fits, what) in checks.items():
        if key not in table:
            yield f"{name} has no field {key!r}"
        elif not fits(table[key]):
            yield f"{key} of {name} is {table[key]!r:.80}, not {what}"
