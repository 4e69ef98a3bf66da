"""What a job is, and the table it is kept in.

`Job` is plain data; `JOBS` is its table in SQLite and PostgreSQL. Lists and mappings are JSON text,
so that the text of a prompt (a NUL, half a surrogate pair) is never refused by a database.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, Literal

import sqlalchemy as sa

Kind = Literal["image", "video"]
Status = Literal["queued", "in_progress", "completed", "failed", "cancelled"]

ENDED: Final = ("completed", "failed", "cancelled")
"""The statuses that a job never leaves."""
UNFINISHED: Final = ("queued", "in_progress")
JOB_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
"""What may be looked up at all; anything else is no job's id and is not shown to a database."""
SCHEMA_VERSION: Final = 1


def new_job_id(kind: Kind) -> str:
    """A new id, `video_` or `image_` and 32 hexadecimal digits: random, so nobody can guess it."""
    return f"{kind}_{uuid.uuid4().hex}"


@dataclass(frozen=True, slots=True)
class Job:
    """One request for pictures or a video, from acceptance to the deletion of its results.

    Args:
        id: made by the server; also names its outputs.
        kind: `image` or `video`.
        created_at: seconds since 1970, as are `started_at`, `completed_at` (the end, whatever it
            was) and `expires_at` (when its results may go).
        model: the served name that was asked for.
        request: the validated parameters as JSON values, with seeds and warnings.
        inputs: names of stored uploads, emptied when the job has ended.
        progress: 0..100.
        outputs: one mapping for each stored output: `key`, `media_type`, `bytes`, `width`,
            `height`, `frames`, `fps`, `seed`, `index`.
        error: `code` and `message` of a job that failed or was cancelled.
        timings: stage name → seconds.
        attempts: how many times it was started.
        request_id: the id of the HTTP request that made it.
    """

    id: str
    kind: Kind
    created_at: float
    status: Status = "queued"
    started_at: float | None = None
    completed_at: float | None = None
    expires_at: float | None = None
    model: str = ""
    request: dict[str, Any] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    progress: int = 0
    outputs: list[dict[str, Any]] = field(default_factory=list)
    error: dict[str, Any] | None = None
    timings: dict[str, float] = field(default_factory=dict)
    attempts: int = 0
    request_id: str = ""

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.status in ENDED


METADATA: Final = sa.MetaData()

SCHEMA: Final = sa.Table(
    "sgld_schema",
    METADATA,
    sa.Column("version", sa.Integer, nullable=False),
    # Tells apart two stores that write into one output folder.
    sa.Column("store_id", sa.String(32), nullable=False),
)

JOBS: Final = sa.Table(
    "sgld_jobs",
    METADATA,
    # The order of acceptance: unlike a clock it never repeats and never goes back.
    sa.Column(
        "sequence",
        sa.BigInteger().with_variant(sa.Integer, "sqlite"),
        primary_key=True,
        autoincrement=True,
    ),
    sa.Column("id", sa.String(128), nullable=False, unique=True),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("started_at", sa.Double),
    sa.Column("completed_at", sa.Double),
    sa.Column("expires_at", sa.Double),
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("request", sa.JSON, nullable=False),
    sa.Column("inputs", sa.JSON, nullable=False),
    sa.Column("progress", sa.Integer, nullable=False),
    sa.Column("outputs", sa.JSON, nullable=False),
    # Derived from `outputs`, so that the sum is the database's work.
    sa.Column("output_bytes", sa.BigInteger, nullable=False),
    sa.Column("error", sa.JSON(none_as_null=True)),
    sa.Column("timings", sa.JSON, nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("request_id", sa.Text, nullable=False),
    sa.Index("sgld_jobs_by_kind", "kind", "sequence"),
    sa.Index("sgld_jobs_by_status", "status", "sequence"),
    sqlite_autoincrement=True,
)

FIELDS: Final = tuple(item.name for item in fields(Job))
COLUMNS: Final = tuple(JOBS.c[name] for name in FIELDS)


def to_columns(values: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a job as values of the table's columns; `ValueError` for a name that is none."""
    unknown = sorted(set(values) - set(FIELDS))
    if unknown:
        raise ValueError(f"a job has no field {', '.join(unknown)}")
    columns = dict(values)
    if "outputs" in columns:
        columns["output_bytes"] = sum(int(item["bytes"]) for item in columns["outputs"])
    return columns


def to_row(job: Job) -> dict[str, Any]:
    """A job as a row of the table, without `sequence`."""
    return to_columns(asdict(job))


def to_job(row: sa.RowMapping) -> Job:
    """A row of the table as a job."""
    return Job(**{name: row[name] for name in FIELDS})
