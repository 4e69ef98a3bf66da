"""What the fallback finds out about a checkpoint before anything heavy is imported."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sgld.api.errors import ModelError
from sgld.params.inspected import Inspected
from sgld.params.serving import ServingOptions
from sgld.weights.files import ModelFiles
from sgld_diffusers.checkpoint import (
    ClassPlace,
    absent_classes,
    foreign_code,
    instance,
    pipeline_class,
    tiles,
    vaes,
)
from sgld_diffusers.params import HANDLED, OURS, make_params
from sgld_diffusers.reading.described import Described, describe

REMEDY: Final = "A plugin for this family can; `sgld plugins list` shows those here."
UNSERVED: Final = (
    (r"VideoToVideo|Video2Video|V2V|^LucyEdit", "starts from a clip, which a request cannot carry"),
    (r"^ShapE", "makes three-dimensional objects; pictures and clips are what can be delivered"),
)
"""Class names whose signatures do not say so → why such a pipeline cannot be served."""


def inspect(files: ModelFiles, options: ServingOptions) -> Inspected:
    """The parameters of this checkpoint, and which options it cannot fulfil.

    Raises ModelError for a pipeline that cannot be served.
    """
    place = pipeline_class(files, wanted_class(options.pipeline_class_name))
    described = describe(place.source, instance(files, place))
    check_arguments(described)
    absent = absent_classes(files, _folders(options))
    if absent:
        raise ModelError(
            f"{'; '.join(absent)}.",
            code="model_not_recognised",
            remedy="Correct model_index.json, or install a version of the library that has it.",
        )
    return Inspected(make_params(described), tuple(_refusals(files, place, options)))


def check_arguments(described: Described) -> None:
    """Refuse a pipeline that needs what a request cannot carry, or makes what nobody can see."""
    for pattern, what in UNSERVED:
        if re.search(pattern, described.name):
            raise ModelError(
                f"{described.name} {what}.", code="model_not_recognised", remedy=REMEDY
            )
    missing = [
        argument
        for name, argument in described.arguments.items()
        if argument.required
        and name not in HANDLED
        and name not in OURS
        and name != described.image
        and not argument.scalars
        and argument.annotation
    ]
    if missing:
        names = ", ".join(f"{row.name} ({row.annotation})" for row in missing)
        raise ModelError(
            f"{described.name} needs {names}, which a request cannot carry.",
            code="model_not_recognised",
            remedy=REMEDY,
        )


def wanted_class(asked: str | None) -> str:
    """The class that the user asks for; the fallback's own id means the checkpoint's."""
    return "" if asked in (None, "diffusers") else asked


def _folders(options: ServingOptions) -> dict[str, Path]:
    return {name: Path(path).expanduser() for name, path in options.component_paths.items()}


def _refusals(files: ModelFiles, place: ClassPlace, options: ServingOptions) -> Iterator[str]:
    """Options that a pipeline of diffusers cannot fulfil, one clause each."""
    code = foreign_code(files, _folders(options))
    if code and not options.trust_remote_code:
        yield f"--trust-remote-code is off, and {'; '.join(code)}"
    for role, backend in options.attention.items():
        if backend != "auto":
            yield f"--attention {role}={backend}: {place.name} has attention of its own"
    for name in options.component_weights_paths:
        yield f"--component-weights-path.{name}: give a whole folder with --component-path.{name}"
    if options.vae_tiling and not any(map(tiles, vaes(files))):
        yield f"--vae-tiling: no VAE of {place.name} decodes in tiles"
