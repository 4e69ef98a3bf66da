"""A server for the time of a measurement: `sgld serve` on a free port, in a folder of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from sgld.api.errors import SgldError
from sgld.bench.machine import Memory, children_of, memory_of

LOOPBACK = "127.0.0.1"
POLL_SECONDS = 0.05
STOP_SECONDS = 30.0
LAST_LINES = 15
TAKEN = ("host", "port", "open", "state_path", "output_path", "job_store", "log_level",
         "log_format")  # fmt: skip
"""Options of `sgld serve` that are not for the user here."""


class OwnServer:
    """The server's process.

    Args:
        arguments: of `sgld serve`, those of `TAKEN` aside.
        folder: everything it writes lies here.
        environ: its environment.
    """

    def __init__(self, arguments: Sequence[str], folder: Path, environ: Mapping[str, str]) -> None:
        self._lines: deque[str] = deque(maxlen=LAST_LINES)
        self._port = 0
        self._answered = threading.Event()
        command = [
            sys.executable, "-m", "sgld", "serve", *arguments,
            "--host", LOOPBACK, "--port", "0", "--open=false",
            "--log-level", "info", "--log-format", "json",
            "--state-path", str(folder / "state"), "--output-path", str(folder / "outputs"),
            "--job-store", f"sqlite:///{(folder / 'jobs.sqlite3').absolute()}",
        ]  # fmt: skip
        self._process = subprocess.Popen(
            command,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._reader = threading.Thread(target=self._read, name="sgld-bench-log", daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop it as SIGTERM does; after `STOP_SECONDS` by force."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(5)
        if self._process.stdout is not None:
            self._process.stdout.close()

    @property
    def address(self) -> str:
        """host:port."""
        return f"{LOOPBACK}:{self._port}"

    def wait_until_ready(self) -> None:
        """Wait for the model to be loaded and warmed, however long that takes.

        Raises SgldError `server_ended` with its last lines when it ends instead.
        """
        self._answered.wait()
        with httpx.Client(trust_env=False, timeout=10) as web:
            while self._process.poll() is None:
                try:
                    if web.get(f"http://{self.address}/health").status_code == 200:
                        return
                except httpx.HTTPError:
                    pass
                time.sleep(POLL_SECONDS)
        self._reader.join(5)
        raise SgldError(
            f"the server ended with {self._process.returncode}:\n" + "\n".join(self._lines),
            code="server_ended",
        )

    def memory(self) -> dict[str, Memory]:
        """Memory of the HTTP process and of the engine's processes, by name."""
        found = {"http": memory_of(self._process.pid)}
        engines = [memory_of(child) for child in children_of(self._process.pid)]
        several = len(engines) > 1
        for number, one in enumerate(engines):
            found[f"engine {number}" if several else "engine"] = one
        return {name: one for name, one in found.items() if one is not None}

    def _read(self) -> None:
        assert self._process.stdout is not None
        try:
            for line in self._process.stdout:
                self._lines.append(line.rstrip())
                port = _port(line)
                if port:
                    self._port = port
                    self._answered.set()
        finally:
            self._answered.set()


def _port(line: str) -> int:
    if '"listening"' not in line:
        return 0
    try:
        entry: Any = json.loads(line)
    except json.JSONDecodeError:
        return 0
    told = isinstance(entry, dict) and entry.get("event") == "listening"
    return int(entry.get("port", 0)) if told else 0
