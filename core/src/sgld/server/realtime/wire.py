"""MessagePack maps in and out, within limits that hold before anything is built.

A few bytes of MessagePack can stand for gigabytes of Python objects (nested empty lists). So the
structure is walked first, by its headers alone: a message has at most `MAX_OBJECTS` values, nested
at most `MAX_DEPTH` deep, whatever its size; long texts and bytes cost nothing. The message itself
has at most `MAX_FIELDS` keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgpack

from sgld.api.errors import UserError

MAX_OBJECTS: Final = 100_000
MAX_DEPTH: Final = 16
MAX_FIELDS: Final = 200
"""Keys of a message itself, as of the body of any other request; each unknown one costs a guess."""
MAX_TYPE: Final = 40
"""Characters of a `type` that an error repeats."""

# First byte of an object → how many bytes its length takes, or its own size.
_SIZED: Final = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
_FIXED: Final = {0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4,
                 0xD3: 8}  # fmt: skip
_ARRAYS: Final = {0xDC: 2, 0xDD: 4}
_MAPS: Final = {0xDE: 2, 0xDF: 4}
_CONSTANTS: Final = frozenset({0xC0, 0xC2, 0xC3})


class MessageError(UserError):
    """A message that cannot be taken; codes `text_frame`, `invalid_message`,
    `message_too_complex`, and those of `sgld.server.realtime.messages`."""

    code = "invalid_message"


def unpack(data: bytes) -> dict[str, Any]:
    """The map in a binary frame: null, booleans, numbers, texts, bytes, lists and maps.

    Raises:
        MessageError: it is no MessagePack map, or beyond the limits.
    """
    _check(data)
    try:
        # `_map` looks at the keys before there is a map; it is stricter than `strict_map_key`.
        message = msgpack.unpackb(data, raw=False, strict_map_key=False, object_pairs_hook=_map)
    except UnicodeDecodeError:
        raise MessageError("the message has a text that is not UTF-8.") from None
    except (ValueError, TypeError) as error:
        raise MessageError(f"the message cannot be read: {_words(error)}") from None
    if not isinstance(message, dict):
        raise MessageError(f"the message is {_name(message)}.", remedy="Send a MessagePack map.")
    if len(message) > MAX_FIELDS:
        limit = f"{len(message)} fields; at most {MAX_FIELDS} are taken"
        raise MessageError(f"the message has {limit}.", code="message_too_complex")
    return message


def pack(message: Mapping[str, Any]) -> bytes:
    """A map as one binary frame."""
    return msgpack.packb(message, use_bin_type=True) or b""


def type_of(message: Mapping[str, Any]) -> str:
    """The `type` of a message. Raises `MessageError` when it has none."""
    kind = message.get("type")
    if not isinstance(kind, str):
        raise MessageError('the message has no "type".', remedy="Give it as text.")
    return kind


def shown(text: str) -> str:
    """A text of a client, short enough for an error."""
    return text if len(text) <= MAX_TYPE else text[: MAX_TYPE - 3] + "..."


def _check(data: bytes) -> None:
    """Walk the headers. Raises `MessageError` for what is cut off, too large or no MessagePack."""
    place, end, objects = 0, len(data), 0
    open_counts = [1]  # how many objects are still to come on each level
    while open_counts:
        if open_counts[-1] == 0:
            open_counts.pop()
            continue
        open_counts[-1] -= 1
        objects += 1
        if objects > MAX_OBJECTS:
            limit = f"more than {MAX_OBJECTS} values"
            raise MessageError(f"the message has {limit}.", code="message_too_complex")
        if place >= end:
            raise _cut_off()
        place, children = _header(data, place)
        if place > end:
            raise _cut_off()
        # Each value takes a byte at least, so a count beyond that is a lie or a cut.
        if children > end - place:
            raise _cut_off()
        if children:
            open_counts.append(children)
            if len(open_counts) > MAX_DEPTH:
                limit = f"nested more than {MAX_DEPTH} deep"
                raise MessageError(f"the message is {limit}.", code="message_too_complex")
    if place != end:
        raise MessageError(f"{end - place} bytes follow the message in its frame.")


def _header(data: bytes, place: int) -> tuple[int, int]:
    """Where the object at `place` ends (of a container: its header), and how many it holds."""
    first = data[place]
    place += 1
    if first <= 0x7F or first >= 0xE0 or first in _CONSTANTS:
        return place, 0
    if first <= 0x8F:
        return place, 2 * (first & 0x0F)
    if first <= 0x9F:
        return place, first & 0x0F
    if first <= 0xBF:
        return place + (first & 0x1F), 0
    if first in _FIXED:
        return place + _FIXED[first], 0
    if first in _SIZED:
        width = _SIZED[first]
        return place + width + _number(data, place, width), 0
    if first in _ARRAYS:
        width = _ARRAYS[first]
        return place + width, _number(data, place, width)
    if first in _MAPS:
        width = _MAPS[first]
        return place + width, 2 * _number(data, place, width)
    raise MessageError(
        f"the message has a byte 0x{first:02x}, which is no MessagePack that is taken here."
    )


def _number(data: bytes, place: int, width: int) -> int:
    if place + width > len(data):
        raise _cut_off()
    return int.from_bytes(data[place : place + width], "big")


def _cut_off() -> MessageError:
    return MessageError("the message is cut off.", remedy="Send whole MessagePack maps.")


def _map(pairs: list[tuple[Any, Any]]) -> dict[str, Any]:
    for key, _ in pairs:
        if type(key) is not str:
            text = f"a map in the message has a key that is {_name(key)}."
            raise MessageError(text, remedy="Keys are texts.")
    return dict(pairs)


def _words(error: Exception) -> str:
    text = str(error).rstrip(".") or type(error).__name__
    return f"{text[:100]}."


def _name(value: Any) -> str:
    names: Mapping[type, str] = {list: "a list", str: "a text", bytes: "bytes", bool: "a boolean",
                                   dict: "a map"}  # fmt: skip
    if value is None:
        return "null"
    return names.get(type(value), "a number")
