"""`sgld bench`: how fast this machine is, as a client meets it."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sgld.api.errors import ParameterError, Problem, SgldError, UserError
from sgld.bench.options import BenchOptions
from sgld.bench.own_server import TAKEN, OwnServer
from sgld.cli.bench_asked import Asked, platform_of, read
from sgld.cli.flags import EXTRA, FlagCommand, with_options
from sgld.cli.signals import Terminated, terminable
from sgld.params.server import ServerOptions
from sgld.params.serving import ServingOptions

if TYPE_CHECKING:
    from sgld.bench.measure import ReadMemory
    from sgld.bench.model_facts import Place
    from sgld.bench.realtime import Said

app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    add_completion=False,
    help="Measure how fast this machine is.",
)


@app.callback()
def _group() -> None:
    """Measure how fast this machine is."""


@app.command("realtime", cls=FlagCommand)
@with_options(
    ("What is measured", BenchOptions),
    ("Server", ServerOptions),
    ("Model and device", ServingOptions),
    without=TAKEN,
)
def _realtime(
    ctx: typer.Context,
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="Same as --model-path.")
    ] = None,
    config: Annotated[
        str | None, typer.Option(help="YAML or JSON file with settings; flags win.")
    ] = None,
    param: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A field of the sessions' init; repeatable."),
    ] = None,
    **values: Any,
) -> None:
    """Measure realtime sessions: frames per second, the time from a key to the frame that shows
    it, memory.

    Starts a server of its own, as `sgld serve` does with the same options, or measures the one
    at --url.
    """
    from sgld.cli.generate import show_error

    try:
        if model is not None:
            values["model_path"] = model
        with terminable():
            _bench(values, ctx.meta.get(EXTRA, []), config, param or [])
    except SgldError as error:
        show_error(error)
        raise typer.Exit(error.exit_code) from None
    except KeyboardInterrupt as interrupt:
        raise typer.Exit(143 if isinstance(interrupt, Terminated) else 130) from None


def _bench(
    values: dict[str, Any], extra: list[tuple[str, str]], config: str | None, given: list[str]
) -> None:
    from rich.console import Console

    from sgld.bench.machine import conditions
    from sgld.bench.model_facts import Place, place_of
    from sgld.bench.shown import conditions as condition_line
    from sgld.bench.shown import table

    asked = read(values, extra, config, given)
    if asked.note:
        typer.echo(asked.note, err=True)
    file = _output(asked.bench)
    machine, platform = conditions(), None
    if asked.bench.url is not None:
        measured = _measure(place_of(asked.bench.url), asked)
    else:
        platform = platform_of(asked)
        with _own(asked) as server:
            local = Place(f"http://{server.address}", f"ws://{server.address}", far=False)
            measured = _measure(local, asked, server.memory)
    report = {
        "benchmark": "realtime",
        "url": asked.bench.url,
        "platform": platform,
        "machine": machine,
        **measured,
    }
    Console(highlight=False, soft_wrap=True).print(table(report), condition_line(report), sep="\n")
    if file is not None:
        _write(file, report)


@contextmanager
def _own(asked: Asked) -> Iterator[OwnServer]:
    """A server that is ready, and gone afterwards with all it has written."""
    with tempfile.TemporaryDirectory(prefix="sgld-bench-") as folder:
        typer.echo("starting a server: the model is loaded and warmed up", err=True)
        with OwnServer(asked.words, Path(folder), os.environ) as server:
            server.wait_until_ready()
            yield server


def _measure(place: Place, asked: Asked, read_memory: ReadMemory = dict) -> dict[str, Any]:
    from sgld.bench.measure import measure

    with _progress() as said:
        return measure(place, asked.bench, asked.init, said, key=asked.key, read_memory=read_memory)


@contextmanager
def _progress() -> Iterator[Said]:
    """A bar on a terminal; a line for each phase elsewhere."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    phase = ""

    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("opening", total=None)

        def said(what: str, done: int, total: int) -> None:
            nonlocal phase
            if what != phase and not console.is_terminal:
                print(f"{what}: {total} chunks", file=sys.stderr)
            phase = what
            bar.update(task, description=what, completed=done, total=total)

        yield said


def _output(bench: BenchOptions) -> Path | None:
    """Where the figures go; refused before the work if that cannot be."""
    if bench.output is None:
        return None
    path = Path(bench.output)
    if path.is_dir() or not path.parent.is_dir():
        message = "is a folder." if path.is_dir() else "is in a folder that does not exist."
        raise ParameterError([Problem("--output", bench.output, message, "Name a file.")])
    return path


def _write(path: Path, report: Mapping[str, Any]) -> None:
    import json

    from sgld.media.writing import write_bytes

    try:
        write_bytes(path, (json.dumps(report, indent=2, ensure_ascii=False) + "\n").encode())
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror}).") from None
    typer.echo(f"wrote {path}", err=True)
