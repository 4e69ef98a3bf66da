"""From layers to requests: several prompts, their seeds and pictures, validated together.

* `prepare(cls, layers) -> list[Prepared]`: one entry per prompt; raises one `ParameterError`.
* `fit_to_images(prepared, sizes)`: the output size that the decoded pictures ask for.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from sgld.api.errors import ParameterError, Problem
from sgld.params.merge import Built, Layer, build, distinct
from sgld.params.nearest import canonical
from sgld.params.options import as_path, scalar
from sgld.params.sampling import SamplingParams
from sgld.params.seeds import seeds_for


class Prepared(NamedTuple):
    """One prompt, ready to run: parameters, one seed per output, and its input pictures."""

    built: Built[SamplingParams]
    seeds: tuple[int, ...]
    image_paths: tuple[str, ...]

    @property
    def params(self) -> SamplingParams:
        """The validated parameters."""
        return self.built.params


def prepare(
    cls: type[SamplingParams],
    layers: Sequence[Layer],
    *,
    images_given: int = 0,
    draw: Callable[[int], int] = secrets.randbelow,
) -> list[Prepared]:
    """Validate `layers` (strongest first) for every prompt in them.

    `prompt` may be one text or a list; `image_path` one picture for all prompts or a list with one
    for each. `images_given` counts pictures that the caller holds already decoded. Raises
    `ParameterError` with every problem of every prompt.
    """
    prompts, layers = _take_prompts(layers)
    images, layers = _take_images(cls, layers, len(prompts), images_given)
    builds: list[Built[SamplingParams]] = []
    problems: list[Problem] = []
    for prompt, paths in zip(prompts, images, strict=True):
        try:
            own, count = _with(layers, "prompt", prompt), len(paths) + images_given
            built = build(cls, _counted(cls, own, count))
            problems += _image_problems(cls, layers, paths, images_given)
            builds.append(built)
        except ParameterError as error:
            problems += error.problems
    if len(prompts) != len(builds) or problems:
        raise ParameterError(distinct(problems))
    return _seeded(builds, images, layers, draw)


def fit_to_images(prepared: Prepared, sizes: Sequence[tuple[int, int]]) -> Prepared:
    """Give the output the shape of the first picture, where the family wants that.

    `sizes` are width and height of the decoded pictures. An explicit size is left alone; otherwise
    the area of the model's own size is kept and the result noted and put on the grid. Raises
    `ParameterError` for pictures that the family does not take.
    """
    params, given = prepared.params, prepared.built.given
    if findings := params.image_findings(sizes):
        raise ParameterError([Problem(f.name, None, f.message, f.remedy, f.code) for f in findings])
    if not params.size_from_image or not sizes or "width" in given:
        return prepared
    width, height = params.fit_to_image(*sizes[0], params.width * params.height)
    origins = prepared.built.origins | {"width": "input picture", "height": "input picture"}
    note = f"size is {width}x{height}, from the shape of the input picture"
    fitted = params.model_copy(update={"width": width, "height": height})
    built = prepared.built._replace(
        params=fitted, origins=origins, notes=(*prepared.built.notes, note)
    )
    return prepared._replace(built=built)


def _find(layers: Sequence[Layer], name: str) -> tuple[Layer, str] | None:
    """The strongest layer that gives `name`, with the user's key for it."""
    for layer in layers:
        for key, value in layer.values.items():
            if canonical(key) == name and value is not None:
                return layer, key
    return None


def _with(layers: Sequence[Layer], name: str, value: Any) -> list[Layer]:
    """The layers with `value` in place of the one that wins for `name`."""
    found = _find(layers, name)
    if found is None:
        return list(layers)
    owner, key = found
    return [
        layer._replace(values={**layer.values, key: value}) if layer is owner else layer
        for layer in layers
    ]


def _take_prompts(layers: Sequence[Layer]) -> tuple[list[Any], list[Layer]]:
    found = _find(layers, "prompt")
    value = found[0].values[found[1]] if found else None
    if not isinstance(value, list | tuple):
        return [value], list(layers)
    return list(value) or [""], list(layers)


def _take_images(
    cls: type[SamplingParams], layers: Sequence[Layer], prompts: int, given: int
) -> tuple[list[tuple[str, ...]], list[Layer]]:
    """The pictures of each prompt; that of the model itself only where none is given. Wrong types
    are left in the layers for `build` to refuse."""
    found = _find(layers, "image_path")
    if found is not None and found[0].kind == "preset" and given:
        found = None
    value = as_path(found[0].values[found[1]]) if found else None
    paths = (
        (value,)
        if isinstance(value, str)
        else tuple(value)
        if isinstance(value, list | tuple)
        else ()
    )
    if cls.max_images > 1 or len(paths) != prompts or len(paths) <= 1:
        return [paths] * prompts, list(layers)
    return [(path,) for path in paths], list(layers)


def _counted(cls: type[SamplingParams], layers: list[Layer], count: int) -> list[Layer]:
    """The layers with the number of input pictures, for families with a field for that. Raises
    `ParameterError` when the user gives another number."""
    field = cls.image_count_field
    if not field:
        return layers
    found = _find(layers, field)
    if found is not None:
        layer, key = found
        said = scalar(layer.values[key])
        if said != count:
            message = f"there are {count} pictures, which are counted by themselves."
            raise ParameterError([Problem(layer.spell(key), said, message, "Leave it out.")])
    return [Layer("call", {field: count}), *layers]


def _image_problems(
    cls: type[SamplingParams], layers: Sequence[Layer], paths: tuple[str, ...], images_given: int
) -> list[Problem]:
    found = _find(layers, "image_path")
    spelled = (
        found[0].spell(found[1])
        if found
        else (layers[0].spell("image_path") if layers else "image_path")
    )
    if images_given and not cls.takes_image:
        reason = cls.refused.get("image_path", "This model takes no input picture.")
        code = "unsupported_parameter"
        return [Problem("images", images_given, "are not taken here.", reason, code)]
    count = len(paths) + images_given
    if cls.needs_image and count == 0:
        message = "is required: this model starts from a picture."
        return [Problem(spelled, None, message, "Give a file.", "missing_parameter")]
    if cls.takes_image and count > cls.max_images:
        message = f"{count} pictures for one prompt; this model takes {cls.max_images}."
        several = f"Give at most {cls.max_images}; every prompt gets all of them."
        remedy = "Give one for all prompts or one for each." if cls.max_images == 1 else several
        return [Problem(spelled, list(paths) or count, message, remedy)]
    return []


def _seeded(
    builds: list[Built[SamplingParams]],
    images: list[tuple[str, ...]],
    layers: Sequence[Layer],
    draw: Callable[[int], int],
) -> list[Prepared]:
    first = builds[0].params
    try:
        seeds = seeds_for(first.seed, len(builds), first.num_outputs_per_prompt, draw)
    except ValueError as error:
        found = _find(layers, "seed")
        spelled = found[0].spell(found[1]) if found else "seed"
        raise ParameterError([Problem(spelled, first.seed, f"{error}.")]) from None
    prepared: list[Prepared] = []
    for built, own, paths in zip(builds, seeds, images, strict=True):
        update: dict[str, Any] = {"seed": own[0]}
        if "image_path" in type(built.params).model_fields:
            update["image_path"] = paths or None
        origins = built.origins | ({"seed": "drawn"} if first.seed is None else {})
        params = built.params.model_copy(update=update)
        prepared.append(Prepared(built._replace(params=params, origins=origins), own, paths))
    return prepared
