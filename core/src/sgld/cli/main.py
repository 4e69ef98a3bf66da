"""`sgld`: a table of commands; the module of a command is imported when its name is typed.

So `sgld --help` costs the same however many commands and plugins there are. Plugins are looked for
only by commands that use them, and when a name is not in the table.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand

from sgld import __version__
from sgld.api.errors import SgldError
from sgld.cli.light import LightGroup
from sgld.cli.quiet import quiet_stdout

COMMANDS: Final = {
    "generate": ("sgld.cli.generate:generate", "Make videos or images from prompts."),
    "serve": ("sgld.cli.serve:serve", "Serve a model over HTTP."),
    "bench": ("sgld.cli.bench:app", "Measure how fast this machine is."),
    "plugins": ("sgld.cli.plugins:app", "Show what plugins bring and why one is not usable."),
    "models": ("sgld.cli.models:app", "Show which models are served and their parameters."),
}
"""Name → target and the help line; in the order of `sgld --help`."""


class LazyGroup(LightGroup):
    """A group whose commands are imported when they are run, not when they are listed."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names for help and completion."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A stand-in with name and help line, which is all that help and completion ask for."""
        if cmd_name not in COMMANDS:
            return None
        return TyperCommand(cmd_name, help=COMMANDS[cmd_name][1], rich_markup_mode=None)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The real command: from the table, else from a plugin, else an error with a suggestion."""
        name = args[0]
        if name in COMMANDS:
            target, help_line = COMMANDS[name]
            return name, _command(_load(target), name, help_line), args[1:]
        if name.startswith("-"):
            return super().resolve_command(ctx, args)
        command = _plugin_command(name)
        if command is None and not ctx.resilient_parsing:
            ctx.fail(_no_such_command(name))
        return (name if command else None), command, args[1:]

    def invoke(self, ctx: Any) -> Any:
        """Run the command; errors raised on purpose become one line and their exit code."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        except SgldError as error:
            if ctx.params.get("debug") or os.environ.get("SGLD_DEBUG", "") not in ("", "0"):
                import traceback

                traceback.print_exc()
            for line in str(error).splitlines():
                typer.echo(f"error: {line}", err=True)
            for place in _explained(error):
                typer.echo(f"see {place}", err=True)
            raise typer.Exit(error.exit_code) from error


def _explained(error: SgldError) -> list[str]:
    """Where the documentation explains the failures of plugins that an error carries."""
    failures = getattr(error, "failures", ())
    if not failures:
        return []
    from sgld.plugins.failures import section

    return list(dict.fromkeys(section(row.code) for row in failures))


def _load(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def _command(value: Any, name: str, help_line: str) -> Any:
    """A command from a Typer app or a plain function with Typer annotations.

    A function may carry `context_settings`, a mapping that Typer takes for its command.
    """
    if not isinstance(value, typer.Typer):
        settings = getattr(value, "context_settings", None)
        app = typer.Typer(rich_markup_mode=None, add_completion=False)
        app.command(name, context_settings=settings)(value)
        value = app
    command = typer.main.get_command(value)
    command.name = name
    command.help = command.help or help_line
    return command


def _plugin_command(name: str) -> Any:
    """A command that a plugin brings, or None."""
    from sgld.plugins.catalog import collect, load_target

    with quiet_stdout():
        entry = collect(os.environ).commands.get(name)
    if entry is None:
        return None
    return _command(load_target(entry.spec.target, entry), name, entry.spec.help)


def _no_such_command(name: str) -> str:
    from difflib import get_close_matches

    from sgld.plugins.catalog import collect

    with quiet_stdout():
        catalog = collect(os.environ)
    near = get_close_matches(name, [*COMMANDS, *catalog.commands], n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    failed = [row.name for row in catalog.plugins if row.state == "failed"]
    if failed:
        hint += f" (not usable: plugin {', '.join(failed)}; see `sgld plugins list`)"
    return f"No such command {name!r}.{hint}"


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"sgld {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and exit.", callback=_show_version, is_eager=True
        ),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error (or SGLD_DEBUG=1).")
    ] = False,
) -> None:
    """Serve image, video and realtime world models."""


def build() -> Any:
    """The command line as one click command."""
    app = typer.Typer(
        cls=LazyGroup,
        callback=_root,
        rich_markup_mode=None,
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    return typer.main.get_command(app)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `sgld` with these arguments (default: the process's own) and return its exit code."""
    try:
        build().main(args=list(sys.argv[1:] if arguments is None else arguments), prog_name="sgld")
    except SystemExit as end:
        if end.code is None:
            return 0
        return end.code if isinstance(end.code, int) else 1
    except KeyboardInterrupt:
        return 130
    return 0
