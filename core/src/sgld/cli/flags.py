"""Command-line flags made from option classes, so that help and validation have one source.

* `FlagCommand`: a Typer command whose flags take dashes or underscores, whose booleans take an
  optional true/false, and which hands unknown flags on as text instead of stopping.
* `with_options(*classes)`: decorator that gives a command function one flag per field.
* `flag_layer(values, extra, given)`: what was typed, as the strongest settings layer.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Final, TypeVar

import typer
from typer.core import TyperCommand

from sgld.api.errors import ParameterError, Problem
from sgld.params.components import alias
from sgld.params.merge import Layer
from sgld.params.nearest import canonical
from sgld.params.options import Options, branches, extras, limits, rule

F = TypeVar("F", bound=Callable[..., Any])

LISTS: Final = frozenset({"prompt", "image_path", "seed", "residency", "attention", "prefer"})
"""Fields whose flag may be repeated."""

SHORT: Final[Mapping[str, str]] = {"prompt": "-p", "output_path": "-o"}
SKIPPED: Final = frozenset({"component_paths", "component_weights_paths", "component_precisions"})
"""Fields with flags of their own form, `--component-path.NAME`."""

NEGATIVE_NUMBER: Final = re.compile(r"-[0-9.]")
EXTRA: Final = "sgld.extra_flags"


def with_options(
    *groups: tuple[str, type[Options]], without: Iterable[str] = ()
) -> Callable[[F], F]:
    """Give a command function one keyword parameter per field of the (title, class) groups, those
    named in `without` aside.

    The function takes them as `**values`, all text and None when not given. A field that two
    classes share appears once.
    """

    def decorate(function: F) -> F:
        own = [
            parameter
            for parameter in inspect.signature(function, eval_str=True).parameters.values()
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        taken = {parameter.name for parameter in own} | set(without)
        made: list[inspect.Parameter] = []
        for title, cls in groups:
            for name in _fields(cls):
                if name not in taken:
                    taken.add(name)
                    made.append(_parameter(cls, name, title))
        function.__signature__ = inspect.Signature(own + made)  # pyright: ignore[reportFunctionMemberAccess]
        function.__annotations__ = {p.name: p.annotation for p in own + made}
        return function

    return decorate


def _fields(cls: type[Options]) -> list[str]:
    names = [name for name in cls.model_fields if name not in SKIPPED]
    return names + list(cls.conveniences)


def _parameter(cls: type[Options], name: str, title: str) -> inspect.Parameter:
    many = name in LISTS
    info = typer.Option(
        "--" + name.replace("_", "-"),
        *([SHORT[name]] if name in SHORT else []),
        help=_help(cls, name),
        metavar=_metavar(cls, name),
        rich_help_panel=title,
        show_default=False,
    )
    kind = list[str] | None if many else str | None
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, info]
    )


def _help(cls: type[Options], name: str) -> str:
    if name in cls.conveniences:
        return cls.conveniences[name].description
    field = cls.model_fields[name]
    default = field.default
    shown = "" if field.is_required() or default in (None, "", {}) else f" (default {default})"
    words = rule(field) if rule(field).startswith("one of") else ""
    return " ".join(part for part in (field.description, words and f"({words})") if part) + shown


def _metavar(cls: type[Options], name: str) -> str:
    if name in cls.conveniences:
        return "WxH" if name == "size" else "NUMBER"
    field = cls.model_fields[name]
    kind = branches(field.annotation)[0]
    low, high = limits(field)
    if kind in (int, float) and low is not None and high is not None:
        return f"{low}..{high}" if kind is int else f"{low:g}..{high:g}"
    if kind is bool:
        return "[true|false]"
    return "NAME=VALUE" if extras(field).get("rule", "").startswith("a table") else "TEXT"


class FlagCommand(TyperCommand):
    """A command that sorts its arguments before the parser sees them."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Rewrite spellings and booleans; unknown flags go to `ctx.meta` as (flag, text) pairs."""
        known: dict[str, str] = {}
        for parameter in self.params:
            if parameter.param_type_name == "option":
                single = bool(getattr(parameter, "is_flag", False))
                typed = getattr(parameter, "metavar", "") == "[true|false]"
                for flag in parameter.opts:
                    known[flag] = "switch" if single else "bool" if typed else "value"
        try:
            plain, extra = sort_arguments(args, {**known, "--help": "switch"})
        except ParameterError as error:
            ctx.fail(str(error))
        ctx.meta[EXTRA] = extra
        return super().parse_args(ctx, plain)


