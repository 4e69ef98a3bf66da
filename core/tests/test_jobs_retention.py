"""What is kept and for how long: the choice alone, and with real stores."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgld.api.errors import RequestError
from sgld.server.jobs.retention import (
    DAY,
    ORPHAN_SECONDS,
    Ended,
    Swept,
    choose_expired,
    release_uploads,
    remove_expired,
    remove_job,
    sweep_leftovers,
)
from sgld.server.jobs.store import Job, JobStore, new_job_id
from sgld.server.outputs.local import LocalOutputs
from sgld.server.outputs.store import output_key
from sgld.server.uploads import Uploads

NOW = 1_800_000_000.0


@dataclass
class Place:
    """A server's stores, and how many seconds ago a file seems to have been written."""

    jobs: JobStore
    outputs: LocalOutputs
    uploads: Uploads
    root: Path

    def make(self, status: Any, *, ended: float = NOW, size: int = 4, age: float = 0) -> Job:
        """A job with one output and one upload."""
        job_id = new_job_id("video")
        key = output_key(job_id, 0, ".mp4")
        source = self.root / "made"
        source.write_bytes(b"x" * size)
        self.outputs.put(key, source, "video/mp4")
        source.unlink()
        path = self.outputs.open_path(key)
        assert path is not None
        name = self.uploads.save(b"png", ".png")
        for file in (path, self.root / "uploads" / name):
            os.utime(file, (NOW - age, NOW - age))
        job = Job(
            job_id,
            "video",
            NOW - 9 * DAY,
            status,
            completed_at=ended,
            inputs=[name],
            outputs=[{"key": key, "bytes": size}],
        )
        self.jobs.add(job)
        return job

    def files(self) -> set[str]:
        """Every file of outputs and uploads, without the owner's mark."""
        found = {
            str(p.relative_to(self.root))
            for folder in ("outputs", "uploads")
            for p in (self.root / folder).rglob("*")
            if p.is_file()
        }
        return found - {"outputs/.sgld-job-store"}

    def of(self, *jobs: Job, uploads: bool = True) -> set[str]:
        """The files that these jobs have."""
        keys = {f"outputs/{item['key']}" for job in jobs for item in job.outputs}
        return keys | {f"uploads/{name}" for job in jobs for name in job.inputs if uploads}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with JobStore.open(f"sqlite:///{tmp_path}/jobs.sqlite3", clock=lambda: NOW) as jobs:
        yield Place(
            jobs, LocalOutputs(tmp_path / "outputs"), Uploads(tmp_path / "uploads"), tmp_path
        )


def chosen(rows: list[tuple[str, float, float | None, int]], **limits: Any) -> str:
    return "".join(choose_expired([Ended(*row) for row in rows], now=100 * DAY, **limits))


ROWS: list[tuple[str, float, float | None, int]] = [
    ("a", 90 * DAY, None, 10),
    ("b", 95 * DAY, None, 20),
    ("c", 95 * DAY, None, 0),
    ("d", 80 * DAY, 101 * DAY, 30),
    ("e", 99 * DAY, 100 * DAY, 40),
    ("f", 99 * DAY, None, 5),
]


@pytest.mark.parametrize(
    ("limits", "gone"),
    [
        ({}, "e"),  # its own expiry has come
        ({"keep_days": 10}, "ae"),
        ({"keep_days": 10.001}, "e"),
        ({"keep_days": 5}, "abce"),
        ({"keep_days": 1e6}, "e"),
        ({"keep_bytes": 65}, "e"),
        ({"keep_bytes": 64}, "de"),
        ({"keep_bytes": 35}, "de"),
        ({"keep_bytes": 34}, "dae"),
        ({"keep_bytes": 5}, "dabe"),
        ({"keep_bytes": 1}, "dabe"),  # the newest result stays
        ({"keep_days": 5, "keep_bytes": 5}, "dabce"),
        ({"keep_days": 5, "keep_bytes": 35}, "abce"),
    ],
)
def test_choice(limits: dict[str, Any], gone: str) -> None:
    assert chosen(ROWS, **limits) == gone


ENDED = st.lists(
    st.tuples(st.integers(0, 100), st.one_of(st.none(), st.integers(0, 200)), st.integers(0, 50)),
    max_size=20,
).map(lambda rows: [Ended(f"j{i}", t * DAY, e and e * DAY, b) for i, (t, e, b) in enumerate(rows)])


@given(ended=ENDED, keep_days=st.integers(0, 60), keep_bytes=st.integers(0, 200))
def test_choice_holds_its_limits(ended: list[Ended], keep_days: int, keep_bytes: int) -> None:
    now = 100 * DAY
    gone = choose_expired(ended, now=now, keep_days=keep_days, keep_bytes=keep_bytes)
    by_id = {job.id: job for job in ended}
    kept = [job for job in ended if job.id not in gone]
    assert len(set(gone)) == len(gone)
    assert set(gone) <= set(by_id)
    # Oldest first.
    ends = [by_id[name].ended_at for name in gone]
    assert ends == sorted(ends)
    # Nothing that is over stays.
    for job in kept:
        assert job.expires_at is None or job.expires_at > now
        assert job.expires_at is not None or not keep_days or now - job.ended_at < keep_days * DAY
    # The rest fits, or is one result.
    holding = [job for job in kept if job.bytes]
    if keep_bytes and len(holding) > 1:
        assert sum(job.bytes for job in holding) <= keep_bytes
    # What went for its size was not newer than what stayed, and going was needed.
    over = set(choose_expired(ended, now=now, keep_days=keep_days))
    sized = [by_id[name] for name in gone if name not in over]
    assert all(s.ended_at <= k.ended_at and s.bytes > 0 for s in sized for k in holding)
    if sized:
        assert sum(job.bytes for job in [*holding, sized[-1]]) > keep_bytes
    # And a second look finds nothing.
    again = choose_expired(kept, now=now, keep_days=keep_days, keep_bytes=keep_bytes)
    assert again == []


