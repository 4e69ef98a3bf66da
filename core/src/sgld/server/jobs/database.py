"""Opens the database of the job store: which one a URL means, its settings and its schema.

`connect(url)` gives an engine whose schema is up to date; `hold(engine, url)` makes sure that one
server only works with it. Everything that a person can mend is a `UserError` without the password.
"""

from __future__ import annotations

import fcntl
import json
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from sgld.api.errors import UserError
from sgld.server.jobs.table import METADATA, SCHEMA, SCHEMA_VERSION

VALID: Final = "sqlite:///FILE or postgresql://USER:PASSWORD@HOST/DATABASE"
BUSY_SECONDS: Final = 10
CONNECT_SECONDS: Final = 5
SILENT_SECONDS: Final = 15
"""How long a connection to PostgreSQL may take no data before it counts as lost."""
LOCK: Final = 0x73676C64
"""Number of the advisory locks in PostgreSQL: the letters of `sgld`."""
READ, WRITE = "BEGIN", "BEGIN IMMEDIATE"


def read_url(url: str) -> sa.URL:
    """The database that a job store's URL means; `UserError` for one that cannot be used."""
    try:
        read = sa.make_url(url)
        backend = read.get_backend_name()
    except (ArgumentError, ValueError) as error:
        # Not shown: what cannot be read may hold a password anywhere.
        raise UserError("job_store: this is no database URL.", remedy=f"Use {VALID}.") from error
    if backend in ("postgresql", "postgres"):
        return read.set(drivername="postgresql+psycopg")
    if backend != "sqlite":
        raise UserError(f"job_store: {backend} cannot be used.", remedy=f"Use {VALID}.")
    if not read.database or read.database == ":memory:":
        raise UserError(
            "job_store: a SQLite store needs a file, or jobs would end with the server.",
            remedy="Use sqlite:///FILE.",
        )
    return read.set(drivername="sqlite")


def connect(url: str) -> tuple[sa.Engine, str]:
    """Open the database, make or check the schema; returns the engine and the store's own id.

    Raises:
        UserError: wrong URL, missing driver, unreachable or foreign database, or newer schema.
    """
    read = read_url(url)
    shown = _shown(read)
    if read.get_backend_name() == "sqlite":
        _make_folder(Path(str(read.database)), shown)
    try:
        engine = _sqlite(read) if read.get_backend_name() == "sqlite" else _postgres(read)
    except ModuleNotFoundError as error:
        raise UserError(
            f"job_store: {shown} needs the psycopg package.",
            remedy="Run: pip install sgld-core[postgres]",
        ) from error
    try:
        return engine, _prepare(engine, shown)
    except SQLAlchemyError as error:
        engine.dispose()
        raise UserError(
            f"job_store: {shown} cannot be opened: {cause(error)}.",
            remedy="Check that it exists, is a database and that you may write to it.",
        ) from error
    except UserError:
        engine.dispose()
        raise


def _shown(url: sa.URL) -> str:
    """The URL without passwords; those may also stand in the query."""
    plain = url.set(drivername=url.get_backend_name(), query={})
    return plain.render_as_string(hide_password=True)


def cause(error: BaseException) -> str:
    """The first line of what a database driver said."""
    said = str(getattr(error, "orig", None) or error).strip()
    return said.splitlines()[0].rstrip(".") if said else type(error).__name__


def _make_folder(file: Path, shown: str) -> None:
    try:
        # Prompts are private.
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise UserError(
            f"job_store: the folder of {shown} cannot be made: {error.strerror}.",
            remedy="Choose a folder that you may write to.",
        ) from error


def _serializer() -> Callable[[Any], str]:
    # NaN is no JSON: PostgreSQL would refuse it, SQLite would keep it.
    return partial(json.dumps, allow_nan=False, separators=(",", ":"))


def _sqlite(url: sa.URL) -> sa.Engine:
    engine = sa.create_engine(
        url, json_serializer=_serializer(), connect_args={"timeout": BUSY_SECONDS}
    )

    @event.listens_for(engine, "connect")
    def _settings(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # transactions are begun below, not by the driver
        cursor = connection.cursor()
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        # A reader that turns writer is refused at once when another wrote meanwhile; whoever
        # says at the start that it will write waits for its turn.
        options = connection.get_execution_options()
        writes = options.get("writes", False)
        if writes:
            # A killed process loses nothing with NORMAL; FULL also outlives a power cut.
            level = "FULL" if options.get("flush", True) else "NORMAL"
            connection.exec_driver_sql(f"PRAGMA synchronous={level}")
        connection.exec_driver_sql(WRITE if writes else READ)

    return engine


def _postgres(url: sa.URL) -> sa.Engine:
    settings = {
        "application_name": "sgld",
        "connect_timeout": CONNECT_SECONDS,
        "tcp_user_timeout": SILENT_SECONDS * 1000,
    }
    return sa.create_engine(
        url,
        json_serializer=_serializer(),
        pool_pre_ping=True,  # the database may have been restarted
        connect_args={name: value for name, value in settings.items() if name not in url.query},
    )


def _prepare(engine: sa.Engine, shown: str) -> str:
    """Make the schema or check it, and return the store's id."""
    with engine.connect().execution_options(writes=True) as connection, connection.begin():
        if engine.dialect.name == "postgresql":
            # Two servers that start together must not both make the tables.
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(LOCK)))
        if not sa.inspect(connection).has_table(SCHEMA.name):
            METADATA.create_all(connection)
            row = {"version": SCHEMA_VERSION, "store_id": uuid.uuid4().hex}
            connection.execute(sa.insert(SCHEMA).values(row))
        found = connection.execute(sa.select(SCHEMA.c.version, SCHEMA.c.store_id)).one()
    if found.version > SCHEMA_VERSION:
        raise UserError(
            f"job_store: {shown} was written by a newer sgld (schema {found.version}, this one "
            f"knows {SCHEMA_VERSION}).",
            remedy="Update sgld, or choose another store.",
        )
    return found.store_id


def hold(engine: sa.Engine, *, patience: float = 5.0) -> Callable[[], None]:
    """Make sure that no other server works with this store; returns what lets go of it.

    A lock that ends with the process, so a killed server leaves none behind. `patience` seconds
    are given to a server that is just stopping.

    Raises:
        UserError: another server has it.
    """
    attempt = _hold_row if engine.dialect.name == "postgresql" else _hold_file
    until = time.monotonic() + patience
    while True:
        release = attempt(engine)
        if release is not None:
            return release
        if time.monotonic() >= until:
            raise UserError(
                f"job_store: another server is using {_shown(engine.url)}.",
                remedy="Stop it, or give this one its own --state-path or --job-store.",
            )
        time.sleep(0.1)


def _hold_file(engine: sa.Engine) -> Callable[[], None] | None:
    file = Path(f"{engine.url.database}.lock").open("w")  # noqa: SIM115
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file.close


def _hold_row(engine: sa.Engine) -> Callable[[], None] | None:
    connection = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
    if connection.execute(sa.select(sa.func.pg_try_advisory_lock(LOCK + 1))).scalar():
        # Not given back to the pool: the lock lives as long as this connection.
        connection.detach()
        return connection.close
    connection.close()
    return None
