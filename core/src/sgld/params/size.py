"""Picture sizes and clip lengths: reading them, and the grid that a model works on.

A size that the user wrote is never changed: off the grid it is refused with the nearest two. A
size *name* (`720p`) and a size taken from an input picture are put on the grid, with a note.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Final

from sgld.params.options import Unreadable

SIZES: Final[Mapping[str, tuple[int, int]]] = {
    "480p": (832, 480),
    "720p": (1280, 720),
    "1080p": (1920, 1080),
    "2k": (2560, 1440),
    "4k": (3840, 2160),
}
"""Size names: width and height in pixels before they are put on a model's grid."""

PATTERN: Final = re.compile(r"\s*([0-9]{1,7})\s*[xX×]\s*([0-9]{1,7})\s*")
RULE: Final = 'WIDTHxHEIGHT in pixels such as "832x480", "auto", or one of ' + ", ".join(SIZES)


def parse_size(text: object) -> tuple[int, int] | str:
    """Width and height of `"WxH"` (blanks and a capital X are fine), or `auto` or a size name.

    Raises `Unreadable` with the rule for anything else, such as `64*64`, `64x0` or `64x64x64`.
    """
    if isinstance(text, str):
        word = text.strip().lower()
        if word == "auto" or word in SIZES:
            return word
        found = PATTERN.fullmatch(text)
        if found and int(found[1]) > 0 and int(found[2]) > 0:
            return int(found[1]), int(found[2])
    raise Unreadable(f"must be {RULE}")


def floor_to(value: int, unit: int, least: int = 0) -> int:
    """The largest multiple of `unit` not above `value`, but at least `least`."""
    return max(value // unit * unit, least)


def neighbours(width: int, height: int, unit: int, least: int) -> tuple[str, str]:
    """The sizes on the grid just below and just above, as text."""
    below = (floor_to(width, unit, least), floor_to(height, unit, least))
    above = tuple(max(-(-side // unit) * unit, least) for side in (width, height))
    return f"{below[0]}x{below[1]}", f"{above[0]}x{above[1]}"


def round_frames(frames: int, stride: int) -> int:
    """Round a frame count down to the lengths a video model makes: `stride`·k + 1, at least 1.

    Raises `ValueError` below one frame.
    """
    if frames < 1:
        raise ValueError(f"a clip has at least 1 frame, not {frames}")
    return (frames - 1) // stride * stride + 1


def fit_area(width: int, height: int, area: int, unit: int, least: int) -> tuple[int, int]:
    """The size on the grid with the shape of `width`x`height` and at most `area` pixels.

    Both sides are rounded down to `unit`; very long shapes keep at least `least` on the short side
    and give up length so that the area still holds.
    """
    ratio = width / height
    wanted_height = max(floor_to(round(math.sqrt(area / ratio)), unit), least)
    wanted_width = max(floor_to(round(math.sqrt(area * ratio)), unit), least)
    if wanted_width * wanted_height > area:
        if wanted_width >= wanted_height:
            wanted_width = floor_to(area // wanted_height, unit, least)
        else:
            wanted_height = floor_to(area // wanted_width, unit, least)
    return wanted_width, wanted_height
