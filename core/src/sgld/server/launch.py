"""From options to a running server, and back to nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import webbrowser
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import structlog
import uvicorn

from sgld import __version__
from sgld.api.errors import SgldError, UserError
from sgld.engine.executors.child import ChildExecutor
from sgld.engine.executors.executor import Executor
from sgld.engine.executors.folder import OwnedFolder
from sgld.media.fetch import FetchPolicy
from sgld.observe.logs import to_environment
from sgld.observe.metrics import Metrics
from sgld.observe.requests import RequestLog
from sgld.observe.tracing import Tracing
from sgld.params.merge import Layer
from sgld.params.server import ServerOptions
from sgld.plan import ModelPlan
from sgld.server.app import make_app
from sgld.server.bodies import Limits
from sgld.server.engine import EngineClient
from sgld.server.jobs.store import JobStore
from sgld.server.outputs.store import output_store
from sgld.server.parameters import ModelFacts
from sgld.server.realtime.model import realtime_model
from sgld.server.realtime.sessions import Sessions
from sgld.server.runner import Runner
from sgld.server.services import Services
from sgld.server.uploads import Uploads

log = structlog.get_logger("sgld.server")

BACKLOG = 2048
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
ANSWER_SECONDS = 1.0
M_MMAP_THRESHOLD = -3
PICTURE_BYTES = 64 * 1024


def served_name(options: ServerOptions, plan: ModelPlan) -> str:
    """The model's name in the API: as given, else the hub id it is taken for, else its folder."""
    return options.served_model_name or plan.options.model_id or plan.files.name


def bind(options: ServerOptions) -> socket.socket:
    """The listening socket.

    Raises:
        SgldError: `port_in_use` or an address that is not here; before anything is loaded.
    """
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    # asyncio sets TCP_NODELAY only where the protocol is spelled out, and without it an answer in
    # two parts may take 40 ms more.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((options.host, options.port))
    except OSError as error:
        listener.close()
        raise SgldError(
            f"port {options.port} on {options.host} cannot be used: {error.strerror or error}.",
            code="port_in_use",
            remedy="Stop what listens there, or choose another --port.",
        ) from None
    listener.listen(BACKLOG)
    listener.set_inheritable(False)
    return listener


def page_address(host: str, port: int) -> str:
    """Where a browser on this machine finds the page of a server that listens there."""
    everywhere = {"0.0.0.0": "127.0.0.1", "::": "::1"}
    host = everywhere.get(host, host)
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


def make_services(
    options: ServerOptions,
    plan: ModelPlan,
    *,
    executor: Executor | None = None,
    environ: Mapping[str, str] | None = None,
) -> Services:
    """Everything the routes need; the engine begins to load.

    Raises:
        UserError: a store or bucket that cannot be used.
    """
    environ = os.environ if environ is None else environ
    name = served_name(options, plan)
    state = Path(options.state_path)
    try:
        state.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"state_path={options.state_path!r}: cannot be made ({error.strerror}).",
            remedy="Choose a folder that can be written to.",
        ) from None
    facts = ModelFacts.of(plan, name)
    realtime = realtime_model(plan, facts, Limits.of(options))
    _check_default_size(options, plan)
    with contextlib.ExitStack() as undo:
        jobs = JobStore.open(options.job_store_url, exclusive=True)
        undo.callback(jobs.close)
        outputs = output_store(options, environ)
        undo.callback(outputs.close)
        outputs.check()
        scratch = OwnedFolder(_scratch(state))
        undo.callback(scratch.close)
        executor = executor or _child(options, plan, environ)
        undo.callback(executor.close)
        services = Services(
            options=options,
            plan=plan,
            name=name,
            facts=facts,
            limits=Limits.of(options),
            engine=EngineClient(executor),
            jobs=jobs,
            outputs=outputs,
            uploads=Uploads(state / "uploads"),
            metrics=Metrics(),
            request_log=_request_log(options),
            tracing=Tracing.create(options.enable_trace, options.otlp_endpoint or ""),
            policy=FetchPolicy(allow_hosts=options.allow_media_host),
            scratch_folder=scratch,
        )
        undo.pop_all()
    services.metrics.served(__version__, name, plan.spec.id)
    services.runner = Runner(services, max_running=plan.max_running, max_queue=options.max_queue)
    services.sessions = Sessions(
        realtime, options, services.engine, services.metrics, services.request_log
    )
    return services


def _child(options: ServerOptions, plan: ModelPlan, environ: Mapping[str, str]) -> ChildExecutor:
    logging = to_environment(options.log_level, options.log_format)
    # A `tiny:` checkpoint is on disk by now; the engine reads that one instead of its own.
    written = {"model_path": str(plan.files.root)} if plan.temporary else {}
    return ChildExecutor(
        plan.options.model_copy(update=written),
        lock_json=plan.lock.to_json(),
        environ={**environ, **logging},
        profile_folder=Path(options.profile or Path(options.state_path) / "profiles"),
    )


