"""What a request to a FLUX.1 model may ask for.

    FluxDevParams       embedded guidance (`guidance_scale`), optional true CFG, optional picture
    FluxSchnellParams   the same without embedded guidance

`guidance_scale` is a number that the network reads; a second forward per step runs only with
`true_cfg_scale` above 1 and a negative prompt. Torch-free.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from sgld.params.options import Finding, Options, Settled, option
from sgld.params.sampling import ImageParams, TakesImage


class FluxTrueCfg(Options):
    """Mixin: true classifier-free guidance, on top of what the network has learned."""

    negative_prompt: str | None = option(
        None,
        "What to steer away from; needs true_cfg_scale above 1. An empty text counts as given.",
    )
    true_cfg_scale: float = option(
        1.0,
        "Strength of true classifier-free guidance. Above 1, and with a negative prompt, each step "
        "runs two forwards.",
        ge=0.0,
        le=100.0,
    )

    @property
    def uses_cfg(self) -> bool:
        """True when a negative prompt is given and `true_cfg_scale` is above 1."""
        return self.true_cfg_scale > 1.0 and self.negative_prompt is not None


class FluxStrength(Options):
    """Mixin: how much of an input picture is repainted."""

    strength: float = option(
        0.6,
        "With an input picture: the share of the steps that run, from the noise level that belongs "
        "there. 1 keeps nothing of the picture. Without a picture it has no effect.",
        gt=0.0,
        le=1.0,
    )


class FluxParams(FluxTrueCfg, FluxStrength, TakesImage, ImageParams):
    """What dev and schnell share."""

    tasks: ClassVar[tuple[str, ...]] = ("text-to-image", "image-to-image")
    spatial_multiple: ClassVar[int] = 16
    size_from_image: ClassVar[bool] = True

    prompt_2: str | None = option(
        None, "Another prompt for the T5 encoder; leaving it out gives both encoders `prompt`."
    )

    @classmethod
    def settle(cls, values: dict[str, object], given: frozenset[str]) -> Settled:
        """Also refuse a scale or a negative prompt that would silently do nothing."""
        settled = super().settle(values, given)
        findings = [*settled.findings, *_cfg_findings(settled.values, given)]
        return settled._replace(findings=tuple(findings))


class FluxDevParams(FluxParams):
    """FLUX.1 [dev]: embedded guidance."""

    guidance: ClassVar[str] = "embedded"

    num_inference_steps: int = option(28, "Denoising steps.", unit="steps", ge=1, le=1000)
    guidance_scale: float = option(
        3.5,
        "Strength of the embedded guidance: a number that the network reads, at no further cost.",
        ge=0.0,
        le=100.0,
    )
    max_sequence_length: int = option(
        512, "Longest prompt that T5 reads; the rest is cut off.", unit="tokens", ge=1, le=512
    )


class FluxSchnellParams(FluxParams):
    """FLUX.1 [schnell]: distilled to a few steps."""

    refused: ClassVar[Mapping[str, str]] = {
        **ImageParams.refused,
        "guidance_scale": "FLUX.1 schnell has no guidance input; true_cfg_scale with a negative "
        "prompt is possible.",
    }

    num_inference_steps: int = option(4, "Denoising steps.", unit="steps", ge=1, le=1000)
    max_sequence_length: int = option(
        256, "Longest prompt that T5 reads; the rest is cut off.", unit="tokens", ge=1, le=512
    )


def _cfg_findings(values: Mapping[str, object], given: frozenset[str]) -> list[Finding]:
    scale, negative = values.get("true_cfg_scale"), values.get("negative_prompt")
    above = isinstance(scale, int | float) and scale > 1.0
    if above and negative is None and "true_cfg_scale" in given:
        message = (
            f"{scale} needs a negative prompt: without one there is nothing to steer away from."
        )
        return [Finding("true_cfg_scale", message, "Give negative_prompt; an empty text will do.")]
    if negative and not above and "negative_prompt" in given:
        message = "has no effect while true_cfg_scale is 1."
        return [Finding("negative_prompt", message, "Give true_cfg_scale above 1, such as 4.")]
    return []
