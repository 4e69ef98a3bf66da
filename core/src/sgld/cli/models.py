"""`sgld models`: which families are served, how each is recognised, and its parameters."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sgld.api.errors import UserError
from sgld.cli.light import LightCommand, LightGroup
from sgld.cli.plugins import AsJson, read_catalog
from sgld.cli.quiet import quiet_stdout, write, write_json

if TYPE_CHECKING:
    from sgld.api.specs import PipelineSpec
    from sgld.plan import ModelPlan
    from sgld.plugins.resolve import Entry

app = typer.Typer(
    cls=LightGroup,
    rich_markup_mode=None,
    no_args_is_help=True,
    add_completion=False,
    help="Show which models are served and their parameters.",
)

Name = Annotated[str, typer.Argument(help="A pipeline id, see `sgld models list`.")]
Shown = Annotated[
    str, typer.Argument(help="A pipeline id, the folder of a checkpoint, or a carried model.")
]
Folder = Annotated[Path, typer.Argument(help="A folder that is new or empty.")]


@app.command("list", cls=LightCommand)
def list_models(json: AsJson = False) -> None:
    """List the model families that installed plugins serve."""
    from sgld.plugins import report

    catalog = read_catalog()
    if json:
        write_json([report.pipeline_json(entry) for entry in catalog.pipelines.values()])
        return
    rows = [
        (name, entry.owner, ", ".join(entry.spec.tasks), entry.spec.summary or "-")
        for name, entry in catalog.pipelines.items()
    ]
    if rows:
        write(report.table(("PIPELINE", "DISTRIBUTION", "TASKS", "SUMMARY"), rows))
    else:
        write("No plugin that serves models is in use; for example: pip install sgld-wan")
    if catalog.models:
        carried = [
            (name, entry.owner, entry.spec.pipeline, entry.spec.summary or "-")
            for name, entry in catalog.models.items()
        ]
        write("\n" + report.table(("MODEL", "DISTRIBUTION", "PIPELINE", "SUMMARY"), carried))
    line = report.summary_line(catalog)
    if line:
        typer.echo(f"warning: {line}", err=True)


@app.command("show", cls=LightCommand)
def show_model(name: Shown, json: AsJson = False) -> None:
    """Show how a family is recognised, its presets, and every parameter with its range."""
    from sgld.cli.schema import parameter_rows
    from sgld.plugins import report

    entry, plan = _entry(name)
    with quiet_stdout():
        if plan is None:
            parameters = parameter_rows(entry)
        else:
            parameters = parameter_rows(entry, plan.params_class, plan.preset_defaults)
    if json:
        write_json({**report.pipeline_json(entry), "parameters": parameters})
        return
    if plan is not None and plan.carried is not None:
        model = read_catalog().models[name]
        write(f"{name}: {model.spec.summary or '-'}\nfrom {model.owner}; it is of this family:\n")
    write(_describe(entry, parameters))


def _entry(name: str) -> tuple[Entry[PipelineSpec], ModelPlan | None]:
    """A family by its id; or the one that serves a folder or a carried model, with its plan."""
    from sgld.plugins.catalog import unknown

    catalog = read_catalog()
    if name in catalog.pipelines:
        return catalog.pipelines[name], None
    if name not in catalog.models and not os.path.isdir(os.path.expanduser(name)):
        raise unknown("model family", name, (*catalog.pipelines, *catalog.models))
    from sgld.params.serving import ServingOptions
    from sgld.plan import make_plan

    with quiet_stdout():
        plan = make_plan(ServingOptions(model_path=name), catalog=catalog)
    return plan.recognition.entry, plan


def _describe(entry: Entry[PipelineSpec], parameters: list[dict[str, Any]]) -> str:
    from sgld.plugins import report

    spec = entry.spec
    lines = [
        f"{spec.id}: {spec.summary}".rstrip(": "),
        f"from {entry.owner}; tasks: {', '.join(spec.tasks)}",
        f"features: {', '.join(sorted(spec.features)) or '-'}",
        *_fallback(spec),
        f"blueprints: {', '.join(spec.blueprints) or '-'}",
        "",
        "Recognised by",
        *(f"  {line}" for line in report.claims_text(spec)),
        "",
        "Presets",
    ]
    for preset in spec.presets:
        values = ", ".join(f"{key}={value!r}" for key, value in preset.defaults.items())
        lines.append(f"  {preset.id}: {values or '-'}")
    if not spec.presets:
        lines.append("  none")
    header = ("PARAMETER", "TYPE", "DEFAULT", "RANGE", "MEANING")
    rows = [
        (row["name"], row["type"], row["default_text"], row["range"] or "-", row["help"] or "-")
        for row in parameters
    ]
    return "\n".join([*lines, "", report.table(header, rows)])


def _fallback(spec: PipelineSpec) -> list[str]:
    """What is different about a pipeline that serves many families."""
    from sgld.api.specs import NATIVE

    lines: list[str] = []
    if spec.backend != NATIVE:
        lines.append(
            f"backend: {spec.backend}, for what no native pipeline claims, or with "
            f"--backend {spec.backend}"
        )
    if spec.max_running:
        lines.append(f"runs at most {spec.max_running} at once; others wait")
    if spec.inspect:
        lines.append("parameters: of any checkpoint; `sgld models show FOLDER` shows one's own")
    return lines


@app.command("tiny", cls=LightCommand)
def write_tiny(name: Name, folder: Folder) -> None:
    """Write a tiny random checkpoint (under 5 MB) that runs anywhere, for tests and first steps."""
    _write(name, "tiny", folder)


@app.command("config", cls=LightCommand)
def write_config(
    name: Annotated[str, typer.Argument(help="PIPELINE, PIPELINE:SIZE or a size's own name.")],
    folder: Folder,
) -> None:
    """Write the configuration of a real size, without weights, for --load-format dummy."""
    _write(name, "", folder)


def _write(name: str, blueprint: str, folder: Path) -> None:
    from sgld.plugins.catalog import load_target

    entry, target = read_catalog().blueprint(name, blueprint)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(
            f"{str(folder)!r} is not an empty folder; nothing was written.",
            remedy="Name a folder that is new or empty.",
        )
    with quiet_stdout():
        build = load_target(target, entry)
        folder.mkdir(parents=True, exist_ok=True)
        build(folder)
    write(str(folder))
