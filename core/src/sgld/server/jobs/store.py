"""`JobStore`: every job in a database, so that a killed server finds them again.

    store = JobStore.open("sqlite:///state/jobs.sqlite3", exclusive=True)
    store.add(Job(id=new_job_id("video"), kind="video", created_at=time.time(), ...))
    store.claim(job_id); store.update(job_id, progress=40); store.page("video", limit=20)

Methods may be called from any thread and each is one transaction: a process that is killed leaves
it done or not done. Whatever the database refuses is `SgldError` with the code `job_store_failed`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Literal, NamedTuple, Self

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from sgld.api.errors import ParameterError, Problem, SgldError
from sgld.server.jobs import database, retention
from sgld.server.jobs.retention import Ended
from sgld.server.jobs.table import (
    COLUMNS,
    ENDED,
    JOB_ID,
    JOBS,
    UNFINISHED,
    Job,
    Kind,
    Status,
    new_job_id,
    to_columns,
    to_job,
    to_row,
)

__all__ = ["Job", "JobStore", "Page", "new_job_id"]

MAX_PAGE = 100
MAX_ATTEMPTS = 2
"""A job is started at most this often, or one that kills the engine would do so for ever."""


class Page(NamedTuple):
    """Some jobs in order, and whether there are more behind them."""

    jobs: list[Job]
    has_more: bool


class JobStore:
    """The jobs of one server; see the module's text. Made by `open`."""

    def __init__(
        self, engine: sa.Engine, store_id: str, clock: Callable[[], float] = time.time
    ) -> None:
        self._engine = engine
        self._clock = clock
        # SQLite has one writer; waiting here is fair, its own way of waiting is to poll.
        sqlite = engine.dialect.name == "sqlite"
        self._turn = threading.Lock() if sqlite else nullcontext()
        self._release: Callable[[], None] | None = None
        self.store_id = store_id

    @classmethod
    def open(
        cls, url: str, *, exclusive: bool = False, clock: Callable[[], float] = time.time
    ) -> Self:
        """Open or make the store at `sqlite:///FILE` or `postgresql://…`.

        Args:
            url: where the jobs are.
            exclusive: refuse when another server has the store open exclusively; a server that
                requeues what was running must be the only one.
            clock: seconds since 1970.

        Raises:
            UserError: wrong URL, missing driver, unreachable, newer schema or in use.
        """
        engine, store_id = database.connect(url)
        store = cls(engine, store_id, clock)
        if exclusive:
            try:
                store._release = database.hold(engine)
            except BaseException:
                engine.dispose()
                raise
        return store

    def add(self, job: Job) -> None:
        """Keep a new job; `ValueError` when its id is no id or is taken. A power cut may take a
        picture, which nobody would wait for afterwards."""
        if not JOB_ID.fullmatch(job.id):
            raise ValueError(f"{job.id!r} is no job id")
        try:
            with self._writing(flush=job.kind == "video") as connection:
                connection.execute(sa.insert(JOBS).values(to_row(job)))
        except SgldError as error:
            if isinstance(error.__cause__, IntegrityError):
                raise ValueError(f"there is a job {job.id} already") from error
            raise

    def get(self, job_id: str) -> Job | None:
        """The job of this id, or None."""
        if not JOB_ID.fullmatch(job_id):
            return None
        jobs = self._jobs(sa.select(*COLUMNS).where(JOBS.c.id == job_id))
        return jobs[0] if jobs else None

    def page(
        self,
        kind: Kind,
        after: str | None = None,
        limit: int = 20,
        order: Literal["asc", "desc"] = "desc",
    ) -> Page:
        """Up to `limit` (1..100) jobs of a kind in the order of their acceptance, `desc` newest
        first, those behind the job `after`.

        Raises:
            ParameterError: `after` is no job of this kind, or a wrong `limit` or `order`.
        """
        _check_page(limit, order)
        query = sa.select(*COLUMNS).where(JOBS.c.kind == kind).limit(limit + 1)
        column = JOBS.c.sequence
        query = query.order_by(column.asc() if order == "asc" else column.desc())
        with self._reading() as connection:
            if after is not None:
                last = _sequence(connection, kind, after)
                query = query.where(column > last if order == "asc" else column < last)
            jobs = [to_job(row) for row in connection.execute(query).mappings()]
        return Page(jobs[:limit], len(jobs) > limit)

    def queued(self) -> list[Job]:
        """What waits for its turn, oldest first."""
        query = sa.select(*COLUMNS).where(JOBS.c.status == "queued")
        return self._jobs(query.order_by(JOBS.c.sequence))

    def counts(self) -> dict[str, int]:
        """How many jobs have each status; a status that none has is left out."""
        query = sa.select(JOBS.c.status, sa.func.count()).group_by(JOBS.c.status)
        with self._reading() as connection:
            return {row[0]: row[1] for row in connection.execute(query)}

    def claim(self, job_id: str) -> bool:
        """Turn a queued job into a running one; False when it is not queued (any more).

        Of several callers, in other processes too, one gets True.
        """
        values = {"status": "in_progress", "started_at": self._clock(), "completed_at": None}
        return self._change(job_id, ("queued",), values | {"attempts": JOBS.c.attempts + 1})

    def update(
        self, job_id: str, *, only_if: Collection[Status] = (), flush: bool = True, **fields: Any
    ) -> bool:
        """Change fields of a job; False when there is no such job (it was deleted meanwhile: then
        delete what was made for it), or its status is not in `only_if`.

        A status that ends a job fills `completed_at`; `queued` clears `started_at`; unless given.
        Without `flush` a power cut soon after may undo it: that saves a disk's 10 ms.
        `ValueError` for a field that jobs do not have.
        """
        status = fields.get("status")
        if status in ENDED:
            fields.setdefault("completed_at", self._clock())
        elif status == "queued":
            fields.setdefault("started_at", None)
        return self._change(job_id, only_if, to_columns(fields), flush=flush)

    def requeue_running(self) -> int:
        """At a server's start: what ran when the last one ended waits again, or has failed with
        `engine_lost` if it was started twice already. Returns how many wait again."""
        error = {
            "code": "engine_lost",
            "message": f"The server or its engine ended {MAX_ATTEMPTS} times while this job ran.",
        }
        running = JOBS.c.status == "in_progress"
        worn = {"status": "failed", "error": error, "completed_at": self._clock()}
        again = {"status": "queued", "started_at": None, "progress": 0}
        with self._writing() as connection:
            spent = running & (JOBS.c.attempts >= MAX_ATTEMPTS)
            connection.execute(sa.update(JOBS).where(spent).values(worn))
            return connection.execute(sa.update(JOBS).where(running).values(again)).rowcount

    def delete(self, job_id: str) -> Job | None:
        """Forget a job; returns what it was, for the deletion of its files, or None."""
        if not JOB_ID.fullmatch(job_id):
            return None
        with self._writing() as connection:
            query = sa.delete(JOBS).where(JOBS.c.id == job_id).returning(*COLUMNS)
            row = connection.execute(query).mappings().one_or_none()
            return to_job(row) if row is not None else None

    def expired(self, now: float, keep_days: float = 0, keep_bytes: int = 0) -> list[Job]:
        """Ended jobs whose results are to go, oldest first; see `retention.choose_expired`."""
        chosen = retention.choose_expired(
            self.ended(), now=now, keep_days=keep_days, keep_bytes=keep_bytes
        )
        jobs = (self.get(job_id) for job_id in chosen)
        return [job for job in jobs if job is not None]

    def ended(self) -> list[Ended]:
        """Id, end, expiry and bytes of every ended job, in the order of acceptance."""
        end = sa.func.coalesce(JOBS.c.completed_at, JOBS.c.created_at)
        query = sa.select(JOBS.c.id, end, JOBS.c.expires_at, JOBS.c.output_bytes)
        query = query.where(JOBS.c.status.in_(ENDED)).order_by(JOBS.c.sequence)
        with self._reading() as connection:
            return [Ended(*row) for row in connection.execute(query)]

    def ended_with_inputs(self) -> list[Job]:
        """Ended jobs that still name uploads: a server was killed before it deleted them."""
        query = sa.select(*COLUMNS).where(JOBS.c.status.in_(ENDED))
        inputs = sa.cast(JOBS.c.inputs, sa.Text)
        return self._jobs(query.where(inputs != "[]").order_by(JOBS.c.sequence))

    def ids(self) -> set[str]:
        """The ids of all jobs."""
        with self._reading() as connection:
            return set(connection.execute(sa.select(JOBS.c.id)).scalars())

    def inputs_in_use(self) -> set[str]:
        """The names of all uploads that queued and running jobs need."""
        query = sa.select(JOBS.c.inputs).where(JOBS.c.status.in_(UNFINISHED))
        with self._reading() as connection:
            return {name for names in connection.execute(query).scalars() for name in names}

    def total_bytes(self) -> int:
        """The size of all stored outputs together, as the jobs say it."""
        with self._reading() as connection:
            return int(
                connection.execute(sa.select(sa.func.sum(JOBS.c.output_bytes))).scalar() or 0
            )

    def close(self) -> None:
        """Let go of the database; a second call does nothing."""
        if self._release is not None:
            self._release()
            self._release = None
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _jobs(self, query: sa.Select[Any]) -> list[Job]:
        with self._reading() as connection:
            return [to_job(row) for row in connection.execute(query).mappings()]

    def _change(
        self, job_id: str, only_if: Collection[str], columns: dict[str, Any], *, flush: bool = True
    ) -> bool:
        if not JOB_ID.fullmatch(job_id):
            return False
        query = sa.update(JOBS).where(JOBS.c.id == job_id)
        if only_if:
            query = query.where(JOBS.c.status.in_(only_if))
        with self._writing(flush=flush) as connection:
            return connection.execute(query.values(columns)).rowcount == 1

    @contextmanager
    def _reading(self, **options: bool) -> Iterator[sa.Connection]:
        try:
            connect = self._engine.connect().execution_options(**options)
            with connect as connection, connection.begin():
                yield connection
        except (SQLAlchemyError, ValueError) as error:  # the latter: a value that JSON lacks
            raise SgldError(
                f"The job store failed: {database.cause(error)}.",
                code="job_store_failed",
                remedy="See the server's log; the job store must be reachable and have space.",
            ) from error

    @contextmanager
    def _writing(self, *, flush: bool = True) -> Iterator[sa.Connection]:
        with self._turn, self._reading(writes=True, flush=flush) as connection:
            yield connection


def _check_page(limit: int, order: str) -> None:
    problems: list[Problem] = []
    if not 1 <= limit <= MAX_PAGE:
        problems.append(Problem("limit", limit, f"must be a whole number from 1 to {MAX_PAGE}."))
    if order not in ("asc", "desc"):
        problems.append(Problem("order", order, "must be asc or desc."))
    if problems:
        raise ParameterError(problems)


def _sequence(connection: sa.Connection, kind: str, after: str) -> int:
    """Where the job `after` stands."""
    found = None
    if JOB_ID.fullmatch(after):
        query = sa.select(JOBS.c.sequence).where(JOBS.c.id == after, JOBS.c.kind == kind)
        found = connection.execute(query).scalar()
    if found is None:
        remedy = "Give the id of the last one of a page, or leave it out to start from the first."
        raise ParameterError([Problem("after", after, f"there is no {kind} of this id.", remedy)])
    return int(found)
