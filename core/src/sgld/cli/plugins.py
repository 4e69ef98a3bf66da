"""`sgld plugins`: what plugins bring, in which state they are, and why a model goes to which."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from sgld.api.contracts import CONTRACTS
from sgld.cli.light import LightCommand, LightGroup
from sgld.cli.quiet import quiet_stdout, write, write_json

if TYPE_CHECKING:
    from sgld.plugins.catalog import Catalog
    from sgld.plugins.match import Files

app = typer.Typer(
    cls=LightGroup,
    rich_markup_mode=None,
    no_args_is_help=True,
    add_completion=False,
    help="Show what plugins bring and why one is not usable.",
)

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
    model: Annotated[str, typer.Argument(help="A folder or hub id.")],
    model_id: Annotated[str, typer.Option("--model-id", help="Recognise it by this id.")] = "",
    json: AsJson = False,
    prefer: Prefer = None,
) -> None:
    """Show how each pipeline's claims score for a model, and which one serves it."""
    from sgld.plugins import report
    from sgld.plugins.match import Evidence
    from sgld.plugins.recognise import recognise, score_table

    catalog = read_catalog(prefer)
    evidence = Evidence(_files(model), model_id)
    with quiet_stdout():
        tried = score_table(catalog, evidence)
    if json:
        write_json([report.plain(row) for row in tried])
    else:
        write(report.why_text(tried))
    found = recognise(catalog, evidence)
    if not json:
        write(f"\n{model} is served by {found.entry.spec.id} ({found.entry.owner})")


def _files(model: str) -> Files:
    """The resolved folder, or only the name of a hub id: a question must not download anything."""
    from sgld.plugins.match import NameOnly

    if not os.path.exists(os.path.expanduser(model)):
        typer.echo(f"note: {model!r} is not a local folder; only its name is looked at.", err=True)
        return NameOnly(model)
    from sgld.weights.resolve import resolve

    return resolve(model)
