"""Servers for tests: in this process over a real socket, or as the real command.

    with served_here("tiny:toy-image", folder, max_queue=1) as server:
        httpx.get(f"{server.url}/health")
    with served_apart("tiny:wan-t2v", folder, "--api-key", "k") as server: ...

Both wait until the server is ready, know the toy families and keep everything in `folder`.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI

from sgld.engine.build import build_engine
from sgld.engine.executors.in_process import InProcessExecutor
from sgld.engine.executors.state import EngineState
from sgld.params.server import ServerOptions
from sgld.params.serving import ServingOptions
from sgld.plan import ModelPlan, make_plan
from sgld.server.app import make_app
from sgld.server.launch import make_services, socket_settings
from sgld.server.services import Services

START_SECONDS = 120.0
TOYS: Mapping[str, str] = {"SGLD_EXTERNAL_MODEL_PACKAGE": "sgld.testing.toy_plugin"}
"""What makes the toy families known."""


@dataclass
class Served:
    """A running server: its address without a slash, and for one in this process, its parts."""

    url: str
    services: Any = None
    process: Any = None
    lines: list[str] = field(default_factory=list)

    @property
    def api(self) -> str:
        """What OpenAI's client calls the base URL."""
        return f"{self.url}/v1"


class HereExecutor(InProcessExecutor):
    """An engine on a thread that tells its state, as the supervised one does."""

    def __init__(self, plan: ModelPlan) -> None:
        super().__init__(lambda emit: build_engine(plan, emit, None))

    @property
    def state(self) -> EngineState:
        """Ready from the start: the constructor has loaded the model."""
        return EngineState("stopped" if self._closed else "ready", pid=os.getpid())


@contextmanager
def app_here(
    model_path: str, folder: Path, serving: Mapping[str, Any] | None = None, **server: Any
) -> Iterator[tuple[FastAPI, Services]]:
    """The application with an engine in this process; whoever runs it runs its lifespan."""
    environ = {**os.environ, **TOYS}
    options = ServingOptions(model_path=model_path, **(serving or {}))
    paths = {"state_path": str(folder / "state"), "output_path": str(folder / "outputs")}
    plan = make_plan(options, environ=environ)
    try:
        services = make_services(
            ServerOptions(**{**paths, **server}), plan, executor=HereExecutor(plan), environ=environ
        )
        yield make_app(services), services
    finally:
        plan.close()


@contextmanager
def served_here(
    model_path: str, folder: Path, serving: Mapping[str, Any] | None = None, **server: Any
) -> Iterator[Served]:
    """A server on a thread of this process, on a free port; `server` are `ServerOptions`."""
    with app_here(model_path, folder, serving, **server) as (app, services):
        config = uvicorn.Config(
            app,
            host="127.0.0.1",
            port=0,
            log_config=None,
            timeout_graceful_shutdown=2,
            **socket_settings(services.options),
        )
        runner = uvicorn.Server(config)
        thread = threading.Thread(target=runner.run, name="sgld-test-server", daemon=True)
        thread.start()
        try:
            wait_for(lambda: runner.started and services.readiness.ready, "the server")
            port = runner.servers[0].sockets[0].getsockname()[1]
            yield Served(f"http://127.0.0.1:{port}", services)
        finally:
            runner.should_exit = True
            thread.join(START_SECONDS)


@contextmanager
def served_apart(
    model_path: str,
    folder: Path,
    *flags: str,
    environ: Mapping[str, str] | None = None,
    ready: bool = True,
    python: str | Path = sys.executable,
) -> Iterator[Served]:
    """`sgld serve` as a process of its own, on a free port, with the sgld of this `python`; stopped
    by SIGTERM. An empty `model_path` names no model."""
    named = [model_path] if model_path else []
    command = [
        str(python), "-m", "sgld", "serve", *named, "--port", "0",
        "--state-path", str(folder / "state"), "--output-path", str(folder / "outputs"),
        "--drain-seconds", "1", *flags,
    ]  # fmt: skip
    process = subprocess.Popen(
        command,
        env={**os.environ, **TOYS, **(environ or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines: list[str] = []
    reader = threading.Thread(target=_read, args=(process, lines), daemon=True)
    reader.start()
    try:
        wait_for(lambda: _port(lines) or process.poll() is not None, "the port")
        server = Served(f"http://127.0.0.1:{_port(lines)}", process=process, lines=lines)
        if ready:
            wait_for(lambda: _healthy(server.url) or process.poll() is not None, "health")
        if process.poll() is not None:
            raise RuntimeError(f"sgld serve ended with {process.returncode}:\n{''.join(lines)}")
        yield server
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        reader.join(5)
        if process.stdout is not None:
            process.stdout.close()


def wait_for(condition: Callable[[], Any], what: str, seconds: float = START_SECONDS) -> None:
    """Poll until `condition()` is true; `TimeoutError` naming `what` otherwise."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {seconds:g} s for {what}")
        time.sleep(0.02)


def _read(process: subprocess.Popen[str], lines: list[str]) -> None:
    if process.stdout is not None:
        lines.extend(iter(process.stdout.readline, ""))


def _port(lines: list[str]) -> int:
    for line in list(lines):
        if "listening" in line and (found := re.search(r"port=(\d+)", line)):
            return int(found[1])
    return 0


def _healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False
