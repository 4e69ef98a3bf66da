"""Matches what a module needs with what a checkpoint has, and lists every difference. Torch-free.

Names travel in two steps. `rename` gives each stored tensor the module's name for it (a callable,
or a mapping where absent names stay as they are; None drops the tensor). `convert` then builds
module tensors out of renamed ones where one is made of several or several of one:

    Target("blocks.0.qkv.weight", ("blocks.0.q.weight", "blocks.0.k.weight", …), combine=torch.cat)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import translate
from typing import Any, NamedTuple, TypeAlias

from sgld.api.errors import ModelError

Shape: TypeAlias = tuple[int, ...]
Rename: TypeAlias = Callable[[str], str | None] | Mapping[str, str | None]
SHOWN = 10


class Target(NamedTuple):
    """One tensor of a module and the renamed stored tensors it is made of.

    `combine` takes the sources in order and returns the tensor; without it the one source is used
    as it is. It must also work on meta tensors: that is how its result's shape is checked.
    """

    name: str
    sources: tuple[str, ...]
    combine: Callable[[list[Any]], Any] | None = None


Convert: TypeAlias = Sequence[Target] | Callable[[frozenset[str]], Sequence[Target]]
"""Targets, or a function of the renamed stored names that returns them."""


class Mismatch(NamedTuple):
    """A tensor whose shape differs: `expected` by the module, `found` in the checkpoint."""

    name: str
    expected: Shape
    found: Shape


class CheckpointError(ModelError):
    """A checkpoint does not fit the module; `problems` lists every tensor."""

    code = "checkpoint_incomplete"

    def __init__(self, message: str, problems: Problems, *, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.problems = problems


@dataclass(frozen=True, slots=True)
class Problems:
    """Every difference between a checkpoint and a module; false when there is none.

    Args:
        missing: names the module needs that nothing provides.
        unexpected: stored names that nothing uses.
        shapes: tensors of another shape.
        doubled: module names that several stored tensors claim, as `name (a, b)`.
        other: anything else, as sentences.
    """

    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    shapes: tuple[Mismatch, ...] = ()
    doubled: tuple[str, ...] = ()
    other: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return any((self.missing, self.unexpected, self.shapes, self.doubled, self.other))

    def __str__(self) -> str:
        shapes = [
            f"{name} is {list(found)}, needed {list(expected)}"
            for name, expected, found in self.shapes
        ]
        parts = (
            _shown("missing", self.missing),
            _shown("unexpected", self.unexpected),
            _shown("wrong shape", shapes),
            _shown("claimed twice", self.doubled),
            _shown("other problem", self.other),
        )
        return "\n".join(part for part in parts if part)

    def raise_if_any(self, where: str, *, remedy: str = "") -> None:
        """Raise `CheckpointError` (`checkpoint_incomplete`) when there is a problem; `where` names
        the component or file."""
        if self:
            message = f"{where}: the checkpoint does not fit the model.\n{self}\n"
            remedy = remedy or "Check that it is whole and of this model."
            raise CheckpointError(message, self, remedy=remedy)


def _shown(title: str, rows: Sequence[str]) -> str:
    if not rows:
        return ""
    more = f"\n    … and {len(rows) - SHOWN} more" if len(rows) > SHOWN else ""
    return f"  {title} ({len(rows)}):\n    " + "\n    ".join(rows[:SHOWN]) + more


class Plan(NamedTuple):
    """How each module tensor is made: `targets` in no particular order, sources under their stored
    names, and the problems found."""

    targets: tuple[Target, ...]
    problems: Problems


def make_plan(
    expected: Mapping[str, Shape],
    stored: Mapping[str, Shape],
    *,
    rename: Rename | None = None,
    convert: Convert = (),
    optional: Iterable[str] = (),
    ignore: Iterable[str] = (),
    same: Iterable[Iterable[str]] = (),
    shape_of: Callable[[Target, Sequence[Shape]], Shape | None] | None = None,
) -> Plan:
    """Match `stored` with `expected`.

    Args:
        expected: module tensor name → shape.
        stored: stored tensor name → shape.
        rename: stored name → module name, None to drop it.
        convert: tensors made of several, or one of several.
        optional: patterns (`*`, `?`) of module names that may be missing.
        ignore: patterns of stored or renamed names that are known to be unused.
        same: groups of module names that are one tensor: one of a group is enough.
        shape_of: shape that a combining target has for given source shapes, None if unknown.
    """
    renamed, doubled = _rename(stored, rename, _matcher(ignore))
    conversions = convert(frozenset(renamed)) if callable(convert) else convert
    targets: dict[str, Target] = {}
    other: list[str] = []
    used: set[str] = set()
    lacking: list[str] = []
    for target in conversions:
        absent = [source for source in target.sources if source not in renamed]
        used.update(target.sources)
        if absent:
            lacking += [f"{source} (for {target.name})" for source in absent]
        elif target.combine is None and len(target.sources) != 1:
            other.append(f"{target.name} has {len(target.sources)} sources and no combine")
        elif target.name in targets:
            doubled.append(f"{target.name} (two conversions)")
        targets[target.name] = target
    for name in renamed:
        if name not in used and name in expected:
            if name in targets:
                doubled.append(f"{name} ({renamed[name]}, a conversion)")
            targets.setdefault(name, Target(name, (name,)))
    unexpected = [renamed[name] for name in renamed if name not in used and name not in targets]
    unexpected += [name for name in targets if name not in expected]
    missing = _missing(expected, targets, _matcher(optional), same)
    mismatches: list[Mismatch] = []
    final: list[Target] = []
    for target in targets.values():
        if target.name in expected and all(source in renamed for source in target.sources):
            final.append(target._replace(sources=tuple(renamed[s] for s in target.sources)))
            found = _shape(final[-1], stored, shape_of)
            if found is not None and found != tuple(expected[target.name]):
                mismatches.append(Mismatch(target.name, tuple(expected[target.name]), found))
    problems = Problems(
        (*missing, *lacking), tuple(unexpected), tuple(mismatches), tuple(doubled), tuple(other)
    )
    return Plan(tuple(final), problems)


def _matcher(patterns: Iterable[str]) -> Callable[[str], bool]:
    joined = "|".join(f"(?:{translate(pattern)})" for pattern in patterns)
    if not joined:
        return lambda name: False
    compiled = re.compile(joined)
    return lambda name: compiled.match(name) is not None


def _rename(
    stored: Iterable[str], rename: Rename | None, ignored: Callable[[str], bool]
) -> tuple[dict[str, str], list[str]]:
    claims: dict[str, list[str]] = {}
    for name in stored:
        if ignored(name):
            continue
        new = name
        if isinstance(rename, Mapping):
            new = rename.get(name, name)
        elif rename is not None:
            new = rename(name)
        if new is not None and not ignored(new):
            claims.setdefault(new, []).append(name)
    doubled = [f"{new} ({', '.join(names)})" for new, names in claims.items() if len(names) > 1]
    return {new: names[0] for new, names in claims.items()}, doubled


def _missing(
    expected: Mapping[str, Shape],
    targets: Mapping[str, Target],
    optional: Callable[[str], bool],
    same: Iterable[Iterable[str]],
) -> list[str]:
    covered: set[str] = set()
    for group in same:
        names = set(group)
        if names & targets.keys():
            covered |= names
    return [
        name
        for name in expected
        if name not in targets and name not in covered and not optional(name)
    ]


def _shape(
    target: Target,
    stored: Mapping[str, Shape],
    shape_of: Callable[[Target, Sequence[Shape]], Shape | None] | None,
) -> Shape | None:
    shapes = [tuple(stored[source]) for source in target.sources]
    if target.combine is None:
        return shapes[0]
    return shape_of(target, shapes) if shape_of is not None else None
