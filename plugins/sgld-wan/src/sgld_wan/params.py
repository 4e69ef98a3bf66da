"""What a request to a Wan model may ask for, one class per variant.

    WanT2VParams           Wan 2.1 text to video
    WanI2VParams           Wan 2.1 picture to video
    Wan22T2VA14BParams     Wan 2.2 text to video, two experts
    Wan22I2VA14BParams     Wan 2.2 picture to video, two experts
    Wan22TI2V5BParams      Wan 2.2 5B, text with or without a picture
    WanDMDParams           FastWan and TurboWan: few distilled steps without guidance
    WanDMD5BParams, WanDMDI2VA14BParams    the same on the 5B and on the picture A14B network

Defaults of the known checkpoints are in `presets.py`; what stands here holds for all the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Final

from pydantic import BeforeValidator

from sgld.params.options import Finding, Options, Settled, Text, option, scalar
from sgld.params.sampling import Guided, TakesImage, VideoParams

NEGATIVE_PROMPT: Final = (
    "色调艳丽，过曝，静态，细节模糊不清，字幕，风格，作品，画作，画面，静止，整体发灰，最差质量，"
    "低质量，JPEG压缩残留，丑陋的，残缺的，多余的手指，画得不好的手部，画得不好的脸部，畸形的，"
    "毁容的，形态畸形的肢体，手指融合，静止不动的画面，杂乱的背景，三条腿，背景人很多，倒着走"
)
"""The text that the models were tuned with; another wording gives other videos."""

NEGATIVE_PROMPT_I2V: Final = "镜头晃动，" + NEGATIVE_PROMPT
"""Wan 2.1 picture to video also steers away from a shaking camera."""

NEGATIVE: Final = (
    "What to steer away from. Leaving it out takes the list that the model was tuned with; an "
    "empty text is empty."
)
DMD_STEPS: Final = (1000, 757, 522)
DMD_RULE: Final = "1 to 16 falling whole numbers from 1 to 1000, such as 1000,757,522"


class WanShift(Options):
    """Mixin: the timestep shift of the flow-match schedule."""

    flow_shift: float | None = option(
        None,
        "Timestep shift; higher spends more steps on coarse structure. Leaving it out takes the "
        "checkpoint's own.",
        ge=0.1,
        le=100.0,
    )


class WanTextLength(Options):
    """Mixin: the length of the encoded prompt."""

    max_sequence_length: int = option(
        512, "Longest prompt that is read; the rest is cut off.", unit="tokens", ge=1, le=512
    )


class WanExperts(Options):
    """Mixin: two networks, one for high and one for low noise."""

    guidance_scale_2: float | None = option(
        None,
        "Strength of guidance of the low-noise expert; leaving it out takes guidance_scale.",
        ge=0.0,
        le=100.0,
    )
    boundary_ratio: float | None = option(
        None,
        "Noise level, as a share of the training timesteps, at and above which the high-noise "
        "expert runs. Leaving it out takes the checkpoint's own.",
        ge=0.0,
        le=1.0,
    )


class WanParams(WanShift, Guided, VideoParams):
    """What the guided Wan models share; the position table limits a clip to 4093 frames."""

    tasks: ClassVar[tuple[str, ...]] = ("text-to-video",)
    negative_prompt: str = option(NEGATIVE_PROMPT, NEGATIVE)


class WanT2VParams(WanTextLength, WanParams):
    """Wan 2.1, text to video (1.3B and 14B)."""


class WanI2VParams(TakesImage, WanParams):
    """Wan 2.1, picture to video (14B); prompts are always read to 512 tokens."""

    tasks: ClassVar[tuple[str, ...]] = ("image-to-video",)
    needs_image: ClassVar[bool] = True
    size_from_image: ClassVar[bool] = True
    negative_prompt: str = option(NEGATIVE_PROMPT_I2V, NEGATIVE)


class _TwoScales(WanExperts, WanParams):
    num_inference_steps: int = option(40, "Denoising steps.", unit="steps", ge=1, le=1000)
    guidance_scale: float = option(
        4.0,
        "Strength of guidance of the high-noise expert. Above 1 its steps run two forwards; at 1 "
        "and below, one.",
        ge=0.0,
        le=100.0,
    )

    @classmethod
    def settle(cls, values: dict[str, Any], given: frozenset[str]) -> Settled:
        """Also let an explicit `guidance_scale` hold for both experts, not only against a preset's
        first number."""
        settled = super().settle(values, given)
        second = settled.values.get("guidance_scale_2")
        if "guidance_scale" not in given or "guidance_scale_2" in given or second is None:
            return settled
        settled.values["guidance_scale_2"] = None
        note = "guidance_scale holds for both experts, because guidance_scale_2 was not given"
        return settled._replace(notes=(*settled.notes, note))

    @property
    def low_noise_guidance(self) -> float:
        """The scale of the low-noise expert: `guidance_scale_2`, or `guidance_scale`."""
        return self.guidance_scale if self.guidance_scale_2 is None else self.guidance_scale_2

    @property
    def uses_cfg(self) -> bool:
        """True when either expert is guided, so that a negative prompt is encoded."""
        return max(self.guidance_scale, self.low_noise_guidance) > 1.0


class Wan22T2VA14BParams(WanTextLength, _TwoScales):
    """Wan 2.2, text to video, two experts of 14B."""


class Wan22I2VA14BParams(TakesImage, _TwoScales):
    """Wan 2.2, picture to video, two experts of 14B."""

    tasks: ClassVar[tuple[str, ...]] = ("image-to-video",)
    needs_image: ClassVar[bool] = True
    size_from_image: ClassVar[bool] = True


class Wan22TI2V5BParams(TakesImage, WanTextLength, WanParams):
    """Wan 2.2 5B: text to video, or picture to video when a picture is given."""

    tasks: ClassVar[tuple[str, ...]] = ("text-to-video", "image-to-video")
    spatial_multiple: ClassVar[int] = 32
    min_size: ClassVar[int] = 32
    size_from_image: ClassVar[bool] = True
    width: int = option(1280, "Width of a frame.", unit="pixels", ge=1, le=100_000)
    height: int = option(704, "Height of a frame.", unit="pixels", ge=1, le=100_000)
    num_frames: int = option(
        121, "Frames of the clip; rounded down to 4k+1.", unit="frames", ge=1, le=100_000
    )
    fps: int = option(24, "Frame rate of the file.", unit="frames/s", ge=1, le=240)


def read_steps(value: Any) -> Any:
    """The distilled steps as a falling tuple; raises `ValueError` with the rule otherwise."""
    value = steps_text(value)
    steps = tuple(value) if isinstance(value, list | tuple) else (value,)
    whole = all(isinstance(step, int) and not isinstance(step, bool) for step in steps)
    if not whole or not 1 <= len(steps) <= 16 or not all(1 <= step <= 1000 for step in steps):
        raise ValueError(f"must be {DMD_RULE}")
    if any(after >= before for before, after in pairwise(steps)):
        raise ValueError(f"must be {DMD_RULE}; these do not fall")
    return steps


def steps_text(text: Any) -> Any:
    """The list that a text holds as numbers with commas between them, in brackets or not; anything
    else stays as it is."""
    if not isinstance(text, str):
        return text
    inner = text.strip()
    if inner.startswith("[") and inner.endswith("]"):
        inner = inner[1:-1]
    return [scalar(word) for word in inner.split(",")]


class FixedSteps(Options):
    """Mixin: a fixed short list of steps that the model was distilled for, one forward each."""

    refused: ClassVar[Mapping[str, str]] = {
        **VideoParams.refused,
        "guidance_scale": "This model is distilled and runs without guidance; leave it out.",
        "guidance_scale_2": "This model is distilled and runs without guidance; leave it out.",
        "negative_prompt": "This model is distilled and runs without guidance; leave it out.",
    }

    num_inference_steps: int = option(
        3,
        "Always the number of dmd_denoising_steps; another number is refused.",
        unit="steps",
        ge=1,
        le=1000,
    )
    dmd_denoising_steps: Annotated[
        tuple[int, ...], BeforeValidator(read_steps), Text(steps_text)
    ] = option(DMD_STEPS, "Timesteps that the model was distilled for.", rule=DMD_RULE)

    @classmethod
    def settle(cls, values: dict[str, Any], given: frozenset[str]) -> Settled:
        """Also keep the step count equal to the length of the list."""
        settled = super().settle(values, given)
        values, steps = settled.values, settled.values.get("dmd_denoising_steps")
        if not isinstance(steps, tuple):
            return settled
        asked = values.get("num_inference_steps")
        values["num_inference_steps"] = len(steps)
        if "num_inference_steps" not in given or asked in (None, len(steps)):
            return settled
        finding = Finding(
            "num_inference_steps",
            f"this model was distilled for {len(steps)} steps.",
            "Leave it out, or change dmd_denoising_steps.",
        )
        return settled._replace(findings=(*settled.findings, finding))


class WanDMDParams(FixedSteps, WanTextLength, VideoParams):
    """FastWan and TurboWan: a fixed short list of steps, one forward each, no guidance."""

    tasks: ClassVar[tuple[str, ...]] = ("text-to-video",)
    flow_shift: float = option(
        8.0, "Shift of the table that turns steps into noise levels.", ge=0.1, le=100.0
    )


class WanDMD5BParams(TakesImage, WanDMDParams):
    """FastWan 2.2 5B: text to video, or picture to video when a picture is given."""

    tasks: ClassVar[tuple[str, ...]] = ("text-to-video", "image-to-video")
    size_from_image: ClassVar[bool] = True
    spatial_multiple: ClassVar[int] = 32
    min_size: ClassVar[int] = 32
    width: int = option(1280, "Width of a frame.", unit="pixels", ge=1, le=100_000)
    height: int = option(704, "Height of a frame.", unit="pixels", ge=1, le=100_000)
    num_frames: int = option(
        121, "Frames of the clip; rounded down to 4k+1.", unit="frames", ge=1, le=100_000
    )
    fps: int = option(24, "Frame rate of the file.", unit="frames/s", ge=1, le=240)


class WanDMDI2VA14BParams(TakesImage, WanDMDParams):
    """TurboWan 2.2, picture to video with two experts."""

    tasks: ClassVar[tuple[str, ...]] = ("image-to-video",)
    needs_image: ClassVar[bool] = True
    size_from_image: ClassVar[bool] = True
    boundary_ratio: float | None = option(
        None, "Noise level at and above which the high-noise expert runs.", ge=0.0, le=1.0
    )
