"""What is kept and for how long: by age, by bytes, and what nobody owns any more.

    choose_expired(ended, now=..., keep_days=7, keep_bytes=0)   which jobs' results are to go
    remove_expired(store, outputs, uploads, now=..., ...)       and their removal, now and then
    release_uploads(store, uploads, job_id)                     when a job has ended, however
    remove_job(store, outputs, uploads, job_id)                 DELETE
    sweep_leftovers(store, outputs, uploads, now=...)           once, at a server's start

Files go before their row: a removal that was cut short is found and finished the next time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import structlog

from sgld.api.errors import SgldError

if TYPE_CHECKING:
    from sgld.server.jobs.store import JobStore
    from sgld.server.jobs.table import Job

DAY: Final = 86400.0
ORPHAN_SECONDS: Final = 3600.0
"""A file without a job may belong to one that is just being made; after this long it does not."""

log = structlog.get_logger("sgld.server")


class Ended(NamedTuple):
    """An ended job as far as retention cares: when it ended (seconds since 1970), when its
    results were promised until (None: no promise) and how much it stores."""

    id: str
    ended_at: float
    expires_at: float | None
    bytes: int


class Swept(NamedTuple):
    """What a removal did: jobs that went, the bytes they had, jobs whose files could not go."""

    jobs: int = 0
    bytes: int = 0
    failed: int = 0


class Outputs(Protocol):
    """What retention needs of an output store."""

    def delete(self, key: str) -> None:
        """Delete one output; nothing happens when it is not there."""
        ...

    def remove_orphans(self, job_ids: Collection[str], before: float, owner: str) -> int:
        """Delete what belongs to none of these jobs and is older; returns how many."""
        ...


class Inputs(Protocol):
    """What retention needs of the uploads."""

    def delete(self, name: str) -> None:
        """Delete one upload; nothing happens when it is not there."""
        ...

    def remove_orphans(self, in_use: Collection[str], before: float) -> int:
        """Delete what is none of these and is older; returns how many."""
        ...


def choose_expired(
    ended: Iterable[Ended], *, now: float, keep_days: float = 0, keep_bytes: int = 0
) -> list[str]:
    """The ids of the ended jobs that are to go, oldest end first.

    By age: those past their `expires_at`, or without one those that ended `keep_days` ago or
    earlier. By bytes: of the others the oldest, until the rest holds at most `keep_bytes`; jobs
    that store nothing are passed over, and the newest result stays, since whoever asked for it
    has not had it yet. 0 sets no limit.
    """
    ordered = sorted(ended, key=lambda job: job.ended_at)
    aged = [job for job in ordered if _is_over(job, now, keep_days)]
    chosen = {job.id for job in aged}
    left = [job for job in ordered if job.id not in chosen and job.bytes > 0]
    held = sum(job.bytes for job in left)
    for job in left[:-1] if keep_bytes else ():
        if held <= keep_bytes:
            break
        chosen.add(job.id)
        held -= job.bytes
    return [job.id for job in ordered if job.id in chosen]


def _is_over(job: Ended, now: float, keep_days: float) -> bool:
    if job.expires_at is not None:
        return job.expires_at <= now
    return keep_days > 0 and job.ended_at + keep_days * DAY <= now


def remove_expired(
    store: JobStore,
    outputs: Outputs,
    uploads: Inputs,
    *,
    now: float,
    keep_days: float = 0,
    keep_bytes: int = 0,
) -> Swept:
    """Remove the results and rows of jobs that are to go; see `choose_expired`.

    A job whose files cannot be deleted keeps its row and is tried again the next time.
    """
    jobs = size = failed = 0
    for job in store.expired(now, keep_days, keep_bytes):
        try:
            _remove_files(outputs, uploads, job)
            store.delete(job.id)
        except (SgldError, OSError) as error:
            failed += 1
            log.warning("an expired job could not be removed", job=job.id, error=str(error))
            continue
        jobs += 1
        size += sum(int(item["bytes"]) for item in job.outputs)
    return Swept(jobs, size, failed)


def remove_job(store: JobStore, outputs: Outputs, uploads: Inputs, job_id: str) -> Job | None:
    """Remove one job with its files; returns what it was, or None when there is none.

    A running job must have been stopped. Errors of the stores are raised, and the row is kept.
    """
    job = store.get(job_id)
    if job is None:
        return None
    _remove_files(outputs, uploads, job)
    return store.delete(job_id)


def _remove_files(outputs: Outputs, uploads: Inputs, job: Job) -> None:
    for item in job.outputs:
        outputs.delete(item["key"])
    for name in job.inputs:
        uploads.delete(name)


def release_uploads(store: JobStore, uploads: Inputs, job_id: str) -> int:
    """Delete the uploads of a job that has ended; returns how many. Others are left alone."""
    job = store.get(job_id)
    return _release(store, uploads, job) if job is not None and job.ended else 0


def _release(store: JobStore, uploads: Inputs, job: Job) -> int:
    for name in job.inputs:
        uploads.delete(name)
    if job.inputs:
        store.update(job.id, inputs=[])
    return len(job.inputs)


def sweep_leftovers(
    store: JobStore,
    outputs: Outputs,
    uploads: Inputs,
    *,
    now: float,
    older_than: float = ORPHAN_SECONDS,
) -> int:
    """Delete what a killed server left: uploads of ended jobs, and files older than `older_than`
    seconds that no job knows. Returns how many files went."""
    count = sum(_release(store, uploads, job) for job in store.ended_with_inputs())
    before = now - older_than
    # Files are listed after the jobs are read; what was made between is too young to be taken.
    count += uploads.remove_orphans(store.inputs_in_use(), before)
    return count + outputs.remove_orphans(store.ids(), before, store.store_id)
