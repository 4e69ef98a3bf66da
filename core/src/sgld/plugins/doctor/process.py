"""Run the worker and survive whatever it does: signals, `os._exit`, endless loops, floods.

Public: `run(job, timeout, stop) -> Ended`. The worker writes its answers to a file of its own, line
by line, so that what it found is known however it ended; its standard streams belong to the plugin.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, cast

POLL_SECONDS: Final = 0.01
LAST_WORDS_SECONDS: Final = 0.5
"""How long a process that ran out of time may take to tell where it is."""
KEPT: Final = 16 * 1024
"""Bytes that are kept of what a plugin prints; the rest is counted."""
FRAME: Final = re.compile(r'^ +File "([^"<]+)", line (\d+)', re.MULTILINE)


class Ended(NamedTuple):
    """How a worker ended and what it had written until then."""

    answers: tuple[Mapping[str, Any], ...]
    how: str
    """Empty when it finished; else `timeout`, `signal NAME` or `exit CODE`."""
    at: str
    """The step that it was in."""
    place: str
    """`file:line` of the plugin's code where it died or hung, as far as that is known."""
    stdout: str
    stderr: str
    foreign: int = 0
    """Lines among the answers that are none: the plugin wrote them, or changed how they are
    written."""


class Tap:
    """Reads a stream on a thread, keeps its beginning and throws the rest away."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._kept = bytearray()
        self.total = 0
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with suppress(OSError, ValueError):
            while data := os.read(self._stream.fileno(), 65536):
                self.total += len(data)
                self._kept += data[: max(0, KEPT - len(self._kept))]

    def text(self) -> str:
        """What was read, once the writer is gone; a grandchild may hold the stream open."""
        self._thread.join(LAST_WORDS_SECONDS)
        text = self._kept.decode("utf-8", "replace").strip()
        more = self.total - len(self._kept)
        return f"{text} ... and {more} more bytes" if more > 0 else text


def run(job: Mapping[str, Any], timeout: float, stop: threading.Event) -> Ended:
    """Let a worker do a job. `timeout` is for each of its steps; a set `stop` ends it at once."""
    with tempfile.TemporaryDirectory(prefix="sgld-check-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        answers, trace = folder / "answers", folder / "trace"
        answers.touch()
        todo = {**job, "answers": str(answers), "trace": str(trace), "path": sys.path}
        (folder / "job").write_text(json.dumps(todo), encoding="utf-8")
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "sgld.plugins.doctor.worker", str(folder / "job")],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env=_environment(),
        )
        out, err = cast("IO[bytes]", process.stdout), cast("IO[bytes]", process.stderr)
        with out, err:
            taps = Tap(out), Tap(err)
            try:
                late = _wait(process, answers, timeout, stop)
                if late:
                    _ask_where(process, trace)
            finally:
                _kill(process)
            texts = [tap.text() for tap in taps]
        rows, foreign = _read(answers)
        how = _how(process, rows, late)
        return Ended(rows, how, _step(rows), _place(trace), texts[0], texts[1], foreign)


def _environment() -> dict[str, str]:
    """Ours, with this very sgld importable however this process found it."""
    home = str(Path(__file__).parents[3])
    path = [home, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}


def _wait(
    process: subprocess.Popen[bytes], answers: Path, timeout: float, stop: threading.Event
) -> bool:
    """Whether it ran out of time: each line that it writes gives it `timeout` seconds anew."""
    size, deadline = 0, time.monotonic() + timeout
    while True:
        with suppress(subprocess.TimeoutExpired):
            process.wait(POLL_SECONDS)
            return False
        now = answers.stat().st_size
        if now != size:
            size = now
            deadline = time.monotonic() + min(timeout, _limit(answers))
        if stop.is_set() or time.monotonic() > deadline:
            return True


def _limit(answers: Path) -> float:
    """The limit that the last line sets for its step; a probe has less time than an import."""
    rows, _ = _read(answers)
    limit = rows[-1].get("limit") if rows else None
    return float(limit) if isinstance(limit, int | float) else float("inf")


def _ask_where(process: subprocess.Popen[bytes], trace: Path) -> None:
    """Have the worker's fault handler write down where it is."""
    if not hasattr(signal, "SIGUSR1"):
        return
    with suppress(OSError):
        process.send_signal(signal.SIGUSR1)
    deadline = time.monotonic() + LAST_WORDS_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        if trace.exists() and trace.stat().st_size:
            time.sleep(POLL_SECONDS)
            return
        time.sleep(POLL_SECONDS)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End the worker and what it started, which shares its session."""
    if process.poll() is None:
        process.kill()
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _read(answers: Path) -> tuple[tuple[Mapping[str, Any], ...], int]:
    """The answers in the whole lines of a file, and how many of these lines are none; the last
    line may be half written."""
    lines = answers.read_bytes().split(b"\n")[:-1]
    rows = tuple(row for row in map(_answer, lines) if row is not None)
    return rows, len(lines) - len(rows)


def _answer(line: bytes) -> Mapping[str, Any] | None:
    with suppress(ValueError):
        row = json.loads(line)
        if isinstance(row, dict):
            return cast("Mapping[str, Any]", row)
    return None


def _how(process: subprocess.Popen[bytes], rows: Sequence[Mapping[str, Any]], late: bool) -> str:
    if any("done" in row for row in rows):
        return ""
    if late:
        return "timeout"
    code = process.returncode
    if code >= 0:
        return f"exit {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"


def _step(rows: Sequence[Mapping[str, Any]]) -> str:
    return next((str(row["at"]) for row in reversed(rows) if "at" in row), "start")


def _place(trace: Path) -> str:
    """The innermost frame outside of Python's import machinery and of this package."""
    try:
        text = trace.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    own = str(Path(__file__).parents[1])
    frames = [(file, line) for file, line in FRAME.findall(text) if not file.startswith(own)]
    outside = [(f, n) for f, n in frames if "importlib" not in f]
    # The standard library is rarely the culprit: the plugin's own line says more than ctypes'.
    library = str(Path(os.__file__).parent)
    better = [
        (file, line)
        for file, line in outside
        if not file.startswith(library) or "site-packages" in file
    ]
    file, line = next(iter([*better, *outside]), ("", ""))
    return f"{file}:{line}" if file else ""
