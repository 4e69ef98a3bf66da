"""What a request to a SANA model may ask for, one class per variant.

    SanaParams               SANA 1.0 and 1.5, text to picture
    SanaSprintParams         SANA-Sprint: few steps, the guidance scale is an input of the network
    SanaVideoParams          SANA-Video, text to video, or picture to video when one is given
    SanaImageToVideoParams   SANA-Video checkpoints that need a picture

Defaults of the known checkpoints are in `presets.py`; what stands here holds for all the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from sgld.params.options import Finding, Options, Settled, option
from sgld.params.sampling import Guided, ImageParams, TakesImage, VideoParams

NEGATIVE_VIDEO: Final = (
    "A chaotic sequence with misshapen, deformed limbs in heavy motion blur, sudden "
    "disappearance, jump cuts, jerky movements, rapid shot changes, frames out of sync, "
    "inconsistent character shapes, temporal artifacts, jitter, and ghosting effects, creating a "
    "disorienting visual experience."
)
"""The text that SANA-Video's published examples steer away from."""

MAX_ANGLE: Final = 1.5708
"""SANA-Sprint starts at a right angle, as its publishers round it: pure noise."""
MIDDLE_ANGLE: Final = 1.3


class SanaText(Options):
    """Mixin: how the prompt is read."""

    complex_human_instruction: str | None = option(
        None,
        "Text put in front of the prompt. Leaving it out takes the instruction that the model was "
        "trained with; an empty text puts nothing there.",
    )
    max_sequence_length: int = option(
        300,
        "Longest prompt that is read, without the instruction; the rest is cut off.",
        unit="tokens",
        ge=1,
        le=300,
    )


class SanaBins(Options):
    """Mixin: sizes that the model was trained on."""

    use_resolution_binning: bool = option(
        False,
        "Make the picture in the trained size whose shape is nearest, then scale and crop it to "
        "the size asked for.",
    )


class SanaShift(Options):
    """Mixin: the timestep shift of the flow schedule."""

    flow_shift: float | None = option(
        None,
        "Timestep shift; higher spends more steps on coarse structure. Leaving it out takes the "
        "checkpoint's own.",
        ge=0.1,
        le=100.0,
    )


class SanaGrid(Options):
    """Mixin: sizes in steps of 32 pixels."""

    spatial_multiple: ClassVar[int] = 32
    min_size: ClassVar[int] = 32


class SanaParams(SanaText, SanaBins, SanaShift, Guided, SanaGrid, ImageParams):
    """SANA 1.0 and 1.5, text to picture."""

    tasks: ClassVar[tuple[str, ...]] = ("text-to-image",)
    max_pixels: ClassVar[int] = 4096 * 4096
    num_inference_steps: int = option(20, "Denoising steps.", unit="steps", ge=1, le=1000)
    guidance_scale: float = option(
        4.5,
        "Strength of guidance. Above 1 each step runs two forwards; at 1 and below, one, and the "
        "negative prompt has no effect.",
        ge=0.0,
        le=100.0,
    )


class SanaSprintParams(SanaText, SanaBins, SanaGrid, ImageParams):
    """SANA-Sprint, text to picture in one to a few steps."""

    tasks: ClassVar[tuple[str, ...]] = ("text-to-image",)
    guidance: ClassVar[str] = "embedded"
    refused: ClassVar[Mapping[str, str]] = {
        **ImageParams.refused,
        "negative_prompt": "This model has its guidance built in and reads no negative prompt.",
        "flow_shift": "This model has no timestep shift; see max_timesteps.",
    }
    num_inference_steps: int = option(2, "Denoising steps.", unit="steps", ge=1, le=1000)
    guidance_scale: float = option(
        4.5, "Strength of guidance, an input of the network: one forward a step.", ge=0.0, le=100.0
    )
    max_timesteps: float = option(
        MAX_ANGLE, "Angle of the first step; a right angle is pure noise.", unit="rad",
        ge=0.01, le=MAX_ANGLE,
    )  # fmt: skip
    intermediate_timesteps: float | None = option(
        None,
        "Angle of the second of two steps; leaving it out takes 1.3. Other step counts share "
        "max_timesteps out evenly and take none.",
        unit="rad",
        ge=0.001,
        le=MAX_ANGLE,
    )

    @classmethod
    def settle(cls, values: dict[str, Any], given: frozenset[str]) -> Settled:
        """Also refuse a middle angle where there is no middle, or above the first one."""
        settled = super().settle(values, given)
        middle, first = settled.values.get("intermediate_timesteps"), values.get("max_timesteps")
        if not isinstance(middle, int | float) or not isinstance(first, int | float):
            return settled
        steps, problem = values.get("num_inference_steps"), ""
        if steps != 2:
            problem = f"is only for 2 steps, and num_inference_steps is {steps}."
        elif middle >= first:
            problem = f"must be below max_timesteps, which is {first}."
        if not problem:
            return settled
        finding = Finding("intermediate_timesteps", problem, "Leave it out.")
        return settled._replace(findings=(*settled.findings, finding))

    @property
    def middle(self) -> float | None:
        """The angle of the second of two steps; None for every other count."""
        if self.num_inference_steps != 2:
            return None
        if self.intermediate_timesteps is not None:
            return self.intermediate_timesteps
        return min(MIDDLE_ANGLE, self.max_timesteps * MIDDLE_ANGLE / MAX_ANGLE)


class SanaVideoParams(TakesImage, SanaText, SanaBins, SanaShift, Guided, SanaGrid, VideoParams):
    """SANA-Video, text to video, or picture to video when a picture is given."""

    tasks: ClassVar[tuple[str, ...]] = ("text-to-video", "image-to-video")
    size_from_image: ClassVar[bool] = True
    negative_prompt: str = option(
        NEGATIVE_VIDEO,
        "What to steer away from. Leaving it out takes the text of the published examples; an "
        "empty text is empty.",
    )
    num_inference_steps: int = option(50, "Denoising steps.", unit="steps", ge=1, le=1000)
    guidance_scale: float = option(
        6.0,
        "Strength of guidance. Above 1 each step runs two forwards; at 1 and below, one, and the "
        "negative prompt has no effect.",
        ge=0.0,
        le=100.0,
    )
    motion_score: int = option(
        30,
        "How much should move: put behind the prompt as ' motion score: 30.'; 0 puts nothing.",
        ge=0,
        le=100,
    )


class SanaImageToVideoParams(SanaVideoParams):
    """SANA-Video checkpoints made for pictures: one is needed."""

    tasks: ClassVar[tuple[str, ...]] = ("image-to-video",)
    needs_image: ClassVar[bool] = True
