"""Typer commands that start fast: text options and flags are not sent through pydantic.

Typer coerces every value with a pydantic adapter, whose import costs 100 ms, also where what the
parser gives has the right type already. Public: `LightCommand`, `LightGroup` for `cls=`.
"""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup


class _AsParsed:
    """Stands in for Typer's coercion where there is nothing to coerce."""

    def coerce(self, value: Any, param: Any, **_: Any) -> Any:
        several = param.multiple or param.nargs == -1
        return list(value or ()) if several else value


def _lighten(param: Any) -> Any:
    """Give a text option or flag the cheap coercion.

    This reaches into Typer 0.2x; where Typer looks otherwise nothing is changed, only slower.
    """
    annotation = getattr(getattr(param, "type_descriptor", None), "annotation", None)
    if annotation in (bool, str, list[str]) and getattr(param, "_runtime_param", 0) is None:
        param._runtime_param = _AsParsed()
    return param


class LightCommand(TyperCommand):
    """A command that imports no pydantic for text options and flags."""

    def get_params(self, ctx: Any) -> Any:
        """The parameters, `--help` included, each with the cheap coercion where it fits."""
        return [_lighten(param) for param in super().get_params(ctx)]


class LightGroup(TyperGroup):
    """A group that imports no pydantic for text options and flags."""

    def get_params(self, ctx: Any) -> Any:
        """The parameters, `--help` included, each with the cheap coercion where it fits."""
        return [_lighten(param) for param in super().get_params(ctx)]
