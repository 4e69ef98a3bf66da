"""How the result of a request is written and handed over, as the API spells it.

    OutputSettings      output_format, output_quality, output_compression, profile
    ├── ImageOutput     + response_format, background, stream, partial_images
    └── VideoOutput     + x264_preset, partial_images

`output_compression` is another name for `output_quality`, as in OpenAI's API: 0 to 100, higher is
better in JPEG, WebP and videos; PNG is exact and the number only sets how hard it is compressed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import BeforeValidator

from sgld.media.formats import Preset
from sgld.params.options import Convenience, Finding, Options, Settled, Unreadable, option
from sgld.params.output import QUALITIES, QUALITY_RULE, Quality

IMAGE_FORMATS: Final = ("png", "jpeg", "webp")
COMPRESSION_RULE: Final = "a whole number from 0 to 100"


def _jpg(value: Any) -> Any:
    return "jpeg" if value == "jpg" else value


class OutputSettings(Options):
    """What pictures and clips share."""

    conveniences: ClassVar[Mapping[str, Convenience]] = {
        "output_compression": Convenience(
            "Another name for output_quality: higher is better.",
            COMPRESSION_RULE,
            ("output_quality",),
            "percent",
        )
    }

    output_quality: Quality = option(
        "default", "Quality of the encoder; higher is better.", rule=QUALITY_RULE
    )
    profile: bool = option(False, "Write a profiler trace of this request on the server.")

    @classmethod
    def expand(cls, name: str, value: Any) -> dict[str, Any]:
        """Turn `output_compression` into a quality."""
        if name != "output_compression":
            return super().expand(name, value)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 100:
            raise Unreadable(f"must be {COMPRESSION_RULE}")
        return {"output_quality": value}

    @property
    def quality(self) -> int | None:
        """The quality from 0 to 100, or None for the format's own."""
        if isinstance(self.output_quality, int):
            return self.output_quality
        return QUALITIES[self.output_quality]

    def as_dict(self) -> dict[str, Any]:
        """The settings under the names used inside: `format`, `quality` and the rest as it is."""
        values = self.model_dump(mode="json", exclude={"output_format", "output_quality"})
        return {"format": getattr(self, "output_format"), "quality": self.quality} | values  # noqa: B009


class ImageOutput(OutputSettings):
    """A picture: PNG unless asked otherwise, as a URL unless asked otherwise."""

    output_format: Annotated[Literal["png", "jpeg", "webp"], BeforeValidator(_jpg)] = option(
        "png", "File format."
    )
    response_format: Literal["url", "b64_json"] = option(
        "url", "Whether the answer holds addresses of the pictures or the pictures themselves."
    )
    background: Literal["auto", "opaque", "transparent"] = option("auto", "Always opaque here.")
    stream: bool = option(
        False, "Answer with server-sent events: previews, then the picture. Only with n=1."
    )
    partial_images: int = option(
        0,
        "How many previews a stream shows; fewer when there are fewer steps. Has no effect without "
        "stream.",
        unit="pictures",
        ge=0,
        le=3,
    )

    @classmethod
    def settle(cls, values: dict[str, Any], given: frozenset[str]) -> Settled:
        """Refuse what no model here can do, and note what has no effect."""
        findings: list[Finding] = []
        notes = ()
        if values.get("background") == "transparent":
            message, remedy = "is not supported: pictures are opaque.", "Use opaque or auto."
            findings.append(Finding("background", message, remedy, "unsupported_parameter"))
        if values.get("stream") is True and values.get("response_format") == "url":
            if "response_format" in given:
                message = "is not possible with stream, which sends the pictures themselves."
                findings.append(Finding("response_format", message, "Use b64_json."))
            values["response_format"] = "b64_json"
        if values.get("partial_images") and values.get("stream") is not True:
            notes = ("partial_images has no effect without stream.",)
        return Settled(values, notes, tuple(findings))


class VideoOutput(OutputSettings):
    """A clip: MP4 unless asked otherwise."""

    output_format: Literal["mp4", "webm", "gif"] = option("mp4", "File format.")
    x264_preset: Preset = option("fast", "Speed of the encoder; slower makes smaller files.")
    partial_images: int = option(
        0,
        "How many previews the job's events show: one frame of the clip as it looks so far.",
        unit="pictures",
        ge=0,
        le=10,
    )
