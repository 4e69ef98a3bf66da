"""Which file formats can be written, and how one quality number is meant in each of them.

Quality is 0..100 in every format and higher is always better (never "more compression"). The
tables here are the only place that knows codec scales; docs/outputs.md shows them to users.

    find_format(name)            "mp4" -> Format
    quality_number("high")       words and numbers -> 0..100
    frame_rate(23.976)           -> Fraction(24000, 1001)
"""

from __future__ import annotations

import math
from fractions import Fraction
from numbers import Integral, Real
from pathlib import PurePath
from typing import Literal, NamedTuple, get_args

from sgld.api.errors import ParameterError, Problem

OutputFormat = Literal["mp4", "webm", "gif", "frames", "png", "jpeg", "webp"]
Quality = int | Literal["default", "maximum", "high", "medium", "low"]
Preset = Literal[
    "ultrafast", "superfast", "veryfast", "faster", "fast", "medium", "slow", "slower", "veryslow",
    "placebo",
]  # fmt: skip


class Format(NamedTuple):
    """One output format.

    Args:
        name: what users write.
        extension: file ending with its dot; empty for a folder.
        moving: holds several frames.
        longest_side: most pixels a side may have, a limit of the format or its encoder.
        even: both sides must be even, because colour is stored at half size.
    """

    name: str
    extension: str
    moving: bool
    longest_side: int
    even: bool = False


FORMATS: dict[str, Format] = {
    # H.264 level 6.2 ends at 16,384; VP9 and GIF at 16-bit sides; WebP at 14 bits, less one.
    "mp4": Format("mp4", ".mp4", True, 16384, even=True),
    "webm": Format("webm", ".webm", True, 65535),
    "gif": Format("gif", ".gif", True, 65535),
    "frames": Format("frames", "", True, 65535),
    "png": Format("png", ".png", False, 65535),
    "jpeg": Format("jpeg", ".jpg", False, 65500),
    "webp": Format("webp", ".webp", False, 16383),
}
ALIASES = {"jpg": "jpeg"}
FOREIGN = frozenset(
    ["avi", "mov", "mkv", "m4v", "mpg", "mpeg", "wmv", "flv", "ogv", "ts", "apng", "avif", "bmp",
     "tif", "tiff", "heic", "jxl", "json", "safetensors"]
)  # fmt: skip
"""Endings of formats that cannot be written; any other unknown ending is part of a name."""

QUALITY_WORDS = {"maximum": 100, "high": 90, "medium": 55, "low": 35}
DEFAULT_VIDEO_QUALITY = 50
DEFAULT_IMAGE_QUALITY = 75

PRESETS: tuple[Preset, ...] = get_args(Preset)
DEFAULT_PRESET = "fast"

# Outside these a rate is a typing mistake (milliseconds for frames per second, say).
FASTEST_RATE = 1000
SLOWEST_RATE = 0.01


def refuse(field: str, value: object, message: str, remedy: str) -> ParameterError:
    """Build the error of one wrong parameter."""
    return ParameterError([Problem(field, value, message, remedy)])


def find_format(name: str, *, moving: bool | None = None, field: str = "output_format") -> Format:
    """Look a format up by the name users write; `moving` narrows it to videos or pictures."""
    key = str(name).strip().lower().lstrip(".")
    found = FORMATS.get(ALIASES.get(key, key))
    if found is None or (moving is not None and found.moving != moving):
        names = [f.name for f in FORMATS.values() if moving is None or f.moving == moving]
        what = {None: "an output format", True: "a video format", False: "a picture format"}
        raise refuse(field, name, f"is not {what[moving]}.", f"Use one of {', '.join(names)}.")
    return found


def format_of_name(file_name: str) -> Format | None:
    """Tell the format from a file name's ending, or None if the ending means nothing here."""
    ending = PurePath(file_name).suffix.lower().lstrip(".")
    found = FORMATS.get(ALIASES.get(ending, ending))
    return found if found is not None and found.extension else None


def check_side(height: int, width: int, kind: Format, *, field: str = "output_format") -> None:
    """Refuse a picture that the format cannot hold."""
    if max(height, width) > kind.longest_side:
        raise refuse(
            field,
            kind.name,
            f"cannot hold {width}x{height}; its longest side is {kind.longest_side} pixels.",
            "Choose a smaller size, or png or frames.",
        )


def quality_number(quality: Quality | None, *, moving: bool, field: str = "output_quality") -> int:
    """Turn a quality word or number into 0..100; None and `default` mean 50 (video) or 75."""
    if quality is None or quality == "default":
        return DEFAULT_VIDEO_QUALITY if moving else DEFAULT_IMAGE_QUALITY
    if isinstance(quality, str) and quality in QUALITY_WORDS:
        return QUALITY_WORDS[quality]
    if isinstance(quality, Integral) and not isinstance(quality, bool):
        number = int(quality)
        if 0 <= number <= 100:
            return number
    raise refuse(
        field,
        quality,
        "is not a quality.",
        f"Use 0 to 100 (higher is better) or default, {', '.join(QUALITY_WORDS)}.",
    )


def x264_crf(quality: int) -> int:
    """CRF 51 (worst) to 1; 0 would switch to a lossless profile that browsers cannot play."""
    return max(1, (100 - quality) * 51 // 100)


def vp9_crf(quality: int) -> int:
    """CRF 63 (worst) to 1; 0 would switch to the lossless mode."""
    return max(1, (100 - quality) * 63 // 100)


def vp9_speed(preset: str) -> int:
    """Map the ten preset names to VP9's `cpu-used`: 8 (fast) to 0 (thorough)."""
    return max(0, 8 - PRESETS.index(preset))


def gif_colours(quality: int) -> int:
    """Palette size: 16 at quality 0, rising to all 256 at 50, the default, and above."""
    return min(256, 16 + 240 * quality // 50)


def png_level(quality: int) -> int:
    """zlib level 9 (smallest, slowest) at quality 0 to 1 at 100; the pixels are always exact."""
    return 1 + round((100 - quality) * 8 / 100)


def check_preset(preset: str | None, *, field: str = "x264_preset") -> str:
    """Return the encoder preset, `fast` when none is given."""
    if preset is None:
        return DEFAULT_PRESET
    if preset not in PRESETS:
        raise refuse(field, preset, "is not an encoder preset.", f"Use {', '.join(PRESETS)}.")
    return preset


def frame_rate(fps: int | float | Fraction, *, field: str = "fps") -> Fraction:
    """Return frames per second as an exact fraction; 23.976, 29.97 … mean n * 1000 / 1001."""
    number = isinstance(fps, Real) and not isinstance(fps, bool) and math.isfinite(fps)
    if not number or not SLOWEST_RATE <= fps <= FASTEST_RATE:
        raise refuse(
            field,
            fps,
            "is not a frame rate.",
            f"Use a number of frames per second from {SLOWEST_RATE} to {FASTEST_RATE}.",
        )
    exact = fps if isinstance(fps, Fraction) else Fraction(float(fps))
    broadcast = Fraction(math.ceil(exact) * 1000, 1001)
    # People write the broadcast rates with two or three digits; files need the exact value.
    if exact.denominator != 1 and abs(broadcast - exact) < Fraction(5, 1000):
        return broadcast
    # Containers keep both numbers in 32 bits.
    return exact.limit_denominator(100_000)