def _request_log(options: ServerOptions) -> RequestLog:
    if not options.log_requests:
        return RequestLog.off()
    return RequestLog(
        options.log_requests_level,
        options.log_requests_format,
        options.log_requests_target,
        secrets=options.api_key,
    )


def _check_default_size(options: ServerOptions, plan: ModelPlan) -> None:
    """A limit below the model's own size would refuse every request that leaves the size out."""
    params = plan.build([Layer("call", {"prompt": "-"})]).params
    if params.width is None or params.height is None:
        return  # the pipeline decides, and refuses nothing because of it
    if options.max_pixels is not None and params.width * params.height > options.max_pixels:
        raise UserError(
            f"max_pixels={options.max_pixels}: below the model's own {params.width}x"
            f"{params.height} ({params.width * params.height} pixels).",
            remedy="Raise it, or every request without a size would be refused.",
        )


def _scratch(state: Path) -> Path:
    """Beside the uploads, so that a large result needs no room in a small /tmp."""
    folder = state / "scratch"
    folder.mkdir(exist_ok=True, mode=0o700)
    return folder


class Server(uvicorn.Server):
    """uvicorn, stopped by our own signals: the first drains, the second stops at once."""

    def __init__(self, config: uvicorn.Config, services: Services) -> None:
        super().__init__(config)
        self._services = services

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install the handlers for the time of serving."""
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, self._stop, number)
        try:
            yield
        finally:
            for number in STOP_SIGNALS:
                loop.remove_signal_handler(number)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn does it, but tidy up even when the connections are not waited for."""
        # uvicorn would close the sessions' sockets without a word.
        await self._services.sessions.stop(self._services.options.drain_seconds)
        await super().shutdown(sockets)
        if self.force_exit:
            await self.lifespan.shutdown()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn does it; then, if that is wished, open the page."""
        await super().startup(sockets)
        if self._services.options.open and self.started and sockets:
            address = page_address(*sockets[0].getsockname()[:2])
            if not await asyncio.to_thread(webbrowser.open, address):
                log.warning("there is no browser to open", address=address)

    def _stop(self, number: int) -> None:
        name = signal.Signals(number).name
        runner, drain = self._services.runner, self._services.options.drain_seconds
        sessions = self._services.sessions
        if self.should_exit:
            log.warning("stopping at once", signal=name)
            self.force_exit = True
            runner.hurry()
            sessions.hurry()
            # Those that wait for a result are answered first; what then remains are downloads.
            asyncio.get_running_loop().call_later(ANSWER_SECONDS, self._drop)
        else:
            log.info("stopping", signal=name, drain_seconds=drain)
            self.should_exit = True
            # Now, not after the connections: those wait for jobs.
            runner.begin_stop(drain)
            sessions.begin_stop(drain)

    def _drop(self) -> None:
        for task in list(self.server_state.tasks):
            task.cancel()


def serve(options: ServerOptions, plan: ModelPlan, listener: socket.socket | None = None) -> int:
    """Serve until told to stop, on `listener` if there is one already; returns the exit code."""
    with contextlib.ExitStack() as stack:
        stack.callback(plan.close)
        for line in plan.warnings:
            log.warning(line)
        log.info("plugins and choices", **plan.lock.summary())
        listener = stack.enter_context(listener or bind(options))
        _give_memory_back()
        # Until the loop takes over, a SIGTERM ends the start as Ctrl-C does: with a tidied house.
        stack.enter_context(_interrupted_by(signal.SIGTERM))
        services = make_services(options, plan)
        try:
            server = Server(_config(options, services), services)
            host, port = listener.getsockname()[:2]
            page = page_address(host, port)
            log.info("listening", host=host, port=port, model=services.name, page=page)
            # uvloop where it is installed; see uvicorn's `loop="auto"`.
            with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
                runner.run(server.serve(sockets=[listener]))
        finally:
            # Nothing to do after an orderly end.
            services.engine.close_executor()
            services.scratch_folder.close()
    return 1 if services.readiness.failed or not server.started else 0


def _config(options: ServerOptions, services: Services) -> uvicorn.Config:
    return uvicorn.Config(
        make_app(services),
        log_config=None,
        access_log=False,
        timeout_keep_alive=30,
        # Downloads and event streams do not hold a stop up for longer than running jobs do.
        timeout_graceful_shutdown=int(options.drain_seconds) + 2,
        server_header=False,
        **socket_settings(options),
    )


def socket_settings(options: ServerOptions) -> dict[str, Any]:
    """uvicorn's settings for realtime sockets."""
    return {
        "ws_max_size": options.session_message_mib * 2**20,
        # Frames are compressed already, and clients of the protocol expect no further compression.
        "ws_per_message_deflate": False,
    }


def _give_memory_back() -> None:
    """Have freed pictures go back to the system at once. glibc learns from the first one to keep
    such blocks for later, so that a crowd of uploads would stay in memory for ever."""
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, PICTURE_BYTES)


@contextlib.contextmanager
def _interrupted_by(number: int) -> Iterator[None]:
    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(number, interrupt)
    try:
        yield
    finally:
        signal.signal(number, before)
