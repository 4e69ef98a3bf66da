"""`sgld plugins`: what plugins bring, in which state they are, and why a model goes to which."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from sgld.api.contracts import CONTRACTS
from sgld.api.errors import UserError
from sgld.cli.check_plugins import check_plugins
from sgld.cli.light import LightCommand, LightGroup
from sgld.cli.new_plugin import new_plugin
from sgld.cli.quiet import quiet_stdout, write, write_json

if TYPE_CHECKING:
    from sgld.plugins.catalog import Catalog
    from sgld.plugins.why import Answer

app = typer.Typer(
    cls=LightGroup,
    rich_markup_mode=None,
    no_args_is_help=True,
    add_completion=False,
    help="Show what plugins bring and why one is not usable.",
)

app.command("check", cls=LightCommand)(check_plugins)
app.command("new", cls=LightCommand)(new_plugin)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Prefer = Annotated[
    list[str] | None,
    typer.Option("--prefer", help="KIND:ID=DISTRIBUTION; settles who answers. May be repeated."),
]


def read_catalog(prefer: list[str] | None = None) -> Catalog:
    """All plugins, broken ones included; what they print goes to stderr."""
    from sgld.plugins.catalog import collect, parse_prefer

    with quiet_stdout():
        return collect(os.environ, prefer=parse_prefer(prefer or ()))


@app.command("list", cls=LightCommand)
def list_plugins(
    json: AsJson = False,
    kind: Annotated[
        str, typer.Option("--kind", help=f"Only this kind: {', '.join(CONTRACTS)}.")
    ] = "",
    prefer: Prefer = None,
) -> None:
    """List plugins with version, what they bring, state and reason; exit 1 if one has failed."""
    from sgld.plugins import report
    from sgld.plugins.catalog import unknown

    if kind and kind not in CONTRACTS:
        raise unknown("kind", kind, CONTRACTS)
    catalog = read_catalog(prefer)
    if json:
        write_json(report.plugins_json(catalog, kind))
    else:
        write(report.plugins_text(catalog, kind))
    if catalog.fatal:
        raise typer.Exit(1)


@app.command("show", cls=LightCommand)
def show_plugin(
    name: Annotated[str, typer.Argument(help="A plugin or distribution name.")],
    json: AsJson = False,
    prefer: Prefer = None,
) -> None:
    """Show every record of one plugin."""
    from sgld.plugins import report
    from sgld.plugins.catalog import unknown

    catalog = read_catalog(prefer)
    rows = [row for row in catalog.plugins if name in (row.name, row.dist)]
    if not rows:
        raise unknown("plugin", name, {row.name for row in catalog.plugins})
    if json:
        write_json([report.plugin_json(row) for row in rows])
    else:
        write("\n\n".join(report.plugin_text(catalog, row) for row in rows))
    if any(row.state == "failed" for row in rows):
        raise typer.Exit(1)


@app.command("why", cls=LightCommand)
def why(
    model: Annotated[
        str, typer.Argument(help="A folder, a hub id, tiny:NAME, config:NAME or a carried model.")
    ] = "",
    op: Annotated[
        str, typer.Option("--op", help="An op, or several by their beginning: attention, norm.")
    ] = "",
    platform: Annotated[
        bool, typer.Option("--platform", help="Which device family is taken.")
    ] = False,
    cache: Annotated[
        str,
        typer.Option("--cache", help="Which cache policies this pipeline (or tiny:NAME) takes."),
    ] = "",
    device: Annotated[
        str, typer.Option("--device", help="With --op: for this platform, here or not.")
    ] = "",
    model_id: Annotated[str, typer.Option("--model-id", help="Recognise it by this id.")] = "",
    pipeline: Annotated[
        str, typer.Option("--pipeline-class-name", help="As of `sgld serve`.")
    ] = "",
    backend: Annotated[str, typer.Option("--backend", help="As of `sgld serve`.")] = "",
    json: AsJson = False,
    prefer: Prefer = None,
) -> None:
    """Explain a decision: who was considered, who is taken, and why not the others.

    Exits 2 when nothing can be taken, 1 when that is a plugin's fault.
    """
    from sgld.cli.why_model import why_model
    from sgld.plugins import report

    asked = [bool(model), bool(op), platform, bool(cache)]
    if sum(asked) != 1:
        raise UserError(
            "give one of MODEL, --op OP, --platform and --cache PIPELINE.",
            remedy="For example: sgld plugins why --op attention.",
        )
    if device and not op:
        raise UserError("--device goes with --op.", remedy="Add --op attention, for example.")
    if not model and (model_id or pipeline or backend):
        raise UserError("--model-id, --pipeline-class-name and --backend go with MODEL.")
    catalog = read_catalog(prefer)
    with quiet_stdout():
        if model:
            options = {"pipeline": pipeline, "backend": backend or "auto"}
            answers = [why_model(catalog, model, model_id=model_id, **options)]
        else:
            answers = _why_machine(catalog, op, cache, device or "auto")
    if json:
        plain = [answer.to_json() for answer in answers]
        write_json(plain if op else plain[0])
    else:
        write("\n\n".join(report.why_text(answer) for answer in answers))
    for answer in answers:
        if answer.error is not None:
            raise answer.error


def _why_machine(catalog: Catalog, op: str, cache: str, device: str) -> list[Answer]:
    from sgld.plugins.why_machine import machine, ops_named, why_cache, why_op, why_platform

    if op:
        names, at = ops_named(op), machine(catalog, device)
        return [why_op(catalog, name, at) for name in names]
    return [why_cache(catalog, cache)] if cache else [why_platform(catalog)]
