"""`sgld serve`: the same model options as `generate`, and an HTTP server around the engine."""

from __future__ import annotations

import json
import os
from typing import Annotated, Any

import typer

from sgld.api.errors import ParameterError, SgldError
from sgld.cli.flags import EXTRA, FlagCommand, flag_layer, with_options
from sgld.cli.unnamed import with_model
from sgld.params.merge import Layer, build, distinct, env_layer, split
from sgld.params.server import ServerOptions
from sgld.params.serving import ServingOptions

serve = typer.Typer(add_completion=False)


@serve.command(cls=FlagCommand)
@with_options(("Server", ServerOptions), ("Model and device", ServingOptions))
def _serve(
    ctx: typer.Context,
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="Same as --model-path.")
    ] = None,
    config: Annotated[
        str | None, typer.Option(help="YAML or JSON file with settings; flags win.")
    ] = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Show every value and its origin, and stop.")
    ] = False,
    **values: Any,
) -> None:
    """Serve a model over HTTP, in the words of OpenAI's image and video API.

    Settings come from flags, SGLD_<NAME> variables and --config, in this order.
    """
    from sgld.cli.generate import show_error

    try:
        layers = _layers(values, ctx.meta.get(EXTRA, []), model, config)
        layers, note = with_model(layers)
        if note:
            typer.echo(note, err=True)
        code = _run(layers, print_config=print_config)
    except SgldError as error:
        show_error(error)
        raise typer.Exit(error.exit_code) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    if code:
        raise typer.Exit(code)


def _layers(
    values: dict[str, Any], extra: list[tuple[str, str]], model: str | None, config: str | None
) -> list[Layer]:
    from sgld.params.files import read_config

    if model is not None:
        values["model_path"] = model
    layers = [
        flag_layer(values, extra, []),
        env_layer((ServerOptions, ServingOptions), os.environ),
    ]
    return [*layers, read_config(config)] if config is not None else layers


def _run(layers: list[Layer], *, print_config: bool) -> int:
    shares, problems = split(layers, (ServerOptions, ServingOptions))
    built: list[Any] = []
    for cls, share in zip((ServerOptions, ServingOptions), shares, strict=True):
        try:
            built.append(build(cls, share))
        except ParameterError as error:
            problems += error.problems
    if problems:
        raise ParameterError(distinct(problems))
    server, serving = built
    if print_config:
        rows = {
            name: {"value": value, "origin": one.origins[name]}
            for one in built
            for name, value in one.params.model_dump(mode="json", exclude={"api_key"}).items()
        }
        typer.echo(json.dumps(rows, indent=2, ensure_ascii=False))
        return 0
    from sgld.observe.logs import configure
    from sgld.plan import make_plan
    from sgld.server.launch import bind
    from sgld.server.launch import serve as run_server

    configure(
        server.params.log_level,
        server.params.log_format,
        secrets=server.params.api_key,
    )
    # Before the plan: a port in use should not cost a download.
    with bind(server.params) as listener:
        # The HTTP process stays free of torch: the engine is a process of its own.
        plan = make_plan(serving.params, isolate=True)
        return run_server(server.params, plan, listener)
