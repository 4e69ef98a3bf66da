"""What a request may ask for: the shared base of every family's parameters.

    SamplingParams        prompt, seed, outputs, size, steps
    ├── ImageParams       one picture
    └── VideoParams       + num_frames, fps, seconds
    Guided      (mixin)   + negative_prompt, guidance_scale: classifier-free guidance
    TakesImage  (mixin)   + image_path

A family combines these (mixins first), sets the class variables (grid, frame stride, limits) and
adds fields of its own: `class MyParams(Guided, VideoParams)`. What a class does not list is
refused. All rules hold for every way in; `sgld.params.merge.build` reports all problems at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final

from pydantic import BeforeValidator

from sgld.params.options import (
    Auto,
    Convenience,
    Deferred,
    Finding,
    Options,
    Settled,
    Unreadable,
    as_path,
    option,
)
from sgld.params.seeds import SEED_RULE, Seed
from sgld.params.size import RULE as SIZE_RULE
from sgld.params.size import SIZES, fit_area, floor_to, neighbours, parse_size, round_frames

MAX_SECONDS: Final = 3600.0
SECONDS_RULE: Final = f"a finite number above 0 and up to {MAX_SECONDS:g} (seconds)"


class _NamedSize(Deferred):
    """A size name for one side, put on the model's grid when that is known."""

    def __init__(self, name: str, side: int) -> None:
        self.name, self.side = name, side


