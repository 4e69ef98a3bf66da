"""`OutputOptions`: where results are written, in which format, and what is kept beside them.

Formats, quality words and presets are those of `sgld.media.formats`, the only place with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import BeforeValidator

from sgld.api.errors import ParameterError
from sgld.media.formats import (
    ALIASES,
    QUALITY_WORDS,
    OutputFormat,
    Preset,
    format_of_name,
    quality_number,
)
from sgld.media.formats import Quality as AnyQuality
from sgld.media.names import check_file_name
from sgld.params.options import Finding, Options, Settled, Text, as_path, option, scalar

QUALITIES: Final[Mapping[str, int | None]] = {"default": None, **QUALITY_WORDS}
"""Quality words as numbers; None leaves the choice to the format."""

QUALITY_RULE: Final = f"a whole number from 0 to 100 (higher is better) or {', '.join(QUALITIES)}"


def read_quality(value: Any) -> Any:
    """A quality word or number; raises `ValueError` with the rule for anything else."""
    try:
        if value is not None:
            quality_number(value, moving=True)
            return value
    except (ParameterError, TypeError):
        pass
    raise ValueError(f"must be {QUALITY_RULE}")


def _file_name(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return check_file_name(value)
    except ParameterError as error:
        problem = error.problems[0]
        raise ValueError(f"{problem.message} {problem.remedy}") from None


def _format(value: Any) -> Any:
    return ALIASES.get(value, value) if isinstance(value, str) else value


Quality = Annotated[AnyQuality, BeforeValidator(read_quality), Text(scalar)]


class OutputOptions(Options):
    """How finished outputs become files."""

    save_output: bool = option(True, "Write files at all; off only measures.")
    output_path: Annotated[str, BeforeValidator(as_path)] = option(
        "outputs", "Folder for the files; made when missing.", rule="text that is not empty",
        min_length=1,
    )  # fmt: skip
    output_file_name: Annotated[str | None, BeforeValidator(_file_name)] = option(
        None, "File name; otherwise it is made from prompt, time and parameters."
    )
    output_format: Annotated[OutputFormat | None, BeforeValidator(_format)] = option(
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
        found = format_of_name(name) if isinstance(name, str) else None
        if found is None:
            return Settled(values)
        named, ending = found.name, found.extension
        if wanted is None and "output_format" in values:
            return Settled({**values, "output_format": named})
        if wanted in (None, named):
            return Settled(values)
        message = f"{wanted} contradicts the ending {ending} of output_file_name."
        return Settled(values, (), (Finding("output_format", message, "Give one of them."),))
