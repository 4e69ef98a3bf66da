"""From what was typed to a validated plan: everything that can be wrong is found here.

`gather(layers, plan, sketch)` shares flags, environment and file out to the option classes,
recognises the model (which reads no weights), validates every prompt and loads the pictures. What
`sketch` knows of a model that is still to be written is used to refuse a request before that.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from sgld.api.errors import ParameterError, Problem, UserError
from sgld.media.images import load_image
from sgld.media.saving import check_saving
from sgld.media.writing import check_folder
from sgld.messages import Request
from sgld.params.components import TABLES as COMPONENT_TABLES
from sgld.params.merge import Built, Layer, build, distinct, env_layer, split
from sgld.params.nearest import canonical, did_you_mean
from sgld.params.output import OutputOptions
from sgld.params.requests import Prepared, fit_to_images, prepare
from sgld.params.sampling import Guided, ImageParams, TakesImage, VideoParams
from sgld.params.serving import ServingOptions, resolve_residency

T = TypeVar("T")
Picture = npt.NDArray[np.uint8]
SHARED: Final = (VideoParams, Guided, TakesImage, ImageParams)
"""Classes whose fields have flags of their own; a family's others go by --param or any flag."""

TABLES: Final = ("component_paths", "component_weights_paths", "component_precisions")
MAX_PROMPT_FILE: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that a run needs, validated; `requests` stand in the order of `prepared`."""

    serving: Built[ServingOptions]
    output: Built[OutputOptions]
    plan: Any
    prepared: tuple[Prepared, ...]
    requests: tuple[Request, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """What was adjusted, each said once."""
        every = (note for one in self.prepared for note in one.built.notes)
        return tuple(dict.fromkeys((*self.serving.notes, *self.output.notes, *every)))

    @property
    def versions(self) -> dict[str, str]:
        """Distribution → version of the plugin that serves the model, for the metadata."""
        recognition = getattr(self.plan, "recognition", None)
        entry = getattr(recognition, "entry", None)
        return {entry.dist: entry.version} if entry is not None and entry.version else {}


def environment(environ: Mapping[str, str]) -> Layer:
    """The environment's layer for every setting that some flag covers."""
    return env_layer((ServingOptions, OutputOptions, *SHARED), environ)


def read_prompts(source: str) -> list[str]:
    """One prompt for each line of a file (`-` is standard input) that is not blank.

    Raises `UserError` when it is missing, not UTF-8, too large or holds no prompt.
    """
    name = "standard input" if source == "-" else source
    try:
        if source == "-":
            data = sys.stdin.buffer.read(MAX_PROMPT_FILE + 1)
        else:
            with Path(source).expanduser().open("rb") as file:
                data = file.read(MAX_PROMPT_FILE + 1)
        text = data.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        remedy = "Give a text file in UTF-8 with one prompt a line."
        raise UserError(
            f"--prompt-file={name}: cannot be read ({reason}).", remedy=remedy
        ) from None
    # Not splitlines(), which also cuts at form feeds and at Unicode's own separators.
    prompts = [line.strip() for line in re.split(r"\r\n|\n|\r", text) if line.strip()]
    if not prompts or len(data) > MAX_PROMPT_FILE:
        fault = f"is larger than {MAX_PROMPT_FILE} bytes" if prompts else "holds no prompt"
        raise UserError(f"--prompt-file={name}: {fault}.", remedy="Write one prompt a line.")
    return prompts


def gather(
    layers: Sequence[Layer],
    plan: Callable[[ServingOptions], Any],
    switches: Iterable[str] = (),
    environ: Mapping[str, str] = os.environ,
    sketch: Callable[[ServingOptions], Any] = lambda _: None,
) -> Settings:
    """Validate `layers` (strongest first) and recognise the model with `plan`.

    `switches` are further flag names for the "did you mean" of an unknown one; `environ` is asked
    for the family's own parameters once the model is known. Raises one `ParameterError` with every
    problem, or the `UserError` that says why no model was recognised.
    """
    problems: list[Problem] = []
    known = (ServingOptions, OutputOptions)
    shares, unknown = split(layers, (*known, *SHARED), switches)
    serving = _attempt(lambda: build(ServingOptions, shares[0]), problems)
    output = _attempt(lambda: build(OutputOptions, shares[1]), problems)
    if serving is None:
        # Without a model its own parameters are unknown; only clear typing errors are reported.
        raise ParameterError(distinct([*problems, *(p for p in unknown if p.remedy)]))
    try:
        early = sketch(serving.params)
        if early is not None:
            _complete(_with_own(layers, early, environ), switches, output, early, problems, [])
        model = plan(serving.params)
    except ParameterError as error:
        raise ParameterError(distinct([*problems, *respell(error.problems, layers)])) from None
    try:
        layers = _with_own(layers, model, environ)
        late = _component_problems(serving, model)
        prepared, requests = _complete(layers, switches, output, model, problems, late)
    except BaseException:
        model.close()
        raise
    assert output is not None  # else there was a problem
    return Settings(serving, output, model, prepared, requests)


def _with_own(layers: Sequence[Layer], model: Any, environ: Mapping[str, str]) -> list[Layer]:
    """The layers with the variables of the family's own parameters."""
    own = env_layer((model.params_class,), environ)
    return [
        layer._replace(values={**own.values, **layer.values}) if layer.kind == "env" else layer
        for layer in layers
    ]


