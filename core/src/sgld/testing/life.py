"""A `sgld serve` process whose whole life is under test: started, asked, killed, started again.

    life = Life(model, folder, "--max-running", "2")
    life.start(); life.client.post("/v1/videos", json={...}); life.kill()
    life.start(); life.stop(signal.SIGTERM) == 0; life.left_behind() == []

Each has a folder of its own for state, outputs and temporary files, so that what it leaves behind
can be seen. For processes without a reader of their output, see `sgld.testing.served`.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from sgld.testing.served import TOYS, wait_for

POLL = 0.02


class Life:
    """One server's life, over several processes on the same port.

    Args:
        model: what `sgld serve` is given.
        folder: everything of it lies here.
        flags: further flags.
        environ: added to this process's environment.
    """

    def __init__(
        self, model: str, folder: Path, *flags: str, environ: Mapping[str, str] | None = None
    ) -> None:
        self.folder = folder
        self.flags = flags
        self.model = model
        self.temporary = folder / "tmp"
        self.temporary.mkdir(parents=True)
        self.environ = {**os.environ, **TOYS, "TMPDIR": str(self.temporary), **(environ or {})}
        self.port = 0
        self.client = httpx.Client(timeout=60, trust_env=False)
        self.processes: list[int] = []
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        """What all its processes wrote."""
        return (self.folder / "log").read_text(errors="replace")

    @property
    def pid(self) -> int:
        """The server's process id."""
        assert self.process is not None
        return self.process.pid

    def start(self, *flags: str, ready: bool = True) -> Life:
        """Start a process, on the port of the one before; wait until it is ready or listens."""
        command = [
            sys.executable, "-m", "sgld", "serve", self.model, "--port", str(self.port),
            "--state-path", str(self.folder / "state"),
            "--output-path", str(self.folder / "outputs"), *self.flags, *flags,
        ]  # fmt: skip
        before = self.log.count("listening") if (self.folder / "log").exists() else 0
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                command, env=self.environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self._until(lambda: self.log.count("listening") > before, "the port")
        self.port = int(re.findall(r"port=(\d+)", self.log)[-1])
        self.client.base_url = f"http://127.0.0.1:{self.port}"
        if ready:
            self._until(lambda: self.status("/health") == 200, "health")
        return self

    def _until(self, condition: Callable[[], Any], what: str) -> None:
        process = self.process
        assert process is not None
        wait_for(lambda: condition() or process.poll() is not None, what)
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with {process.returncode}:\n{self.log}")

    def status(self, path: str) -> int:
        """Status of a GET; 0 when nothing answers."""
        try:
            return self.client.get(path).status_code
        except httpx.HTTPError:
            return 0

    def engine(self) -> int:
        """Process id of the engine; waits for it."""
        found: list[int] = []
        wait_for(lambda: found.extend(self._children()) or found, "the engine's process", 30)
        return found[0]

    def _children(self) -> list[int]:
        children: set[int] = set()
        for task in Path(f"/proc/{self.pid}/task").glob("*/children"):
            with suppress(OSError):
                children |= {int(word) for word in task.read_text().split()}
        self.processes += children
        return sorted(children)

    def metric(self, name: str, **labels: str) -> float:
        """The value of a metric; 0 when it is not shown."""
        for line in self.client.get("/metrics").text.splitlines():
            head, _, value = line.rpartition(" ")
            shown = dict(re.findall(r'(\w+)="([^"]*)"', head))
            if re.split(r"[{ ]", head)[0] == name and shown.items() >= labels.items():
                return float(value)
        return 0.0

    def stop(self, number: int = signal.SIGTERM, *, seconds: float = 30) -> int:
        """Send a signal and wait for the end; returns the exit status."""
        assert self.process is not None
        with suppress(OSError):
            self._children()
        self.process.send_signal(number)
        return self.process.wait(seconds)

    def kill(self) -> None:
        """SIGKILL, as the kernel does it when memory ends."""
        self.stop(signal.SIGKILL)

    def close(self) -> None:
        """End whatever still runs."""
        self.client.close()
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def left_behind(self) -> list[str]:
        """Processes and files that should have gone with the server."""
        end = time.monotonic() + 5
        while (alive := [pid for pid in self.processes if _alive(pid)]) and time.monotonic() < end:
            time.sleep(POLL)
        places = (self.temporary, self.folder / "state" / "scratch")
        uploads = self.folder / "state" / "uploads"
        files = [path for place in (*places, uploads) for path in place.glob("*")]
        # Torch keeps what it has compiled there for the next process; that is its business.
        files = [path for path in files if not path.name.startswith("torchinductor_")]
        unfinished = list((self.folder / "outputs" / ".partial").glob("*"))
        return [f"process {pid}" for pid in alive] + [str(path) for path in files + unfinished]


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