def sort_arguments(
    arguments: Sequence[str], known: Mapping[str, str]
) -> tuple[list[str], list[tuple[str, str]]]:
    """Split arguments into those for the parser and the unknown flags with their text.

    `known` maps a flag to `value`, `bool` (takes an optional true/false and has a `--no-` form)
    or `switch` (likewise, but for the parser it is present or absent).
    """
    plain: list[str] = []
    extra: list[tuple[str, str]] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if word == "--":
            return [*plain, word, *rest], extra
        if not word.startswith("--"):
            plain.append(word)
            plain += rest[:1] if known.get(word) == "value" else []
            rest = rest[1:] if known.get(word) == "value" else rest
            continue
        written, equals, text = word.partition("=")
        flag = _dashed(written)
        value = text if equals else None
        kind = known.get(flag)
        positive = "--" + flag.removeprefix("--no-")
        if kind == "value":
            plain += [f"{flag}={value}"] if equals else [flag, *rest[:1]]
            rest = rest if equals else rest[1:]
        elif kind in ("bool", "switch"):
            plain += _boolean(flag, kind, _optional(value, rest))
        elif flag.startswith("--no-") and known.get(positive) in ("bool", "switch"):
            plain += _boolean(positive, known[positive], _inverted(_optional(value, rest)))
        else:
            extra.append((written, _value(value, rest)))
    return plain, extra


def _dashed(flag: str) -> str:
    return "--" + flag[2:].replace("_", "-")


def _optional(value: str | None, rest: list[str]) -> str:
    if value is not None:
        return value
    return rest.pop(0) if rest and rest[0].lower() in ("true", "false") else "true"


def _inverted(value: str) -> str:
    return {"true": "false", "false": "true"}.get(value.lower(), value)


def _boolean(flag: str, kind: str, value: str) -> list[str]:
    if kind == "bool":
        return [f"{flag}={value}"]
    if value.lower() not in ("true", "false"):
        raise ParameterError([Problem(flag, value, "must be true or false.")])
    return [flag] if value.lower() == "true" else []


def _value(value: str | None, rest: list[str]) -> str:
    if value is not None:
        return value
    if rest and (not rest[0].startswith("-") or NEGATIVE_NUMBER.match(rest[0])):
        return rest.pop(0)
    return "true"


def flag_layer(
    values: Mapping[str, Any], extra: Iterable[tuple[str, str]], given: Iterable[str] = ()
) -> Layer:
    """The settings that were typed, as a layer.

    `values` are declared flags, `extra` undeclared ones, among them component overrides, and
    `given` the `key=value` words of `--param`. Raises `ParameterError` for one setting typed twice.
    """
    named = {name: value for name, value in values.items() if value not in (None, [])}
    spelled: dict[str, str] = {}
    problems: list[Problem] = []
    for written, text in [*extra, *_pairs(given, problems)]:
        key = written.removeprefix("--param ")
        name, value = alias(key, text)
        before = named.get(name)
        if (
            isinstance(before, dict)
            and isinstance(value, dict)
            and not before.keys() & value.keys()
        ):
            value = {**before, **value}
        elif name in named:
            problems.append(Problem(written, text, "is given twice.", "Give it once."))
        named[name], spelled[name] = value, written
    if problems:
        raise ParameterError(problems)
    return Layer("flag", named, spelled=spelled)


def _pairs(given: Iterable[str], problems: list[Problem]) -> list[tuple[str, str]]:
    read: list[tuple[str, str]] = []
    for word in given:
        name, equals, value = word.partition("=")
        if not equals or not canonical(name):
            problems.append(Problem("--param", word, "must be NAME=VALUE."))
        else:
            read.append((f"--param {name.strip()}", value))
    return read
