"""`sgld plugins check`: the doctor."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from sgld.api.errors import UserError
from sgld.cli.quiet import write, write_json


def check_plugins(
    name: Annotated[str, typer.Argument(help="Only this plugin or distribution.")] = "",
    deep: Annotated[
        bool,
        typer.Option(
            "--deep",
            help="Import every target and compare it with its contract; done anyway with NAME.",
        ),
    ] = False,
    no_deep: Annotated[
        bool, typer.Option("--no-deep", help="With NAME: import no target; faster.")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 1 when there are notes.")] = False,
    timeout: Annotated[
        str, typer.Option("--timeout", help="Seconds that each step may take.")
    ] = "30",
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
    prefer: Annotated[
        list[str] | None,
        typer.Option(
            "--prefer", help="KIND:ID=DISTRIBUTION; settles who answers. May be repeated."
        ),
    ] = None,
) -> None:
    """Examine every plugin in a process of its own; exit 2 if one is bad, else 0 (see --strict)."""
    from sgld.plugins.catalog import parse_prefer
    from sgld.plugins.doctor import show
    from sgld.plugins.doctor.check import check

    if deep and no_deep:
        raise UserError("--deep and --no-deep exclude each other.", remedy="Give one of them.")
    report = check(
        os.environ,
        name=name,
        deep=deep or bool(name and not no_deep),
        timeout=_seconds(timeout),
        prefer=parse_prefer(prefer or ()),
    )
    if json:
        write_json(show.as_json(report, strict))
    else:
        write(show.text(report, strict))
    code = report.exit_code(strict)
    if code:
        raise typer.Exit(code)


def _seconds(text: str) -> float:
    from math import isfinite

    from sgld.api.errors import ParameterError, Problem

    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not (isfinite(seconds) and seconds > 0):
        problem = Problem("timeout", text, "must be a number of seconds above 0.")
        raise ParameterError([problem])
    return seconds