def test_expired_jobs_go_with_their_files(place: Place) -> None:
    old = place.make("completed", ended=NOW - 8 * DAY, size=10)
    new = place.make("completed", ended=NOW - DAY)
    running = place.make("in_progress", ended=NOW - 8 * DAY)
    waiting = place.make("queued", ended=NOW - 8 * DAY)
    swept = remove_expired(place.jobs, place.outputs, place.uploads, now=NOW, keep_days=7)
    assert swept == Swept(jobs=1, bytes=10)
    assert place.jobs.get(old.id) is None
    assert not (place.root / "outputs" / old.id).exists()
    assert place.files() == place.of(new, running, waiting)
    assert place.jobs.ids() == {new.id, running.id, waiting.id}


def test_by_bytes_the_oldest_result_goes_first(place: Place) -> None:
    jobs = [place.make("completed", ended=NOW - DAY + i, size=100) for i in (3, 1, 2)]
    running = place.make("in_progress", size=1000)
    swept = remove_expired(place.jobs, place.outputs, place.uploads, now=NOW, keep_bytes=250)
    assert swept == Swept(jobs=1, bytes=100)
    assert place.files() == place.of(jobs[0], jobs[2], running)
    assert place.jobs.total_bytes() == 1200


def test_what_cannot_be_deleted_is_tried_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck, other = (place.make("completed", ended=NOW - 8 * DAY) for _ in range(2))
    delete = place.outputs.delete

    def broken(key: str) -> None:
        if key.startswith(stuck.id):
            raise RequestError("no", code="output_store_failed")
        delete(key)

    monkeypatch.setattr(place.outputs, "delete", broken)
    stores = (place.jobs, place.outputs, place.uploads)
    assert remove_expired(*stores, now=NOW, keep_days=7) == Swept(jobs=1, bytes=4, failed=1)
    assert place.jobs.ids() == {stuck.id}
    with pytest.raises(RequestError):
        remove_job(*stores, stuck.id)
    assert place.jobs.ids() == {stuck.id}
    monkeypatch.undo()
    assert remove_expired(*stores, now=NOW, keep_days=7) == Swept(jobs=1, bytes=4)
    assert place.files() == place.of() == set()
    assert place.jobs.get(other.id) is None


@pytest.mark.parametrize("status", ["completed", "failed", "cancelled"])
def test_uploads_go_at_any_end(place: Place, status: Any) -> None:
    job = place.make("queued")
    assert release_uploads(place.jobs, place.uploads, job.id) == 0
    assert place.files() == place.of(job)
    place.jobs.update(job.id, status=status)
    assert release_uploads(place.jobs, place.uploads, job.id) == 1
    assert place.files() == place.of(job, uploads=False)
    assert release_uploads(place.jobs, place.uploads, job.id) == 0
    assert release_uploads(place.jobs, place.uploads, "nobody") == 0


def test_remove_job(place: Place) -> None:
    job, other = place.make("completed"), place.make("completed")
    stores = (place.jobs, place.outputs, place.uploads)
    assert remove_job(*stores, job.id) == job
    assert place.files() == place.of(other)
    assert remove_job(*stores, job.id) is None


def test_leftovers_are_swept_at_the_start(place: Place) -> None:
    age = ORPHAN_SECONDS + 1
    lost, young = place.make("completed", age=age), place.make("completed", age=age - 2)
    running, ended = place.make("in_progress", age=age), place.make("failed", age=age)
    for job in (lost, young):
        place.jobs.delete(job.id)
    # What else lies there is the user's own.
    mine = ["outputs/holiday.mp4", "outputs/holiday/0.mp4", f"outputs/{lost.id}/notes.txt"]
    partial = f"outputs/.partial/{'0' * 32}"
    broken = f"uploads/{'0' * 32}.png.partial"
    for name in [*mine, partial, broken, "uploads/mine.png"]:
        (place.root / name).parent.mkdir(exist_ok=True)
        (place.root / name).write_bytes(b"x")
        os.utime(place.root / name, (NOW - age, NOW - age))
    stores = (place.jobs, place.outputs, place.uploads)
    # Two files of `lost`, one upload of `ended`, one broken write in each folder.
    assert sweep_leftovers(*stores, now=NOW) == 5
    expected = place.of(young, running) | place.of(ended, uploads=False)
    assert place.files() == expected | {*mine, "uploads/mine.png"}
    assert sweep_leftovers(*stores, now=NOW) == 0
    assert sweep_leftovers(*stores, now=NOW + 3) == 2


def test_another_servers_outputs_are_no_leftovers(place: Place, tmp_path: Path) -> None:
    assert sweep_leftovers(place.jobs, place.outputs, place.uploads, now=NOW) == 0
    job = place.make("completed", age=2 * DAY)
    with JobStore.open(f"sqlite:///{tmp_path}/other.sqlite3") as other:
        uploads = Uploads(tmp_path / "other")
        assert sweep_leftovers(other, place.outputs, uploads, now=NOW) == 0
    assert place.files() == place.of(job)
