"""The base of everything a user may set: strict, frozen pydantic models that explain themselves.

`Options` is what `SamplingParams`, `ServingOptions` and `OutputOptions` stand on. A field is made
with `option(...)`, which adds unit and rule to description and range; `rule(field)` turns these
into the one sentence that every way in (flag, environment, file, Python, HTTP) shows for a wrong
value. `from_text` reads the strings of flags and environment variables.
"""

from __future__ import annotations

import os
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, Self

import annotated_types
from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, model_validator
from pydantic.config import JsonDict
from pydantic.fields import FieldInfo

LAYERED = {"layered": True}
"""Validation context of `sgld.params.merge.build`, which runs the cross-field rules itself."""

INTEGER = re.compile(r"[+-]?[0-9]+")
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?inf(inity)?|nan", re.I)
WORDS: Mapping[str, Any] = {"true": True, "false": False, "null": None, "none": None}


class Text(NamedTuple):
    """Annotation metadata: how one field reads the text of a flag or environment variable."""

    parse: Callable[[Any], Any]


class Finding(NamedTuple):
    """A broken cross-field rule: which field to blame, what is wrong and what to do."""

    name: str
    message: str
    remedy: str = ""
    code: str = "invalid_value"


class Settled(NamedTuple):
    """Values after the documented adjustments, with a note for each and what is still wrong."""

    values: dict[str, Any]
    notes: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()


class Convenience(NamedTuple):
    """A key that users may write although it is no field: it is turned into other fields."""

    description: str
    rule: str
    sets: tuple[str, ...]
    unit: str = ""


class Deferred:
    """A value that becomes a number only in `settle`, when the other fields are known."""


class Auto(Deferred):
    """The model's own value (preset or built-in), whatever a weaker layer of the user says."""


class Unreadable(ValueError):
    """A convenience value that cannot be turned into fields; the message is the rule it broke."""


def option(
    default: Any = ...,
    description: str = "",
    *,
    unit: str = "",
    rule: str = "",
    merge: str = "replace",
    **limits: Any,
) -> Any:
    """A pydantic field with unit, rule sentence and merge mode (`replace` or `keys` for maps)."""
    extra: JsonDict = {"unit": unit, "rule": rule, "merge": merge}
    return Field(default, description=description, json_schema_extra=extra, **limits)


class Options(BaseModel):
    """Base of all option classes: unknown names, wrong types and non-finite numbers are refused."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=()
    )

    conveniences: ClassVar[Mapping[str, Convenience]] = {}
    """Extra keys accepted on the way in, see `expand`."""

    refused: ClassVar[Mapping[str, str]] = {}
    """Names that exist for other models, with the reason why this one does not take them."""

    @classmethod
    def expand(cls, name: str, value: Any) -> dict[str, Any]:
        """Turn one convenience into fields; raises `Unreadable` with the rule it broke."""
        raise Unreadable(f"{name} is not supported")

    @classmethod
    def settle(cls, values: dict[str, Any], given: frozenset[str]) -> Settled:
        """Apply documented adjustments and cross-field rules; `given` are the user's own names."""
        return Settled(values)

    @classmethod
    def accepted(cls) -> frozenset[str]:
        """Every name that may be written: fields and conveniences."""
        return frozenset(cls.model_fields) | frozenset(cls.conveniences)

    @model_validator(mode="wrap")
    @classmethod
    def _settle_direct(
        cls, data: Any, handler: Callable[[Any], Self], info: ValidationInfo
    ) -> Self:
        if (info.context or {}).get("layered") or not isinstance(data, Mapping):
            return handler(data)
        values: dict[str, Any] = {}
        for name, value in typing.cast("Mapping[str, Any]", data).items():
            values |= cls.expand(name, value) if name in cls.conveniences else {name: value}
        plain = {name: value for name, value in values.items() if not isinstance(value, Deferred)}
        first = handler(plain)
        complete = {name: getattr(first, name) for name in cls.model_fields} | {
            name: value for name, value in values.items() if isinstance(value, Deferred)
        }
        settled = cls.settle(complete, frozenset(values))
        if settled.findings:
            raise ValueError("; ".join(f"{f.name}: {f.message}" for f in settled.findings))
        return handler(settled.values)


