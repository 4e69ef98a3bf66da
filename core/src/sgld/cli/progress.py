"""What the user sees while a model works: a live display, plain lines, or nothing.

`make_reporter(...)` chooses: `rich` bars on a terminal, lines in a pipe, nothing with --quiet.
All of it goes to standard error; results (`result`) go to standard output.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Self

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from sgld.messages import Event


class Reporter(AbstractContextManager["Reporter"]):
    """Says nothing; the base of the two that do. `total` is the number of requests."""

    def __init__(self, total: int = 1) -> None:
        self.total = total

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None

    def say(self, text: str) -> None:
        """Show one line that stays."""

    def fail(self, text: str) -> None:
        """Show that something failed; never kept quiet."""
        typer.echo(text, err=True)

    def result(self, text: str) -> None:
        """Write one line of results to standard output."""
        typer.echo(text)

    def loading(self, component: str, done: int, total: int) -> None:
        """Weights of a component: bytes read so far and in all."""

    def event(self, event: Event, label: str) -> None:
        """Show a `stage` or `step` event of the request called `label`."""


class PlainReporter(Reporter):
    """One line for each stage and for each tenth of its steps, for pipes and log files."""

    def __init__(self, write: Callable[[str], None], total: int = 1) -> None:
        super().__init__(total)
        self._write = write
        self._shown: dict[str, tuple[str, int]] = {}
        self._loaded: set[str] = set()

    def say(self, text: str) -> None:
        """The line as it is."""
        self._write(text)

    def fail(self, text: str) -> None:
        """The line as it is."""
        self._write(text)

    def loading(self, component: str, done: int, total: int) -> None:
        """A line when a component is complete."""
        if done >= total and component not in self._loaded:
            self._loaded.add(component)
            self.say(f"loaded {component} ({total / 1e6:.1f} MB)")

    def event(self, event: Event, label: str) -> None:
        """A line when the stage or the tenth of it changes."""
        tenth = event.step * 10 // event.total if event.total else 0
        key = f"{event.request_id}.{event.index}"
        if event.kind not in ("stage", "step") or self._shown.get(key) == (event.stage, tenth):
            return
        self._shown[key] = (event.stage, tenth)
        if event.kind == "stage":
            self.say(f"{label} {event.stage} took {event.seconds:.1f} s")
        else:
            self.say(f"{label} {event.stage} {event.step}/{event.total} {event.seconds:.1f} s")


class LiveReporter(Reporter):
    """Bars that move: one for each request that is running and each component being loaded."""

    def __init__(self, console: Console, total: int = 1) -> None:
        super().__init__(total)
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[count]}", markup=False),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            # Redirecting would send results meant for a pipe to the terminal.
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        """A line above the bars."""
        self._progress.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def fail(self, text: str) -> None:
        """A line above the bars."""
        self.say(text)

    def result(self, text: str) -> None:
        """Above the bars when both streams are the terminal, else as ever."""
        if sys.stdout.isatty():
            self.say(text)
        else:
            super().result(text)

    def loading(self, component: str, done: int, total: int) -> None:
        """Move the component's bar, and take it away when complete."""
        count = f"{done / 1e6:.0f}/{total / 1e6:.0f} MB"
        self._show(f"loading {component}", f"loading {component}", done, total, count)
        if done >= total:
            self._remove(f"loading {component}")

    def event(self, event: Event, label: str) -> None:
        """Move the request's bar, and take it away at its last event."""
        if event.kind in ("done", "failed", "cancelled"):
            self._remove(event.request_id)
        elif event.kind in ("stage", "step"):
            count = f"{event.step}/{event.total}" if event.total else ""
            title = f"{label} {event.stage}"
            self._show(event.request_id, title, event.step, event.total or None, count)

    def _show(self, key: str, title: str, done: int, total: int | None, count: str) -> None:
        if key not in self._tasks:
            self._tasks[key] = self._progress.add_task(title, total=total, count=count)
        self._progress.update(
            self._tasks[key], description=title, completed=done, total=total, count=count
        )

    def _remove(self, key: str) -> None:
        if key in self._tasks:
            self._progress.remove_task(self._tasks.pop(key))


def make_reporter(console: Console, *, quiet: bool, total: int) -> Reporter:
    """The reporter that suits this terminal; `console` writes to standard error."""
    if quiet:
        return Reporter(total)
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveReporter(console, total)

    def write(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    return PlainReporter(write, total)
