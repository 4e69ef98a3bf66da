"""`OutputOptions`: where results are written, in which format, and what is kept beside them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator

from sgld.params.options import Finding, Options, Settled, Text, as_text, option, scalar

QUALITIES: Final[Mapping[str, int | None]] = {
    "default": None,
    "maximum": 100,
    "high": 90,
    "medium": 55,
    "low": 35,
}
"""Quality words as numbers; None leaves the choice to the format."""

QUALITY_RULE: Final = f"a whole number from 0 to 100 (higher is better) or {', '.join(QUALITIES)}"
ENDINGS: Final[Mapping[str, str]] = {
    ".mp4": "mp4", ".webm": "webm", ".gif": "gif", ".png": "png", ".jpg": "jpeg",
    ".jpeg": "jpeg", ".webp": "webp",
}  # fmt: skip
"""File name ending → format."""


def read_quality(value: Any) -> Any:
    """A quality word or number; raises `ValueError` with the rule for anything else."""
    if isinstance(value, str) and value in QUALITIES:
        return value
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 100:
        return value
    raise ValueError(f"must be {QUALITY_RULE}")


def _file_name(value: Any) -> Any:
    if isinstance(value, str):
        bad = not value.strip() or value in (".", "..") or any(c in value for c in "/\\\0")
        if bad or len(value.encode()) > 255:
            raise ValueError(
                "must be a plain file name of at most 255 bytes without / or \\; "
                "use output_path for the folder"
            )
    return value


def _format(value: Any) -> Any:
    return "jpeg" if value == "jpg" else value


Quality = Annotated[
    Literal["default", "maximum", "high", "medium", "low"] | int,
    BeforeValidator(read_quality),
    Text(scalar),
]
Format = Literal["mp4", "webm", "gif", "frames", "png", "jpeg", "webp"]
Preset = Literal[
    "ultrafast", "superfast", "veryfast", "faster", "fast", "medium", "slow", "slower", "veryslow",
    "placebo",
]  # fmt: skip


class OutputOptions(Options):
    """How finished outputs become files."""

    save_output: bool = option(True, "Write files at all; off only measures.")
    output_path: Annotated[str, BeforeValidator(as_text)] = option(
        "outputs", "Folder for the files; made when missing.", rule="text that is not empty",
        min_length=1,
    )  # fmt: skip
    output_file_name: Annotated[str | None, BeforeValidator(_file_name)] = option(
        None, "File name; otherwise it is made from prompt, time and parameters."
    )
    output_format: Annotated[Format | None, BeforeValidator(_format)] = option(
        None,
        "File format; otherwise the ending of the file name, or mp4 for clips, png for images.",
    )
    output_quality: Quality = option(
        "default", "Quality of the encoder; higher is better.", rule=QUALITY_RULE
    )
    x264_preset: Preset = option("fast", "Speed of the H.264 encoder; slower makes smaller files.")
    overwrite: bool = option(False, "Replace a file of the same name instead of adding a number.")
    save_latents: bool = option(False, "Also keep the final latents, as safetensors.")

    @property
    def quality(self) -> int | None:
        """The quality from 0 to 100, or None for the format's own."""
        if isinstance(self.output_quality, int):
            return self.output_quality
        return QUALITIES[self.output_quality]

    @classmethod
    def settle(cls, values: dict[str, Any], given: frozenset[str]) -> Settled:
        """Take the format from the file name's ending, and refuse one that contradicts it."""
        name, wanted = values.get("output_file_name"), values.get("output_format")
        ending = PurePath(name).suffix.lower() if isinstance(name, str) else ""
        named = ENDINGS.get(ending)
        if named is None:
            return Settled(values)
        if wanted is None and "output_format" in values:
            return Settled({**values, "output_format": named})
        if wanted in (None, named):
            return Settled(values)
        message = f"{wanted} contradicts the ending {ending} of output_file_name."
        return Settled(values, (), (Finding("output_format", message, "Give one of them."),))
