"""`sgld generate`: from prompts to files, with the engine in this process.

Everything that can be wrong is found before a weight is read. Exit codes: 0 all done, 1 some
requests failed, 2 wrong usage (nothing was written), 130 stopped by Ctrl-C, 143 by SIGTERM.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console

from sgld.api.errors import ParameterError, Problem, SgldError
from sgld.cli.flags import EXTRA, FlagCommand, flag_layer, with_options
from sgld.cli.progress import make_reporter
from sgld.cli.quiet import quiet_stdout
from sgld.cli.signals import Terminated, terminable
from sgld.cli.unnamed import with_model
from sgld.params.merge import Layer
from sgld.params.output import OutputOptions
from sgld.params.sampling import Guided, ImageParams, TakesImage, VideoParams
from sgld.params.serving import ServingOptions
from sgld.params.size import SIZES

if TYPE_CHECKING:
    from sgld.cli.settings import Settings

generate = typer.Typer(add_completion=False)

PATIENCE: Final = 1.0
"""Seconds that a second Ctrl-C waits for the model to close in good order."""

SWITCHES: Final = (
    "config", "param", "prompt_file", "print_config", "dry_run", "quiet", "json", *SIZES,
)  # fmt: skip


@generate.command(cls=FlagCommand)
@with_options(
    ("What to make", VideoParams),
    ("What to make", Guided),
    ("What to make", TakesImage),
    ("What to make", ImageParams),
    ("Files", OutputOptions),
    ("Model and device", ServingOptions),
)
def _generate(
    ctx: typer.Context,
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="Same as --model-path.")
    ] = None,
    prompt_file: Annotated[
        str | None, typer.Option(help="Prompts, one a line; - is standard input.")
    ] = None,
    config: Annotated[
        str | None, typer.Option(help="YAML or JSON file with settings; flags win.")
    ] = None,
    param: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A parameter of the model family; repeatable."),
    ] = None,
    size_480p: Annotated[bool, typer.Option("--480p", help="Same as --size 480p.")] = False,
    size_720p: Annotated[bool, typer.Option("--720p", help="Same as --size 720p.")] = False,
    size_1080p: Annotated[bool, typer.Option("--1080p", help="Same as --size 1080p.")] = False,
    size_2k: Annotated[bool, typer.Option("--2k", help="Same as --size 2k.")] = False,
    size_4k: Annotated[bool, typer.Option("--4k", help="Same as --size 4k.")] = False,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Show every value and its origin, and stop.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show memory plan and schedule, and stop.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Only results and errors.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a line on standard output.")
    ] = False,
    **values: Any,
) -> None:
    """Make videos or pictures from prompts.

    Settings come from flags, SGLD_<NAME> variables, --config and the model, in this order.
    Parts of a checkpoint are replaced with --component-path.NAME and --component-weights-path.NAME.
    """
    running = set(threading.enumerate())
    shortcuts = {"480p": size_480p, "720p": size_720p, "1080p": size_1080p, "2k": size_2k,
                 "4k": size_4k}  # fmt: skip
    try:
        layers = _layers(
            values,
            ctx.meta.get(EXTRA, []),
            model=model,
            prompt_file=prompt_file,
            config=config,
            param=param or [],
            sizes=[name for name, wanted in shortcuts.items() if wanted],
        )
        with terminable():
            code = _run(
                layers, print_config=print_config, dry_run=dry_run, quiet=quiet, as_json=as_json
            )
    except SgldError as error:
        if ctx.find_root().params.get("debug") or os.environ.get("SGLD_DEBUG", "") not in ("", "0"):
            traceback.print_exc()
        show_error(error, as_json=as_json)
        raise typer.Exit(error.exit_code) from None
    except KeyboardInterrupt as interrupt:
        code = 143 if isinstance(interrupt, Terminated) else 130
        typer.echo("stopped", err=True)
        _leave(running, code)
        raise typer.Exit(code) from None
    if code:
        raise typer.Exit(code)


def plan_model(options: ServingOptions) -> Any:
    """Recognise the model without loading it."""
    from sgld.plan import make_plan

    with quiet_stdout():
        return make_plan(options)


def sketch_model(options: ServingOptions) -> Any:
    """The parameters of a model that planning would have to write first, or None."""
    from sgld.plan import sketch

    with quiet_stdout():
        return sketch(options)


def open_model(plan: Any, progress: Callable[[str, int, int], None]) -> Any:
    """Load a planned model; only now is torch imported."""
    with quiet_stdout():
        from sgld.model import Model

        return Model.open(plan, progress=progress)


def show_error(error: SgldError, *, as_json: bool = False) -> None:
    """Write an error for people to standard error, and for programs to standard output."""
    problems = error.problems if isinstance(error, ParameterError) else ()
    if as_json:
        facts: dict[str, Any] = {"event": "error", "code": error.code, "message": str(error)}
        if problems:
            facts["problems"] = [problem._asdict() for problem in problems]
        typer.echo(json.dumps(facts, ensure_ascii=False, default=str))
    for line in [str(problem) for problem in problems] or [str(error)]:
        typer.echo(f"error: {line}", err=True)


def _layers(
    values: dict[str, Any],
    extra: list[tuple[str, str]],
    *,
    model: str | None,
    prompt_file: str | None,
    config: str | None,
    param: list[str],
    sizes: list[str],
) -> list[Layer]:
    """Flags, environment and file, strongest first."""
    from sgld.cli.settings import environment, read_prompts
    from sgld.params.files import read_config

    problems: list[Problem] = []
    if model is not None and values.get("model_path") not in (None, model):
        problems.append(Problem("MODEL", model, "contradicts --model-path.", "Give one of them."))
    if prompt_file is not None and values.get("prompt"):
        message = "cannot be used together with --prompt."
        problems.append(Problem("--prompt-file", prompt_file, message, "Give one of them."))
    sizes = [*sizes, *([values["size"]] if values.get("size") is not None else [])]
    if len(sizes) > 1:
        problems.append(Problem("--size", " ".join(sizes), "are several sizes.", "Give one."))
    if problems:
        raise ParameterError(problems)
    if model is not None:
        values["model_path"] = model
    if prompt_file is not None:
        values["prompt"] = read_prompts(prompt_file)
    values["size"] = sizes[0] if sizes else None
    layers = [flag_layer(values, extra, param), environment(os.environ)]
    return [*layers, read_config(config)] if config is not None else layers


def _run(
    layers: list[Layer], *, print_config: bool, dry_run: bool, quiet: bool, as_json: bool
) -> int:
    """Validate, then show or do; returns the exit code."""
    from sgld.cli import showing
    from sgld.cli.settings import gather

    layers, note = with_model(layers)
    settings = gather(layers, plan_model, SWITCHES, sketch=sketch_model)
    with closing(settings.plan):
        if print_config or dry_run:
            show = showing.config if print_config else showing.dry_run
            typer.echo(show(settings, as_json=as_json))
            return 0
        return _generate_all(settings, note, quiet=quiet, as_json=as_json)


@contextmanager
def _opened(plan: Any, progress: Callable[[str, int, int], None]) -> Iterator[Any]:
    """A loaded model, closed in the end; after Ctrl-C without waiting for a long forward."""
    model = open_model(plan, progress)
    try:
        yield model
    except KeyboardInterrupt:
        closing_thread = threading.Thread(target=model.close, name="sgld-close", daemon=True)
        closing_thread.start()
        closing_thread.join(PATIENCE)
        raise
    except BaseException:
        model.close()
        raise
    model.close()


def _leave(before: set[threading.Thread], code: int) -> None:
    """End the process now when an engine of this run is still busy.

    A thread that loads or computes cannot be interrupted from outside, and when the interpreter
    takes it down the process aborts. Everything else has been cleaned up on the way here.
    """
    busy = [thread for thread in set(threading.enumerate()) - before if thread.daemon]
    if any(thread.name in ("sgld-engine", "sgld-close") for thread in busy):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _generate_all(settings: Settings, note: str, *, quiet: bool, as_json: bool) -> int:
    from sgld.cli.logs import log_to_stderr
    from sgld.cli.running import Run

    log_to_stderr()
    console = Console(file=sys.stderr)
    with make_reporter(console, quiet=quiet, total=len(settings.requests)) as reporter:
        for line in settings.plan.warnings:
            reporter.say(f"warning: {line}")
        for line in (note, *settings.notes):
            if line:
                reporter.say(f"note: {line}")
        reporter.say(f"lock: {settings.plan.lock.line()}")
        with _opened(settings.plan, reporter.loading) as model:
            tally = Run(settings, reporter, as_json=as_json).drive(model)
        total = len(settings.requests)
        if tally.failed and total > 1:
            reporter.say(f"{len(tally.failed)} of {total} requests failed")
    return tally.exit_code