def as_text(value: Any) -> Any:
    """A `pathlib` path as text, also within a list; anything else as it is."""
    if isinstance(value, list | tuple):
        return tuple(as_text(item) for item in value)
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def as_path(value: Any) -> Any:
    """As `as_text`, with `~` as the user's home: shells leave it alone behind an equals sign."""
    value = as_text(value)
    if isinstance(value, tuple):
        return tuple(as_path(item) for item in value)
    return os.path.expanduser(value) if isinstance(value, str) and value[:1] == "~" else value


def branches(annotation: Any) -> tuple[Any, ...]:
    """The alternatives of a type without `Annotated` and without `None`."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return branches(typing.get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        return tuple(
            part
            for arg in typing.get_args(annotation)
            if arg is not type(None)
            for part in branches(arg)
        )
    return (annotation,)


def from_text(field: FieldInfo, text: Any) -> Any:
    """The value that the text of a flag or variable stands for, typed as the field wants it.

    Text that does not fit stays text, so that it meets the same rule as anywhere else.
    """
    for mark in field.metadata:
        if isinstance(mark, Text):
            return mark.parse(text)
    kinds = branches(field.annotation)
    if any(kind is str or typing.get_origin(kind) is not None for kind in kinds):
        return text
    return scalar(text)


def scalar(text: Any) -> Any:
    """Read one word as true/false/null, whole number or number; anything else stays as it is."""
    if not isinstance(text, str):
        return text
    word = text.strip()
    if word.lower() in WORDS:
        return WORDS[word.lower()]
    if INTEGER.fullmatch(word):
        # More digits than any field allows: Python refuses to convert beyond 4300 of them.
        return int(word) if len(word) < 64 else text
    return float(word) if NUMBER.fullmatch(word) else text


def extras(field: FieldInfo) -> Mapping[str, Any]:
    """Unit, rule and merge mode that `option` stored."""
    extra = field.json_schema_extra
    return extra if isinstance(extra, dict) else {}


def limits(field: FieldInfo) -> tuple[float | None, float | None]:
    """Inclusive lower and upper limit of a number field; None where there is none."""
    low = high = None
    for mark in field.metadata:
        if isinstance(mark, annotated_types.Ge):
            low = typing.cast("float", mark.ge)
        elif isinstance(mark, annotated_types.Le):
            high = typing.cast("float", mark.le)
    return low, high


def rule(field: FieldInfo) -> str:
    """What a value must be, as the words after "must be": type, range and unit."""
    if written := extras(field).get("rule"):
        return str(written)
    kind = branches(field.annotation)[0]
    if typing.get_origin(kind) is typing.Literal:
        return "one of " + ", ".join(str(word) for word in typing.get_args(kind))
    if kind is bool:
        return "true or false"
    if kind in (int, float):
        noun = "a whole number" if kind is int else "a finite number"
        return noun + _range(*limits(field)) + _outside(field) + _unit(field)
    return "text"


def _range(low: float | None, high: float | None) -> str:
    if low is None:
        return "" if high is None else f" up to {high}"
    return f" of at least {low}" if high is None else f" from {low} to {high}"


def _outside(field: FieldInfo) -> str:
    """Limits that are not values themselves; plugins may use them."""
    words: list[str] = []
    for mark in field.metadata:
        if isinstance(mark, annotated_types.Gt):
            words.append(f"above {mark.gt}")
        elif isinstance(mark, annotated_types.Lt):
            words.append(f"below {mark.lt}")
        elif isinstance(mark, annotated_types.MultipleOf):
            words.append(f"a multiple of {mark.multiple_of}")
    return " " + " and ".join(words) if words else ""


def _unit(field: FieldInfo) -> str:
    unit = extras(field).get("unit")
    return f" ({unit})" if unit else ""
