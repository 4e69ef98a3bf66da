"""What a user may replace per component: its folder, its weights, its precision. Torch-free."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from sgld.api.errors import ParameterError, Problem

WEIGHT_SUFFIXES: Final = (".safetensors", ".bin", ".pt", ".pth", ".ckpt")

PRECISIONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "auto": "auto",
        "float32": "float32",
        "fp32": "float32",
        "float": "float32",
        "bfloat16": "bfloat16",
        "bf16": "bfloat16",
        "float16": "float16",
        "fp16": "float16",
        "half": "float16",
    }
)
"""What a user may write for a precision → its one name; `auto` is the precision as stored."""

_FLAG: Final = re.compile(
    r"component[-_](?P<long>path|weights[-_]path|precision)s?\.(?P<component>\w[\w-]*)"
    r"|(?!component[-_])(?P<first>\w[\w-]*?)[-_](?P<short>weights[-_]path|path|precision)"
)


def parse_precision(value: str, field_name: str = "dtype") -> str:
    """`value` as one of `auto`, `float32`, `bfloat16`, `float16`.

    Raises:
        ParameterError: any other word.
    """
    known = PRECISIONS.get(value.strip().lower().removeprefix("torch."))
    if known is None:
        remedy = "Use one of auto, float32, bfloat16, float16."
        raise ParameterError([Problem(field_name, value, "not a known precision.", remedy)])
    return known


class OverrideFlag(NamedTuple):
    """A command-line flag that overrides one component; `kind` is `path`, `weights` or
    `precision`."""

    kind: str
    component: str


def override_flag(flag: str) -> OverrideFlag | None:
    """Read `--component-path.vae`, `--vae-path` and their like; None for any other flag.

    Ask this only about flags nobody else knows: `--output-path` would read as component `output`.
    """
    match = _FLAG.fullmatch(flag.lstrip("-"))
    if match is None:
        return None
    word = match["long"] or match["short"]
    kind = "weights" if word.startswith("weights") else word
    return OverrideFlag(kind, (match["component"] or match["first"]).replace("-", "_"))


@dataclass(frozen=True, slots=True)
class ComponentOverrides:
    """The user's replacements per component; make one with `build`, which normalises it.

    Args:
        paths: component → folder holding its config and weights.
        weights: component → weight file, index file or folder; its config stays the model's own.
        precisions: component → `auto`, `float32`, `bfloat16` or `float16`.
    """

    paths: Mapping[str, Path] = field(default_factory=dict)
    weights: Mapping[str, Path] = field(default_factory=dict)
    precisions: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def build(
        cls,
        paths: Mapping[str, str] | None = None,
        weights: Mapping[str, str] | None = None,
        precisions: Mapping[str, str] | None = None,
    ) -> ComponentOverrides:
        """Check and normalise what the user gave: a component path that is a weight file becomes a
        weights path.

        Raises:
            ParameterError: a path that does not exist, two weight sources for one component, an
                unknown precision; every problem is listed.
        """
        problems: list[Problem] = []
        folders: dict[str, Path] = {}
        sources: dict[str, Path] = {}
        kinds: dict[str, str] = {}
        for name, text in (weights or {}).items():
            sources[name] = _existing(f"component_weights_path.{name}", text, problems)
        for name, text in (paths or {}).items():
            path = _existing(f"component_path.{name}", text, problems)
            if not _is_weight_file(path):
                folders[name] = path
            elif name in sources:
                problems.append(_conflict(name, text, sources[name]))
            else:
                sources[name] = path
        for name, text in (precisions or {}).items():
            try:
                kinds[name] = parse_precision(text, f"component_precision.{name}")
            except ParameterError as error:
                problems.extend(error.problems)
        if problems:
            raise ParameterError(problems)
        return cls(folders, sources, kinds)

    def validate(self, names: Iterable[str]) -> None:
        """Check that every overridden component is one of the model's `names`.

        Raises:
            ParameterError: unknown components, each with the valid names.
        """
        valid = sorted(names)
        given = (
            ("component_path", self.paths),
            ("component_weights_path", self.weights),
            ("component_precision", self.precisions),
        )
        problems = [
            Problem(
                f"{kind}.{name}",
                str(value),
                f"this model has no component {name!r}.",
                f"Its components are {', '.join(valid) or 'none'}.",
                "unknown_component",
            )
            for kind, values in given
            for name, value in values.items()
            if name not in valid
        ]
        if problems:
            raise ParameterError(problems)

    def precision(self, name: str, default: str = "auto") -> str:
        """The precision asked for component `name`, else `default`."""
        return self.precisions.get(name, default)


NO_OVERRIDES: Final = ComponentOverrides()


def _existing(field_name: str, text: str, problems: list[Problem]) -> Path:
    path = Path(os.path.expanduser(text)).absolute()
    if not text.strip() or not os.path.exists(path):
        remedy = "Give a local folder or weight file."
        problems.append(Problem(field_name, text, "no such file or folder.", remedy))
    return path


def _is_weight_file(path: Path) -> bool:
    return not path.is_dir() and path.name.endswith((*WEIGHT_SUFFIXES, ".safetensors.index.json"))


def _conflict(name: str, text: str, weights: Path) -> Problem:
    return Problem(
        f"component_path.{name}",
        text,
        f"is a weight file, but component_weights_path.{name}={str(weights)!r} is given too.",
        "Give only one of them.",
        "conflict",
    )
