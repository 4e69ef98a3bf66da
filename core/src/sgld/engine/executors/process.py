"""One engine process: started, spoken to, ended. Knows nothing of requests. Torch-free."""

from __future__ import annotations

import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from sgld.engine.executors.wire import Wire

WORKER: Final = "sgld.engine.executors.worker"
Message = Mapping[str, Any]


class EngineProcess:
    """A running `sgld.engine.executors.worker` and the connection to it.

    Its standard output goes to our standard error, so that no library of the engine can write among
    our results. It has a process group of its own, so that Ctrl-C reaches only us.

    Args:
        start: the first message to it.
        environ: its environment.
        refused: told of a message that could not be sent because of what is in it.

    Raises:
        OSError: the process could not be started.
    """

    def __init__(
        self,
        start: Message,
        environ: Mapping[str, str],
        refused: Callable[[Message, Exception], None],
    ) -> None:
        ours, theirs = socket.socketpair()
        try:
            self._process = subprocess.Popen(
                # -P: a file of the current folder must not shadow a module.
                [sys.executable, "-P", "-m", WORKER, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                stdout=2,
                process_group=0,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self.wire = Wire(ours)
        self._refused = refused
        self._outbox: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write, name="sgld-to-engine", daemon=True)
        self._writer.start()
        self.send(start)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def send(self, message: Message) -> None:
        """Queue a message; never waits, and is silent when the process is gone."""
        self._outbox.put(message)

    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def wait(self, timeout: float) -> bool:
        """Whether the process ended within `timeout` seconds."""
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()

    def reap(self, grace: float) -> str:
        """Wait `grace` seconds for its end, then kill it; close everything and say how it ended."""
        if not self.wait(grace):
            self.kill()
        self._process.wait()
        self.wire.shut()
        self._outbox.put(None)
        self._writer.join()
        self.wire.close()
        return describe_exit(self._process.returncode)

    def _write(self) -> None:
        while (message := self._outbox.get()) is not None:
            try:
                self.wire.send(message)
            except ConnectionError:  # the reader learns of it too, and acts
                return
            except (ValueError, TypeError, OverflowError, OSError) as error:
                self._refused(message, error)


def describe_exit(status: int) -> str:
    """How a process ended, for people: `status` as `subprocess.Popen.returncode`."""
    if status >= 0:
        return f"it ended with status {status}"
    name = str(-status)
    with suppress(ValueError):
        name = signal.Signals(-status).name
    hint = ", perhaps because the machine ran out of memory" if -status == signal.SIGKILL else ""
    return f"it was ended by {name}{hint}"
