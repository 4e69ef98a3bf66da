"""From a sorted body to a validated request: the same rules as every other way in.

    facts = ModelFacts.of(plan, "my-model")
    request = prepare_request("image", body, facts, limits, images)

* `ModelFacts`: what validation needs to know of the served model.
* `prepare_request(kind, body, facts, limits, images) -> PreparedRequest`; with `images=None`
  everything but the pictures themselves is checked, before any of them is fetched.

A wrong field is one `Problem` under the name that the caller wrote; all are raised together as one
`ParameterError`. Defaults come from the model, never from the API. Text from forms is typed like
the flags of the command line; JSON must have the right type, except that `seconds` may be text,
as OpenAI's client sends it. An empty text in a form means "not given", but for prompts.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from pydantic import create_model

from sgld.api.errors import ParameterError, Problem
from sgld.params.merge import Layer, build, distinct
from sgld.params.requests import Prepared, fit_to_images, prepare
from sgld.params.sampling import SamplingParams, VideoParams
from sgld.plan import ModelPlan
from sgld.server.bodies import Body, Kind, Limits
from sgld.server.errors import not_found
from sgld.server.inlets import NAMED
from sgld.server.masks import check_mask
from sgld.server.settings import OutputSettings
from sgld.server.sorting import PROMPTS, Sorting, brief, problem

__all__ = ["Limits", "ModelFacts", "PreparedRequest", "prepare_request"]

ROUTES: Final[Mapping[str, tuple[str, str]]] = {
    "image": ("text-to-image", "/v1/images/generations"),
    "edit": ("image-to-image", "/v1/images/edits"),
    "video": ("-to-video", "/v1/videos"),
}
"""Kind of request → how its tasks are called, and its address."""


NO_PREVIEWS: Final = (
    "partial_images has no effect: this model hands out its clip chunk by chunk instead."
)


@dataclass(frozen=True)
class ModelFacts:
    """What validation needs to know of the served model.

    Args:
        name: the model's name in the API; the only `model` that requests may name.
        pipeline_id: which pipeline serves it.
        params_class: the family's parameters.
        preset_layer: the checkpoint's own defaults.
        tasks: what it can do, such as `text-to-video`.
        repo: the hub repository, empty for a local folder.
        picture: file that a session begins with when it brings no picture; empty: there is none.
        blank: file that stands for no picture, and that a request without one begins with.
    """

    name: str
    pipeline_id: str
    params_class: type[SamplingParams]
    preset_layer: Layer
    tasks: tuple[str, ...]
    repo: str = ""
    picture: str = ""
    blank: str = ""

    @property
    def needs_image(self) -> bool:
        """Whether a request has to bring a picture."""
        return self.params_class.needs_image and not (self.picture or self.blank)

    def begins_with(self, kind: Kind) -> str:
        """The file that a request of this kind begins with when it brings no picture, or empty."""
        return {"image": self.blank, "edit": "", "video": self.blank or self.picture}[kind]

    @classmethod
    def of(cls, plan: ModelPlan, name: str) -> ModelFacts:
        """The facts of a plan, served under `name`."""
        spec = plan.spec
        repo = plan.files.repo_id or ""
        layer, tasks = plan.preset_layer, tuple(plan.tasks)
        return cls(name, spec.id, plan.params_class, layer, tasks, repo, plan.picture, plan.blank)

    @property
    def routes(self) -> dict[str, str]:
        """Kind of request → its address, for those that this model serves."""
        return {
            kind: address
            for kind, (task, address) in ROUTES.items()
            if any(name.endswith(task) for name in self.tasks)
        }


@dataclass(frozen=True)
class PreparedRequest:
    """A request that can run.

    Args:
        prepared: parameters and seeds.
        output: `format`, `quality` (0..100 or None for the format's own), and for pictures
            `response_format` and `stream`; for clips `x264_preset`; `partial_images`, `profile`.
        warnings: what was accepted without effect, and what was adjusted.
        mask: bool [H, W], True where the first picture may change; None without one.
    """

    prepared: Prepared
    output: dict[str, Any]
    warnings: list[str]
    mask: npt.NDArray[np.bool_] | None = None


def prepare_request(
    kind: Kind,
    body: Body,
    facts: ModelFacts,
    limits: Limits,
    images: Sequence[npt.NDArray[np.uint8]] | None = None,
) -> PreparedRequest:
    """Validate a body; `images` are its decoded input pictures, RGB uint8 [H, W, 3], in order.

    Raises:
        ApiError: 404 when `model` is not the served model.
        ParameterError: every wrong field.
    """
    _check_model(body, facts)
    cls = limited(facts.params_class, limits.max_pixels, limits.max_frames)
    sorting = Sorting(kind, cls, body)
    problems = list(sorting.problems)
    _check_prompts(sorting, limits, problems)
    settings = _settings(sorting, limits, problems)
    prepared = _prepared(sorting, facts, body.inputs if images is None else len(images), problems)
    mask = _mask(body, cls, limits, images, problems)
    if settings is not None and prepared is not None:
        problems += _stream_problems(settings, prepared, sorting)
    if problems or prepared is None or settings is None:
        raise ParameterError(distinct(problems))
    if images:
        sizes = [(image.shape[1], image.shape[0]) for image in images]
        prepared = _fitted(prepared, sizes, sorting)
    warnings = [*body.warnings, *sorting.warnings, *prepared.built.notes]
    if settings.as_dict().get("partial_images") and not cls.shows_previews:
        warnings.append(NO_PREVIEWS)
    return PreparedRequest(prepared, settings.as_dict(), list(dict.fromkeys(warnings)), mask)


def _fitted(prepared: Prepared, sizes: Sequence[tuple[int, int]], sorting: Sorting) -> Prepared:
    try:
        return fit_to_images(prepared, sizes)
    except ParameterError as error:
        spelled = sorting.spelled
        raise ParameterError(
            [
                found._replace(field=spelled.get(found.field, found.field))
                for found in error.problems
            ]
        ) from None


def _check_model(body: Body, facts: ModelFacts) -> None:
    name = body.fields.get("model")
    if name is None or name == facts.name or (name == "" and "model" in body.texts):
        return
    if not isinstance(name, str):
        raise ParameterError([problem("model", name, "must be text.")])
    raise not_found("model", name, remedy=f"This server serves {facts.name!r}.")


@functools.cache
def limited(
    cls: type[SamplingParams], max_pixels: int | None, max_frames: int | None
) -> type[SamplingParams]:
    """The parameters of a family within the server's own limits, where those are narrower."""
    changes: dict[str, Any] = {}
    if max_pixels is not None and max_pixels < cls.max_pixels:
        changes["max_pixels"] = max_pixels
    if max_frames is not None and issubclass(cls, VideoParams) and max_frames < cls.max_frames:
        changes["max_frames"] = max_frames
    if not changes:
        return cls
    narrow = create_model(cls.__name__, __base__=cls, __module__=cls.__module__)
    for name, value in {**changes, "limit_owner": "this server"}.items():
        setattr(narrow, name, value)
    return narrow


def _check_prompts(sorting: Sorting, limits: Limits, problems: list[Problem]) -> None:
    for name in PROMPTS:
        value = sorting.params.get(name)
        if isinstance(value, str) and len(value) > limits.max_prompt:
            message = f"has {len(value)} characters; the limit is {limits.max_prompt}."
            problems.append(problem(name, value, message))
    # A list would be several requests, which is not what these routes answer.
    if isinstance(value := sorting.params.get("prompt"), list):
        problems.append(problem("prompt", value, "must be text that is not empty."))
        sorting.params["prompt"] = "-"


def _settings(sorting: Sorting, limits: Limits, problems: list[Problem]) -> OutputSettings | None:
    try:
        built = build(sorting.output, [Layer("call", sorting.settings)])
    except ParameterError as error:
        problems += [found._replace(value=brief(found.value)) for found in error.problems]
        return None
    if built.params.profile and not limits.allow_profile:
        remedy = "The operator can allow it with --profile FOLDER."
        problems.append(problem("profile", True, "is not allowed here.", remedy))
    sorting.warnings += built.notes
    return built.params


def _prepared(
    sorting: Sorting, facts: ModelFacts, images: int, problems: list[Problem]
) -> Prepared | None:
    named = NAMED[sorting.kind]
    if images and not sorting.cls.takes_image:
        remedy = "Send a prompt only."
        message = "this model takes no input picture."
        problems.append(problem(named, None, message, remedy, "unsupported_parameter"))
        images = 0
    if sorting.kind == "edit" and not images and sorting.cls.takes_image:
        message, remedy = "is required.", "Send a file, a URL or a data: URL."
        problems.append(problem(named, None, message, remedy, "missing_parameter"))
        images = 1
    params = {**sorting.params, **({"num_frames": 1} if sorting.still else {})}
    layer = Layer("call", params, spelled=sorting.spelled)
    try:
        return prepare(sorting.cls, [layer, facts.preset_layer], images_given=images)[0]
    except ParameterError as error:
        problems += [found._replace(value=brief(found.value)) for found in error.problems]
        return None


def _mask(
    body: Body,
    cls: type[SamplingParams],
    limits: Limits,
    images: Sequence[npt.NDArray[np.uint8]] | None,
    problems: list[Problem],
) -> npt.NDArray[np.bool_] | None:
    """The mask, if the family can use one; without pictures its size is not compared."""
    if body.mask is None:
        return None
    if not cls.takes_mask:
        message, remedy = "is not supported: this model edits the whole picture.", "Leave it out."
        problems.append(problem("mask", None, message, remedy, "unsupported_parameter"))
        return None
    size = (images[0].shape[1], images[0].shape[0]) if images else None
    try:
        return check_mask(body.mask, size, limits.max_input_pixels)
    except ParameterError as error:
        problems += error.problems
        return None


def _stream_problems(
    settings: OutputSettings, prepared: Prepared, sorting: Sorting
) -> list[Problem]:
    """A stream is about one picture, as in OpenAI's API: its events do not say which."""
    count = len(prepared.seeds)
    if not getattr(settings, "stream", False) or count == 1:
        return []
    spelled = sorting.spelled.get("num_outputs_per_prompt", "n")
    remedy = "Use n=1, or leave stream out."
    return [problem(spelled, count, "pictures cannot be streamed, only one.", remedy)]