class _Seconds(Deferred):
    """A clip length to be multiplied with the frame rate."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds


Paths = Annotated[str | tuple[str, ...] | None, BeforeValidator(as_path)]


class SamplingParams(Options):
    """Parameters that every family shares; `uses_cfg` tells whether two forwards a step run."""

    tasks: ClassVar[tuple[str, ...]] = ()
    spatial_multiple: ClassVar[int] = 16
    """Both sides of a frame are multiples of this many pixels."""
    min_size: ClassVar[int] = 16
    max_pixels: ClassVar[int] = 3840 * 2160
    """Upper limit of width x height, so that absurd requests are refused before any allocation."""
    limit_owner: ClassVar[str] = "this model"
    """Whose limit that is, as errors say it."""
    prompt_optional: ClassVar[bool] = False
    takes_image: ClassVar[bool] = False
    needs_image: ClassVar[bool] = False
    size_from_image: ClassVar[bool] = False
    """Without an explicit size, the shape of the first input picture decides."""
    max_images: ClassVar[int] = 0
    image_count_field: ClassVar[str] = ""
    """Name of a field that is told how many input pictures there are; empty: there is none."""
    takes_mask: ClassVar[bool] = False
    """A mask may say which part of the first input picture changes (inpainting)."""
    shows_previews: ClassVar[bool] = True
    """Decoded previews may show what the result looks like so far; without, asking for them is
    answered with a warning."""
    guidance: ClassVar[str] = "none"
    """How the family is guided: `none`, `cfg` (two passes) or `embedded` (a scalar input)."""

    conveniences: ClassVar[Mapping[str, Convenience]] = {
        "size": Convenience(
            "Width and height in one word; `auto` is the model's own size. A size name is rounded "
            "down to the model's grid, numbers off the grid are refused.",
            SIZE_RULE,
            ("width", "height"),
            "pixels",
        )
    }
    refused: ClassVar[Mapping[str, str]] = {
        "image_path": "This model takes no input picture.",
        "negative_prompt": "This model runs without guidance, so a negative prompt has no effect.",
        "guidance_scale": "This model runs without guidance.",
        "num_frames": "This model makes pictures, not clips.",
        "seconds": "This model makes pictures, not clips.",
        "fps": "This model makes pictures, not clips.",
    }

    prompt: str = option(description="What to show.", rule="text that is not empty")
    seed: Seed = option(
        None,
        "Start of the random numbers: output i uses seed + i and reports it. A list gives the "
        "seeds one by one. Without a seed one is drawn and reported.",
        rule=SEED_RULE,
    )
    num_outputs_per_prompt: int = option(
        1, "How many outputs to make of each prompt.", unit="outputs", ge=1, le=10
    )
    width: int = option(1024, "Width of a frame.", unit="pixels", ge=1, le=100_000)
    height: int = option(1024, "Height of a frame.", unit="pixels", ge=1, le=100_000)
    num_inference_steps: int = option(50, "Denoising steps.", unit="steps", ge=1, le=1000)
    preview_every: int = option(
        0, "Send denoised latents every so many steps; 0 sends none.", unit="steps", ge=0, le=1000
    )

    @property
    def uses_cfg(self) -> bool:
        """Whether each step runs a second, unconditional forward."""
        return False

    @classmethod
    def expand(cls, name: str, value: Any) -> dict[str, Any]:
        """Turn `size` into width and height."""
        if name != "size":
            return super().expand(name, value)
        size = parse_size(value)
        if size == "auto":
            return {"width": Auto(), "height": Auto()}
        if isinstance(size, str):
            width, height = SIZES[size]
            return {"width": _NamedSize(size, width), "height": _NamedSize(size, height)}
        return {"width": size[0], "height": size[1]}

    @classmethod
    def settle(cls, values: dict[str, Any], given: frozenset[str]) -> Settled:
        """Put size names on the grid and check the rules that span several fields."""
        values, notes = cls._named_sizes(dict(values))
        findings = [*cls._prompt_findings(values), *cls._size_findings(values, given)]
        return Settled(values, tuple(notes), tuple(findings))

    @classmethod
    def _named_sizes(cls, values: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
        notes: list[str] = []
        for side in ("width", "height"):
            value = values.get(side)
            if isinstance(value, Auto):
                values[side] = cls.model_fields[side].default
            elif isinstance(value, _NamedSize):
                values[side] = floor_to(value.side, cls.spatial_multiple, cls.min_size)
                if values[side] != value.side:
                    notes.append(
                        f"size {value.name}: {side} is {values[side]} instead of {value.side}, "
                        f"because this model works in steps of {cls.spatial_multiple} pixels"
                    )
        return values, notes

    @classmethod
    def _prompt_findings(cls, values: dict[str, Any]) -> list[Finding]:
        prompt = values.get("prompt")
        if cls.prompt_optional or not isinstance(prompt, str) or prompt.strip():
            return []
        return [Finding("prompt", "must be text that is not empty.")]

    @classmethod
    def _size_findings(cls, values: dict[str, Any], given: frozenset[str]) -> list[Finding]:
        for side, other in (("width", "height"), ("height", "width")):
            if side in given and other not in given:
                return [Finding(side, f"needs {other} beside it.", "Give both, or size.")]
        width, height = values.get("width"), values.get("height")
        if not isinstance(width, int) or not isinstance(height, int):
            return []
        if width * height > cls.max_pixels:
            return [
                Finding(
                    "width",
                    f"{width}x{height} has {width * height} pixels; "
                    f"the limit of {cls.limit_owner} is {cls.max_pixels} pixels.",
                )
            ]
        unit = cls.spatial_multiple
        off = [s for s, v in (("width", width), ("height", height)) if v % unit or v < cls.min_size]
        below, above = neighbours(width, height, unit, cls.min_size)
        remedy = f"The nearest sizes are {below} and {above}."
        if below == above:
            remedy = f"The smallest size is {below}."
        message = (
            f"{width}x{height} is off this model's grid: width and height must be multiples of "
            f"{unit} pixels and at least {cls.min_size}."
        )
        return [Finding(side, message, remedy) for side in off]

    @classmethod
    def image_findings(cls, sizes: Sequence[tuple[int, int]]) -> list[Finding]:
        """What this family does not take about input pictures of these (width, height)."""
        return []

    @classmethod
    def fit_to_image(cls, width: int, height: int, area: int) -> tuple[int, int]:
        """The output size for an input picture: its shape, at most `area` pixels, on the grid."""
        return fit_area(
            width, height, min(area, cls.max_pixels), cls.spatial_multiple, cls.min_size
        )


class Guided(Options):
    """Mixin: classifier-free guidance, active exactly when `guidance_scale` is above 1."""

    guidance: ClassVar[str] = "cfg"

    negative_prompt: str = option(
        "", "What to steer away from. Leaving it out takes the model's own; an empty text is empty."
    )
    guidance_scale: float = option(
        5.0,
        "Strength of guidance. Above 1 each step runs two forwards; at 1 and below, one, and the "
        "negative prompt has no effect.",
        ge=0.0,
        le=100.0,
    )

    @property
    def uses_cfg(self) -> bool:
        """True when `guidance_scale` is above 1."""
        return self.guidance_scale > 1.0


class TakesImage(Options):
    """Mixin: input pictures; `size_from_image` lets the first one decide the output's shape."""

    takes_image: ClassVar[bool] = True
    max_images: ClassVar[int] = 1
    image_path: Paths = option(
        None,
        "Input picture: a file, or a data: URL.",
        rule="the path of a picture, or a list of paths",
    )


