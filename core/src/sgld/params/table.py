"""A family's parameters as rows of a table: what the API and `sgld models show` tell of them."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import Any

from sgld.params.options import Options, branches, extras, limits, rule

TYPES: Mapping[Any, str] = {int: "integer", float: "number", bool: "boolean", str: "string"}


def parameter_rows(
    cls: type[Options], defaults: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """One row per field and convenience, in the order the class declares them; JSON values.

    `defaults` are those of a checkpoint's preset; they replace the class's own.
    """
    rows = [_field_row(cls, name, defaults or {}) for name in cls.model_fields]
    for name, convenience in cls.conveniences.items():
        rows.append(
            {
                "name": name,
                "type": "convenience",
                "rule": convenience.rule,
                "unit": convenience.unit,
                "sets": list(convenience.sets),
                "required": False,
                "default": None,
                "minimum": None,
                "maximum": None,
                "choices": [],
                "description": convenience.description,
            }
        )
    return rows


def _field_row(cls: type[Options], name: str, defaults: Mapping[str, Any]) -> dict[str, Any]:
    field = cls.model_fields[name]
    kinds = branches(field.annotation)
    low, high = limits(field)
    required = field.is_required() and name not in defaults
    default = None if field.is_required() else field.get_default(call_default_factory=True)
    value = defaults.get(name, default)
    choices = [
        word
        for kind in kinds
        if typing.get_origin(kind) is typing.Literal
        for word in typing.get_args(kind)
    ]
    return {
        "name": name,
        "type": " or ".join(dict.fromkeys(_type(kind) for kind in kinds)),
        "rule": rule(field),
        "unit": extras(field).get("unit", ""),
        "sets": [],
        "required": required,
        "default": list(value) if isinstance(value, tuple) else value,
        "minimum": low,
        "maximum": high,
        "choices": choices,
        "description": field.description or "",
    }


def _type(kind: Any) -> str:
    origin = typing.get_origin(kind)
    if origin is typing.Literal:
        return "string"
    if origin in (tuple, list):
        return f"list of {_type(typing.get_args(kind)[0])}"
    return TYPES.get(kind, "object")
