"""The fields of a body by what they are: parameters, output settings, without effect, refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from sgld.api.errors import Problem
from sgld.params.nearest import did_you_mean
from sgld.params.options import Options, from_text, scalar
from sgld.params.sampling import SamplingParams, VideoParams
from sgld.server.inlets import NAMED, URLS
from sgld.server.settings import ImageOutput, OutputSettings, VideoOutput
from sgld.server.spelling import (
    ALIASES,
    APPROXIMATE,
    ELSEWHERE,
    EXACT,
    OFF_ONLY,
    REFUSED,
    WITHOUT_EFFECT,
)

if TYPE_CHECKING:
    from sgld.server.bodies import Body, Kind

LENGTHS: Final = frozenset({"num_frames", "seconds", "fps"})
"""Fields of clips, which a picture by a family of clips does not take."""
PROMPTS: Final = ("prompt", "negative_prompt")
OUTPUTS: Final[Mapping[str, type[OutputSettings]]] = {
    "image": ImageOutput,
    "edit": ImageOutput,
    "video": VideoOutput,
}


def is_still(kind: Kind, cls: type[SamplingParams]) -> bool:
    """Whether a request for a picture goes to a family of clips, as a clip of one frame."""
    return kind != "video" and issubclass(cls, VideoParams)


def problem(
    field: str, value: Any, message: str, remedy: str = "", code: str = "invalid_value"
) -> Problem:
    """A `Problem` whose value is fit to be shown."""
    return Problem(field, brief(value), message, remedy, code)


def brief(value: Any) -> Any:
    """A value fit for an error: long texts cut, big structures named."""
    if isinstance(value, str):
        return value if len(value) <= 100 else value[:97] + "..."
    if isinstance(value, list | dict):
        text = repr(value) if len(value) <= 20 else ""
        return value if text and len(text) <= 100 else f"{type(value).__name__}, {len(value)} items"
    return value


class Sorting:
    """The fields of a body by what they are: parameters, output settings, neither."""

    def __init__(self, kind: Kind, cls: type[SamplingParams], body: Body) -> None:
        self.kind, self.cls, self.output = kind, cls, OUTPUTS[kind]
        self.still = is_still(kind, cls)
        self.problems: list[Problem] = []
        self.warnings: list[str] = []
        self.params: dict[str, Any] = {}
        self.settings: dict[str, Any] = {}
        self.spelled: dict[str, str] = {"image_path": NAMED[kind]}
        for name, value in body.fields.items():
            if value is not None and name != "model":
                self._take(name, value, name in body.texts)

    def _take(self, name: str, value: Any, text: bool) -> None:
        if text and value == "" and name not in PROMPTS:
            return
        if name == "quality":
            self._quality(value)
        elif reason := WITHOUT_EFFECT.get(name):
            self.warnings.append(f"{name} has no effect: {reason}.")
        elif name in OFF_ONLY:
            self._off_only(name, scalar(value) if text else value)
        elif self.still and name in LENGTHS:
            remedy = "A picture has one frame; POST /v1/videos makes clips."
            self._refuse(name, value, "is not taken here.", remedy, "unsupported_parameter")
        elif remedy := REFUSED.get(name) or ELSEWHERE[self.kind].get(name):
            self._refuse(name, value, "is not taken here.", remedy, "unsupported_parameter")
        elif name in self.output.accepted():
            self.settings[name] = _typed(self.output, name, value) if text else value
        else:
            self._parameter(name, value, text)

    def _parameter(self, name: str, value: Any, text: bool) -> None:
        field = ALIASES.get(name, name)
        if field not in self.cls.accepted() and field not in self.cls.refused:
            remedy = did_you_mean(name, self.names())
            self._refuse(name, value, "is unknown.", remedy, "unknown_parameter")
            return
        value = _typed(self.cls, field, value) if text else value
        if field == "seconds":
            value = scalar(value)  # OpenAI's client sends the number as text
        if field in self.params and self.params[field] != value:
            other = self.spelled[field]
            self._refuse(name, value, f"contradicts {other}.", "Give one of them.")
            return
        self.params[field], self.spelled[field] = value, name

    def _quality(self, value: Any) -> None:
        if value in APPROXIMATE:
            self.warnings.append(
                f"quality={value} has no effect: results are always computed exactly; "
                "num_inference_steps sets the effort, output_compression the quality of the file."
            )
        elif value not in EXACT:
            words = ", ".join((*EXACT, *APPROXIMATE))
            self._refuse("quality", value, f"must be one of {words}.")

    def _off_only(self, name: str, value: Any) -> None:
        if value is not False and value is not None:
            self._refuse(name, value, "is not supported.", "", "unsupported_parameter")

    def _refuse(
        self, name: str, value: Any, message: str, remedy: str = "", code: str = "invalid_value"
    ) -> None:
        self.problems.append(problem(name, value, message, remedy, code))

    def names(self) -> list[str]:
        """Every name that this kind of request takes."""
        short = {field: name for name, field in ALIASES.items()}
        fields = {short.get(name, name) for name in self.cls.accepted()} | set(ALIASES.values())
        fields = {*fields, *self.output.accepted(), *URLS[self.kind], "model", "quality"}
        return sorted(fields - REFUSED.keys() - (LENGTHS if self.still else set()))


def _typed(cls: type[Options], name: str, value: Any) -> Any:
    """The value that text of a form stands for."""
    if isinstance(value, list):
        return [scalar(item) for item in value]
    if isinstance(value, dict) or name == "size":
        return value
    field = cls.model_fields.get(name)
    return scalar(value) if field is None else from_text(field, value)
