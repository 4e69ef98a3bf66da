"""What a request may ask for, made for each checkpoint from its pipeline's own signature.

    DiffusersParams            what holds for all of them; `sgld models show diffusers`
    make_params(described)     the class for one checkpoint

A parameter that the signature has and JSON can hold as one value is a parameter of the request,
under the pipeline's own name, with its default. What it has and a request cannot carry is refused
with the reason; what it does not have is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final, cast

from pydantic import BaseModel, create_model

from sgld.params.options import Finding, Options, Settled, extras, option
from sgld.params.output import OutputOptions
from sgld.params.sampling import Guided, SamplingParams, TakesImage, VideoParams
from sgld.params.serving import ServingOptions
from sgld_diffusers.reading.described import SIDES, Described
from sgld_diffusers.reading.signature import UNKNOWN, Argument

OURS: Final = {
    "prompt": "", "width": "", "height": "", "num_inference_steps": "", "num_frames": "",
}  # fmt: skip
"""Arguments that are fields of the base with our own limits."""
HANDLED: Final = frozenset(
    {
        "generator", "output_type", "return_dict", "callback", "callback_steps",
        "callback_on_step_end", "callback_on_step_end_tensor_inputs", "num_images_per_prompt",
        "num_videos_per_prompt", "batch_size", "mask_image", "fps", "frame_rate",
    }
)  # fmt: skip
"""Arguments that we give by ourselves."""
LIMITS: Final[Mapping[str, Mapping[str, Any]]] = {
    "guidance_scale": {"ge": 0.0, "le": 100.0},
    "true_cfg_scale": {"ge": 0.0, "le": 100.0},
    "strength": {"ge": 0.0, "le": 1.0},
    "max_sequence_length": {"ge": 1, "le": 8192},
    "clip_skip": {"ge": 0},
}
FALLBACK_FPS: Final = 16
NO_SIZE: Final = "is not taken: this pipeline makes its own size."


class DiffusersParams(SamplingParams):
    """Any pipeline of diffusers. Each checkpoint adds the arguments of its own pipeline class."""

    tasks: ClassVar[tuple[str, ...]] = ("text-to-image",)
    spatial_multiple: ClassVar[int] = 1
    min_size: ClassVar[int] = 1
    max_pixels: ClassVar[int] = 4096 * 4096
    shows_previews: ClassVar[bool] = False
    pipeline: ClassVar[str] = ""
    """The pipeline class."""
    taken: ClassVar[frozenset[str]] = frozenset()
    """Arguments of the pipeline's `__call__`."""
    has_steps: ClassVar[bool] = True
    """It gives the latents after each step."""
    refused: ClassVar[Mapping[str, str]] = {
        **SamplingParams.refused,
        "negative_prompt": "This pipeline reads no negative prompt.",
        "guidance_scale": "This pipeline has no guidance scale.",
    }

    width: int | None = option(
        None,
        "Width of a frame. Leaving it out takes the pipeline's own.",
        unit="pixels",
        ge=1,
        le=100_000,
    )
    height: int | None = option(
        None,
        "Height of a frame. Leaving it out takes the pipeline's own.",
        unit="pixels",
        ge=1,
        le=100_000,
    )

    @property
    def uses_cfg(self) -> bool:
        """Whether a second forward a step is to be expected; the pipeline decides."""
        scales = [getattr(self, name, None) for name in ("true_cfg_scale", "guidance_scale")]
        first = next((value for value in scales if value is not None), 0.0)
        return first > 1.0 and "negative_prompt" in self.taken

    @classmethod
    def settle(cls, values: dict[str, Any], given: frozenset[str]) -> Settled:
        """Also refuse what this pipeline's signature does not have."""
        settled = super().settle(values, given)
        findings = list(settled.findings)
        if cls.taken:
            findings += _absent(cls, settled.values)
        notes = settled.notes + _idle(settled.values, given)
        return settled._replace(findings=tuple(findings), notes=notes)


def _idle(values: Mapping[str, Any], given: frozenset[str]) -> tuple[str, ...]:
    """What is taken and changes nothing."""
    notes: list[str] = []
    if "true_cfg_scale" in given and values.get("negative_prompt") is None:
        notes.append("true_cfg_scale has no effect without a negative_prompt")
    return tuple(notes)


def _absent(cls: type[DiffusersParams], values: Mapping[str, Any]) -> list[Finding]:
    findings = [
        Finding(side, NO_SIZE, "Leave it out.", "unsupported_parameter")
        for side in SIDES
        if side not in cls.taken and values.get(side) is not None
    ]
    steps, default = "num_inference_steps", cls.model_fields["num_inference_steps"].default
    # The engine is given every field, so "given" would be true of the default as well.
    if steps not in cls.taken and values.get(steps, default) != default:
        message = "is not taken: this pipeline has no such argument."
        findings.append(Finding(steps, message, "", "unsupported_parameter"))
    if "prompt" not in cls.taken and str(values.get("prompt") or "").strip():
        message = "is not taken: this pipeline reads no prompt."
        findings.append(Finding("prompt", message, "Leave it empty.", "unsupported_parameter"))
    if values.get("preview_every") and not cls.has_steps:
        message = "is not possible: this pipeline does not hand out its latents."
        findings.append(Finding("preview_every", message, "", "unsupported_parameter"))
    return findings


