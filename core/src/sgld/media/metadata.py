"""The JSON that travels inside finished files, and how each format carries it.

PNG: iTXt chunk `sgld` · JPEG and WebP: EXIF UserComment · MP4 and WebM: the `comment` tag ·
GIF: a comment extension · frames: `metadata.json` in the folder.
`sgld.media.sidecar` reads them back.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence, Set
from enum import Enum
from fractions import Fraction
from typing import Any

import numpy as np
from PIL import Image
from PIL.PngImagePlugin import PngInfo

PNG_KEYWORD = "sgld"
FRAMES_FILE = "metadata.json"
EXIF_FOLDER = 0x8769
USER_COMMENT = 0x9286
# The eight bytes that the EXIF standard puts before a comment to name its character set.
ASCII_MARK = b"ASCII\x00\x00\x00"
# A JPEG segment holds 65,533 bytes; the rest of the EXIF block needs a few dozen.
JPEG_ROOM = 65_000


def plain(value: Any) -> Any:
    """Turn a value into JSON types; what JSON cannot hold (paths, enums, NaN) becomes text."""
    if isinstance(value, str):
        # Lone surrogates come from undecodable command lines and cannot be written as UTF-8.
        return str(value).encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, Enum):
        return plain(value.value)
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, Fraction):
        return value.numerator if value.denominator == 1 else float(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, (np.generic, np.ndarray)):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {plain(str(key)): plain(item) for key, item in value.items()}
    if isinstance(value, (Sequence, Set)) and not isinstance(value, (bytes, bytearray)):
        return [plain(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain({f.name: getattr(value, f.name) for f in dataclasses.fields(value)})
    return plain(str(value))


def to_json(
    payload: Mapping[str, Any], *, ascii_only: bool = False, indent: int | None = None
) -> str:
    """Write strict JSON (no NaN), readable in every script unless `ascii_only`."""
    return json.dumps(plain(payload), ensure_ascii=ascii_only, indent=indent, allow_nan=False)


def from_json(text: str | bytes) -> dict[str, Any] | None:
    """Read embedded JSON; None when it is not a JSON object."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def fit_json(payload: Mapping[str, Any], room: int) -> str:
    """ASCII JSON of at most `room` bytes: the longest texts are cut, and `truncated` says so."""
    text = to_json(payload, ascii_only=True)
    keep = room
    shortened = plain(payload)
    while len(text) > room and keep > 16:
        keep //= 2
        shortened = {**_shorten(shortened, keep), "truncated": True}
        text = to_json(shortened, ascii_only=True)
    return text if len(text) <= room else json.dumps({"truncated": True})


def _shorten(value: Any, keep: int) -> Any:
    if isinstance(value, str):
        return value if len(value) <= keep else value[:keep] + "…"
    if isinstance(value, dict):
        return {key: _shorten(item, keep) for key, item in value.items()}
    if isinstance(value, list):
        return [_shorten(item, keep) for item in value]
    return value


def png_text(payload: Mapping[str, Any]) -> PngInfo:
    """Build the iTXt chunk of a PNG."""
    info = PngInfo()
    info.add_itxt(PNG_KEYWORD, to_json(payload))
    return info


def exif(payload: Mapping[str, Any], room: int | None = None) -> bytes:
    """Build an EXIF block whose UserComment is the JSON, cut to `room` bytes if given."""
    text = to_json(payload, ascii_only=True) if room is None else fit_json(payload, room)
    block = Image.Exif()
    block.get_ifd(EXIF_FOLDER)[USER_COMMENT] = ASCII_MARK + text.encode("ascii")
    return block.tobytes()


def with_gif_comment(data: bytes, payload: Mapping[str, Any]) -> bytes:
    """Insert a comment extension before the first frame of a GIF."""
    text = to_json(payload).encode("utf-8")
    packed = data[10]
    # Header and screen description take 13 bytes; a global palette of 2^(n+1) colours may follow.
    start = 13 + (3 << ((packed & 7) + 1) if packed & 0x80 else 0)
    blocks = (text[at : at + 255] for at in range(0, len(text), 255))
    comment = b"\x21\xfe" + b"".join(bytes([len(b)]) + b for b in blocks) + b"\0"
    return data[:start] + comment + data[start:]
