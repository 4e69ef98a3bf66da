"""What a request to a FLUX.2 model may ask for, one class per variant.

    Flux2DevParams         dev: the guidance scale is an input of the network
    Flux2KleinParams       klein: distilled, no guidance
    Flux2KleinBaseParams   klein base: classifier-free guidance

All make a picture from text, or from text and up to ten reference pictures. Torch-free.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from sgld.params.options import Finding, Settled, option
from sgld.params.sampling import Guided, ImageParams, TakesImage

REFERENCE_AREA: Final = 1024 * 1024
"""Larger reference pictures are shrunk to this many pixels."""
REFERENCE_SIDE: Final = 64
REFERENCE_RATIO: Final = 8
GRID: Final = 16
MAX_REFERENCES: Final = 10


def reference_size(width: int, height: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """(width, height) that a reference picture is resized to, and what is cut out of its middle."""
    if width * height > REFERENCE_AREA:
        scale = math.sqrt(REFERENCE_AREA / (width * height))
        width, height = int(width * scale), int(height * scale)
    return (width, height), (width // GRID * GRID, height // GRID * GRID)


class Flux2Params(TakesImage, ImageParams):
    """What all variants share."""

    tasks: ClassVar[tuple[str, ...]] = ("text-to-image", "image-to-image")
    spatial_multiple: ClassVar[int] = GRID
    max_images: ClassVar[int] = MAX_REFERENCES
    size_from_image: ClassVar[bool] = True
    prompt_optional: ClassVar[bool] = True

    max_sequence_length: int = option(
        512, "Longest prompt that is read, with the template around it; the rest is cut off.",
        unit="tokens", ge=1, le=512,
    )  # fmt: skip

    @classmethod
    def fit_to_image(cls, width: int, height: int, area: int) -> tuple[int, int]:
        """The size that the first reference picture has when the model is shown it."""
        if width * height > area:
            scale = math.sqrt(area / (width * height))
            width, height = int(width * scale), int(height * scale)
        return max(width // GRID * GRID, GRID), max(height // GRID * GRID, GRID)

    @classmethod
    def image_findings(cls, sizes: Sequence[tuple[int, int]]) -> list[Finding]:
        """What is wrong with reference pictures of these widths and heights."""
        return [
            Finding("image_path", message, "Crop or enlarge it.")
            for number, (width, height) in enumerate(sizes, 1)
            if (message := _reference_fault(number, width, height))
        ]


def _reference_fault(number: int, width: int, height: int) -> str:
    seen = f"picture {number} is {width}x{height}; this model takes pictures"
    if min(width, height) < REFERENCE_SIDE:
        return f"{seen} of at least {REFERENCE_SIDE} pixels on each side."
    if max(width, height) > REFERENCE_RATIO * min(width, height):
        return f"{seen} whose long side is at most {REFERENCE_RATIO} times the short one."
    return ""


class Flux2DevParams(Flux2Params):
    """FLUX.2 dev: guidance is distilled into the network, which reads the scale."""

    guidance: ClassVar[str] = "embedded"
    refused: ClassVar[Mapping[str, str]] = {
        **ImageParams.refused,
        "negative_prompt": "This model reads its guidance scale and runs one forward per step, so "
        "a negative prompt has no effect.",
    }

    num_inference_steps: int = option(50, "Denoising steps.", unit="steps", ge=1, le=1000)
    guidance_scale: float = option(
        4.0, "Strength of guidance, an input of the network; one forward per step at every value.",
        ge=0.0, le=100.0,
    )  # fmt: skip


class Flux2KleinParams(Flux2Params):
    """FLUX.2 klein: distilled to few steps without guidance."""

    refused: ClassVar[Mapping[str, str]] = {
        **ImageParams.refused,
        "negative_prompt": "This model is distilled and runs without guidance; leave it out.",
    }

    num_inference_steps: int = option(4, "Denoising steps.", unit="steps", ge=1, le=1000)
    guidance_scale: float = option(
        1.0, "Always 1: this model is distilled and runs without guidance.", ge=0.0, le=100.0
    )

    @classmethod
    def settle(cls, values: dict[str, Any], given: frozenset[str]) -> Settled:
        """Also refuse a guidance scale that would have no effect."""
        settled = super().settle(values, given)
        scale = settled.values.get("guidance_scale")
        if not isinstance(scale, int | float) or scale == 1:
            return settled
        finding = Finding(
            "guidance_scale",
            "this model is distilled and runs without guidance, which is 1.",
            "Leave it out, or use a klein base checkpoint.",
        )
        return settled._replace(findings=(*settled.findings, finding))


class Flux2KleinBaseParams(Guided, Flux2Params):
    """FLUX.2 klein base: not distilled, with classifier-free guidance."""

    num_inference_steps: int = option(50, "Denoising steps.", unit="steps", ge=1, le=1000)
    guidance_scale: float = option(
        4.0,
        "Strength of guidance. Above 1 each step runs two forwards; at 1 and below, one, and the "
        "negative prompt has no effect.",
        ge=0.0,
        le=100.0,
    )