class ImageParams(SamplingParams):
    """A picture; every field is in the base."""


class VideoParams(SamplingParams):
    """A clip: frame count, frame rate, and `seconds` as another way to say the count."""

    temporal_stride: ClassVar[int] = 4
    """Clips have `temporal_stride`·k + 1 frames; 1 allows any number."""
    max_frames: ClassVar[int] = 4093
    """Upper limit of `num_frames`, so that absurd requests are refused before any allocation."""
    conveniences: ClassVar[Mapping[str, Convenience]] = {
        **SamplingParams.conveniences,
        "seconds": Convenience(
            "Length of the clip: num_frames = seconds x fps, rounded down like num_frames.",
            SECONDS_RULE,
            ("num_frames",),
            "seconds",
        ),
    }

    width: int = option(832, "Width of a frame.", unit="pixels", ge=1, le=100_000)
    height: int = option(480, "Height of a frame.", unit="pixels", ge=1, le=100_000)
    num_frames: int = option(
        81,
        "Frames of the clip; rounded down to what the model makes, and the real number reported.",
        unit="frames",
        ge=1,
        le=100_000,
    )
    fps: int = option(
        16, "Frame rate of the file; it does not change the frames.", unit="frames/s", ge=1, le=240
    )

    @classmethod
    def expand(cls, name: str, value: Any) -> dict[str, Any]:
        """Turn `seconds` into frames, and `size` into width and height."""
        if name != "seconds":
            return super().expand(name, value)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or not 0 < value <= MAX_SECONDS:
            raise Unreadable(f"must be {SECONDS_RULE}")
        return {"num_frames": _Seconds(float(value))}

    @classmethod
    def settle(cls, values: dict[str, Any], given: frozenset[str]) -> Settled:
        """Also turn seconds into frames and round the count by `round_length`."""
        settled = super().settle(values, given)
        values = settled.values
        asked = values.get("num_frames")
        if isinstance(asked, _Seconds):
            asked = max(int(round(asked.seconds * values.get("fps", 1), 6)), 1)
        if not isinstance(asked, int):
            return settled
        if asked > cls.max_frames:
            limit = f"the limit of {cls.limit_owner} is {cls.max_frames}"
            message = f"{asked} frames are too many: {limit}."
            return settled._replace(findings=(*settled.findings, Finding("num_frames", message)))
        values["num_frames"], lengths = cls.round_length(asked, values)
        if values["num_frames"] == asked:
            return settled
        how = "counts are rounded down" if values["num_frames"] < asked else "that is the shortest"
        note = (
            f"num_frames is {values['num_frames']} instead of {asked}: this model makes "
            f"{lengths} frames, and {how}"
        )
        return settled._replace(values=values, notes=(*settled.notes, note))

    @classmethod
    def round_length(cls, frames: int, values: Mapping[str, Any]) -> tuple[int, str]:
        """The largest length that the model makes and that is not above `frames` (or the shortest
        one there is), and its lengths in words; `values` are the other parameters."""
        return round_frames(frames, cls.temporal_stride), f"{cls.temporal_stride}k+1"