def _complete(
    layers: Sequence[Layer],
    switches: Iterable[str],
    output: Built[OutputOptions] | None,
    model: Any,
    problems: Sequence[Problem],
    late: list[Problem],
) -> tuple[tuple[Prepared, ...], tuple[Request, ...]]:
    """The second half of `gather`: what needs the family's parameters. Raises `problems`, those
    of the `late` checks and its own together."""
    cls = model.params_class
    problems = list(problems)
    shares, unknown = split(layers, (ServingOptions, OutputOptions, cls), switches)
    unknown = [problem if problem.remedy else _unknown(problem) for problem in unknown]
    prepared = _attempt(lambda: prepare(cls, [*shares[2], model.local_layer]), problems) or []
    images = _images(prepared, late)
    fitted = [
        fit_to_images(one, [_size(images[path]) for path in one.image_paths if path in images])
        for one in prepared
    ]
    if output is not None:
        late += _file_name_problems(output.params, len(prepared))
        _attempt(lambda: _check_folder(output.params), late)
        for one in fitted:
            _attempt(lambda one=one: _check_saving(output, one), late)
    problems = distinct([*problems, *unknown, *respell(late, layers)])
    if problems or output is None:
        raise ParameterError(problems)
    requests = tuple(_request(i, one, output.params, images) for i, one in enumerate(fitted, 1))
    return tuple(fitted), requests


def _unknown(problem: Problem) -> Problem:
    """An unknown name that resembles none: where the known ones are listed."""
    where = "See `sgld generate --help` and `sgld models show PIPELINE`."
    return problem._replace(remedy=where)


def respell(problems: Iterable[Problem], layers: Sequence[Layer]) -> list[Problem]:
    """Problems under the names as the user wrote them, for checks that do not know the layers."""
    return [problem._replace(field=_spelled(layers, problem.field)) for problem in problems]


def _spelled(layers: Sequence[Layer], field: str) -> str:
    table, dot, component = field.partition(".")
    if dot:
        setting = COMPONENT_TABLES.get(table, "")
        owner = next((x for x in layers if component in (x.values.get(setting) or ())), None)
        if owner is not None and owner.kind == "flag":
            return f"--{table.replace('_', '-')}.{component}"
    for layer in layers:
        for name, value in layer.values.items():
            if canonical(name) == field and value is not None:
                return layer.spell(name)
    return field


def _attempt(action: Callable[[], T], problems: list[Problem]) -> T | None:
    try:
        return action()
    except ParameterError as error:
        problems += error.problems
        return None


def _component_problems(serving: Built[ServingOptions], model: Any) -> list[Problem]:
    """Overrides and residency selectors that name no component of this model."""
    problems: list[Problem] = []
    for table in TABLES:
        for name, value in getattr(serving.params, table).items():
            if name not in model.components:
                names = did_you_mean(name, model.components)
                message = f"{name} is no component of this model."
                problems.append(Problem(table, value, message, names))
    try:
        resolve_residency(serving.params.residency, model.components)
    except ParameterError as error:
        problems += error.problems
    return problems


def _file_name_problems(output: OutputOptions, prompts: int) -> list[Problem]:
    name = output.output_file_name
    if name is None or prompts <= 1:
        return []
    message = f"is one name, but there are {prompts} prompts."
    remedy = "Leave it out; names are made from the prompts."
    return [Problem("output_file_name", name, message, remedy)]


def _check_folder(options: OutputOptions) -> None:
    if options.save_output:
        check_folder(Path(options.output_path))


def _check_saving(output: Built[OutputOptions], one: Prepared) -> None:
    """Refuse what could not be saved; a format that a file name chose is blamed on the name."""
    try:
        _check_format(output.params, one)
    except ParameterError as error:
        name = output.params.output_file_name
        if name is None or "output_format" in output.given:
            raise
        raise ParameterError(
            [
                problem._replace(field="output_file_name", value=name)
                if problem.field == "output_format"
                else problem
                for problem in error.problems
            ]
        ) from None


def _check_format(options: OutputOptions, one: Prepared) -> None:
    params = one.params
    moving = isinstance(params, VideoParams)
    check_saving(
        "video" if moving else "image",
        frames=params.num_frames if moving else 1,
        height=params.height or 1,  # None: the pipeline decides
        width=params.width or 1,
        fps=params.fps if moving else 0,
        file_name=options.output_file_name,
        format=options.output_format,
        quality=options.output_quality,
        preset=options.x264_preset,
    )


def _images(prepared: Sequence[Prepared], problems: list[Problem]) -> dict[str, Picture]:
    images: dict[str, Picture] = {}
    for path in dict.fromkeys(path for one in prepared for path in one.image_paths):
        loaded = _attempt(lambda path=path: load_image(path), problems)
        if loaded is not None:
            images[path] = loaded
    return images


def _size(picture: Picture) -> tuple[int, int]:
    return picture.shape[1], picture.shape[0]


def _request(
    number: int, one: Prepared, output: OutputOptions, images: Mapping[str, Picture]
) -> Request:
    return Request(
        id=f"request-{number}",
        params=one.params.model_dump(mode="json"),
        seeds=one.seeds,
        images=tuple(images[path] for path in one.image_paths),
        want_latents=output.save_latents,
        preview_every=one.params.preview_every,
    )