class DiffusersVideoParams(DiffusersParams, VideoParams):
    """A pipeline that makes clips."""

    tasks: ClassVar[tuple[str, ...]] = ("text-to-video",)
    temporal_stride: ClassVar[int] = 1
    refused: ClassVar[Mapping[str, str]] = {
        name: DiffusersParams.refused[name] for name in ("negative_prompt", "guidance_scale")
    } | {"image_path": "This pipeline takes no input picture."}


class AnyParams(TakesImage, Guided, DiffusersVideoParams):
    """What may be asked of some pipeline: each checkpoint takes a part of it, and adds the other
    arguments of its own class; `/v1/models` and errors tell which."""

    tasks: ClassVar[tuple[str, ...]] = (
        "text-to-image", "image-to-image", "text-to-video", "image-to-video",
    )  # fmt: skip


def make_params(described: Described) -> type[DiffusersParams]:
    """The parameters of one checkpoint."""
    base = DiffusersVideoParams if described.kind == "video" else DiffusersParams
    bases = (TakesImage, base) if described.image else (base,)
    fields: dict[str, Any] = {}
    refused = dict(base.refused)
    for name, argument in described.arguments.items():
        if name in HANDLED or name == described.image or name in OURS:
            continue
        made = _field(argument)
        if made is None:
            refused[name] = _reason(argument)
        else:
            fields[name] = made
            refused.pop(name, None)
    fields |= _own_defaults(described, base)
    if described.image:
        refused.pop("image_path", None)
    cls = create_model("DiffusersParams", __base__=bases, __module__=__name__, **fields)
    facts: dict[str, Any] = {
        "pipeline": described.name,
        "taken": frozenset(described.arguments),
        "tasks": _tasks(described),
        "refused": refused,
        "spatial_multiple": described.unit,
        "min_size": described.unit,
        "has_steps": bool(described.steps),
        "guidance": "cfg" if "negative_prompt" in described.arguments else "embedded",
        "needs_image": described.needs_image,
        "max_images": 10 if described.several else 1 if described.image else 0,
        "takes_mask": "mask_image" in described.arguments and bool(described.image),
        "prompt_optional": "prompt" not in described.arguments,
        "__doc__": f"What {described.name} takes.",
    }
    if described.kind == "video":
        facts["temporal_stride"] = described.stride
    for name, value in facts.items():
        setattr(cls, name, value)
    return cast("type[DiffusersParams]", cls)


def _field(argument: Argument) -> tuple[Any, Any] | None:
    """The field of an argument that JSON holds as one value; None for any other."""
    name = argument.name
    taken = {
        *ServingOptions.model_fields,
        *OutputOptions.model_fields,
        *SamplingParams.model_fields,
    }
    if not argument.scalars or name.startswith("_") or hasattr(BaseModel, name) or name in taken:
        return None
    kinds = _without_int(argument.scalars)
    kind: Any = kinds[0]
    for other in kinds[1:]:
        kind = kind | other
    default = argument.default
    if default is UNKNOWN or (default is not None and type(default) not in (*kinds, int)):
        default = None
    if kind is float and isinstance(default, int) and not isinstance(default, bool):
        default = float(default)
    text = argument.doc or f"As `{name}` of the pipeline."
    return kind | None, option(default, text, **_limits(name, kind))


def _without_int(kinds: tuple[type, ...]) -> tuple[type, ...]:
    """Whole numbers are numbers: where both are taken, one kind is enough."""
    return tuple(kind for kind in kinds if kind is not int or float not in kinds)


def _limits(name: str, kind: Any) -> Mapping[str, Any]:
    return LIMITS.get(name, {}) if kind in (int, float) else {}


def _reason(argument: Argument) -> str:
    what = f" ({argument.annotation})" if argument.annotation else ""
    return f"The pipeline has it, but a request cannot carry its value{what}."


def _own_defaults(described: Described, base: type[DiffusersParams]) -> dict[str, Any]:
    """The base's fields again, with the defaults of this pipeline."""
    found: dict[str, Any] = dict(described.defaults)
    steps = described.arguments.get("num_inference_steps")
    if steps is not None and isinstance(steps.default, int):
        found["num_inference_steps"] = steps.default
    if described.kind == "video":
        rate = described.arguments.get("fps") or described.arguments.get("frame_rate")
        number = rate is not None and isinstance(rate.default, int | float)
        found["fps"] = round(rate.default) if rate is not None and number else FALLBACK_FPS
    fields = {
        name: _again(base, name, value)
        for name, value in found.items()
        if name in base.model_fields
    }
    if "prompt" not in described.arguments:
        fields["prompt"] = (str, option("", "This pipeline reads no prompt."))
    return fields


def _again(base: type[Options], name: str, value: int) -> tuple[Any, Any]:
    field = base.model_fields[name]
    limits: dict[str, Any] = {"ge": 1, "le": 1000 if name == "num_inference_steps" else 100_000}
    limits = {"ge": 1, "le": 240} if name == "fps" else limits
    unit = str(extras(field).get("unit", ""))
    return field.annotation, option(value, field.description or "", unit=unit, **limits)


def _tasks(described: Described) -> tuple[str, ...]:
    made = described.kind
    from_text, from_image = f"text-to-{made}", f"image-to-{made}"
    if not described.image:
        return (from_text,)
    return (from_image,) if described.needs_image else (from_text, from_image)
