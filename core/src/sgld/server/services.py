"""Everything the routes work with, made once and handed to the app; no globals."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import structlog

from sgld.engine.executors.folder import OwnedFolder
from sgld.media.fetch import FetchPolicy
from sgld.observe.metrics import Metrics
from sgld.observe.requests import RequestLog
from sgld.observe.tracing import Tracing
from sgld.params.server import ServerOptions
from sgld.plan import ModelPlan
from sgld.server.bodies import Limits
from sgld.server.engine import EngineClient
from sgld.server.jobs.retention import remove_expired, sweep_leftovers
from sgld.server.jobs.store import JobStore
from sgld.server.outputs.store import OutputStore
from sgld.server.parameters import ModelFacts
from sgld.server.uploads import Uploads

log = structlog.get_logger("sgld.server")

T = TypeVar("T")
RETENTION_SECONDS = 60.0


@dataclass
class Readiness:
    """Whether generation requests are taken, and why not."""

    ready: bool = False
    reason: str = "the engine is starting"
    retry_after: int = 5
    failed: bool = False
    started: float = field(default_factory=time.time)


@dataclass
class Services:
    """The server's parts.

    Args:
        options: as validated.
        plan: the model's plan; nothing of it is loaded here.
        name: the served model's name.
        facts: what request validation needs of the model.
        limits: the server's own limits on requests.
        scratch_folder: for files in the making; goes with the server, even a killed one's.
        runner: runs jobs; a `sgld.server.runner.Runner`.
        sessions: realtime sessions; a `sgld.server.realtime.sessions.Sessions`.
    """

    options: ServerOptions
    plan: ModelPlan
    name: str
    facts: ModelFacts
    limits: Limits
    engine: EngineClient
    jobs: JobStore
    outputs: OutputStore
    uploads: Uploads
    metrics: Metrics
    request_log: RequestLog
    tracing: Tracing
    policy: FetchPolicy
    scratch_folder: OwnedFolder
    runner: Any = None
    sessions: Any = None
    readiness: Readiness = field(default_factory=Readiness)
    # One thread for the job store: its calls keep their order, and SQLite has one writer anyway.
    _db: ThreadPoolExecutor = field(default_factory=partial(ThreadPoolExecutor, 1, "sgld-db"))
    _files: ThreadPoolExecutor = field(default_factory=partial(ThreadPoolExecutor, 8, "sgld-files"))
    # Apart from the rest: encoding a long video must not hold up downloads of others.
    _save: ThreadPoolExecutor = field(default_factory=partial(ThreadPoolExecutor, 4, "sgld-save"))

    @property
    def scratch(self) -> Path:
        """Where outputs are written before they are handed to the output store."""
        return self.scratch_folder.path

    async def db(self, function: Callable[..., T], *arguments: Any, **fields: Any) -> T:
        """Call the job store without blocking the loop."""
        return await _in(self._db, function, arguments, fields)

    async def files(self, function: Callable[..., T], *arguments: Any, **fields: Any) -> T:
        """Call the output store or the uploads without blocking the loop."""
        return await _in(self._files, function, arguments, fields)

    async def save(self, function: Callable[..., T], *arguments: Any, **fields: Any) -> T:
        """Encode and store an output without blocking the loop."""
        return await _in(self._save, function, arguments, fields)

    async def keep(self) -> None:
        """Delete what nobody owns, and now and then what is older or larger than the options keep;
        runs until cancelled."""
        await self._try("leftovers", self._remove_leftovers)
        while True:
            await self._try("retention", self._remove_expired)
            await asyncio.sleep(RETENTION_SECONDS)

    def _remove_leftovers(self) -> None:
        # The uploads are this server's alone: those from before its start are a killed one's.
        self.uploads.remove_orphans(self.jobs.inputs_in_use(), self.readiness.started)
        sweep_leftovers(self.jobs, self.outputs, self.uploads, now=time.time())

    def _remove_expired(self) -> None:
        remove_expired(
            self.jobs,
            self.outputs,
            self.uploads,
            now=time.time(),
            keep_days=self.options.keep_days,
            keep_bytes=int(self.options.keep_gib * 2**30),
        )
        self.metrics.bytes_stored(self.jobs.total_bytes())

    async def _try(self, what: str, function: Callable[..., Any], *given: Any, **more: Any) -> None:
        try:
            # Not on the store's own thread: deleting many files may take long.
            await self.files(function, *given, **more)
        except Exception as error:  # the next round may succeed; serving must go on
            log.error(f"{what} failed", error=repr(error))

    def close(self) -> None:
        """Close stores and threads; the engine is closed by whoever made it."""
        self._save.shutdown(wait=True)
        self._files.shutdown(wait=True)
        self._db.shutdown(wait=True)
        self.jobs.close()
        self.outputs.close()
        self.scratch_folder.close()
        self.request_log.close()
        self.tracing.close()


async def _in(
    pool: ThreadPoolExecutor,
    function: Callable[..., T],
    arguments: tuple[Any, ...],
    fields: dict[str, Any],
) -> T:
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(pool, lambda: function(*arguments, **fields))
