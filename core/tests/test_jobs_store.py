"""The job store on SQLite; `tests/test_jobs_postgres.py` runs `TestJobStore` on PostgreSQL too."""

from __future__ import annotations

import itertools
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sgld.api.errors import ParameterError, SgldError, UserError
from sgld.server.jobs.store import Job, JobStore, new_job_id
from sgld.server.jobs.table import JOBS, SCHEMA, SCHEMA_VERSION

NOW = 1_800_000_000.0
FULL = Job(
    id="video_0123",
    kind="video",
    created_at=NOW + 0.125,
    status="failed",
    started_at=NOW + 1,
    completed_at=NOW + 2.5,
    expires_at=NOW + 1e6,
    model="wan/2.1",
    request={"prompt": 'a\x00b "ü" \ud800 \U0001f600', "steps": 4, "nested": {"a": [1, None, 0.5]}},
    inputs=["0.png", "1.png"],
    progress=60,
    outputs=[{"key": "video_0123/0.mp4", "bytes": 2**33, "fps": 16.0, "width": 64}],
    error={"code": "out_of_memory", "message": "no"},
    timings={"denoise": 1.25},
    attempts=2,
    request_id="req-1",
)


def job(name: str = "", kind: Any = "video", **fields: Any) -> Job:
    return Job(id=name or new_job_id(kind), kind=kind, **{"created_at": NOW} | fields)


def output(size: int, key: str = "a/0.mp4") -> dict[str, Any]:
    return {"key": key, "bytes": size}


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/state/jobs.sqlite3"


@pytest.fixture
def store(url: str) -> Iterator[JobStore]:
    with JobStore.open(url, clock=lambda: NOW) as opened:
        yield opened


class TestJobStore:
    """What holds on every database."""

    def test_keeps_every_field(self, store: JobStore, url: str) -> None:
        store.add(FULL)
        assert store.get(FULL.id) == FULL
        with JobStore.open(url) as again:
            assert again.get(FULL.id) == FULL
            assert again.store_id == store.store_id

    def test_new_ids_are_ids(self) -> None:
        ids = {new_job_id("video") for _ in range(1000)}
        assert len(ids) == 1000
        assert all(name.startswith("video_") and len(name) == 38 for name in ids)
        assert new_job_id("image").startswith("image_")

    @pytest.mark.parametrize("name", ["", "a\x00b", "\ud800", "../x", "a b", "x" * 129, "é", "a\n"])
    def test_what_is_no_id_is_not_found(self, store: JobStore, name: str) -> None:
        assert store.get(name) is None
        assert store.delete(name) is None
        assert not store.claim(name)
        assert not store.update(name, progress=1)
        with pytest.raises(ParameterError):
            store.page("video", after=name)
        with pytest.raises(ValueError, match="no job id"):
            store.add(Job(id=name, kind="video", created_at=NOW))

    def test_an_id_is_taken_once(self, store: JobStore) -> None:
        store.add(job("a", progress=7))
        with pytest.raises(ValueError, match="already"):
            store.add(job("a", progress=8))
        kept = store.get("a")
        assert kept is not None
        assert kept.progress == 7

    def test_claim_starts_a_queued_job_once(self, store: JobStore) -> None:
        store.add(job("a"))
        assert store.claim("a")
        assert not store.claim("a")
        claimed = store.get("a")
        assert claimed is not None
        assert (claimed.status, claimed.attempts, claimed.started_at) == ("in_progress", 1, NOW)
        assert not store.claim("b")

    def test_update(self, store: JobStore) -> None:
        store.add(job("a"))
        store.add(job("b"))
        assert store.update("a", progress=50, timings={"x": 1.0})
        assert store.update("a", status="completed", outputs=[output(5), output(6)])
        changed = store.get("a")
        assert changed is not None
        assert changed.completed_at == NOW
        assert (changed.progress, changed.timings, changed.ended) == (50, {"x": 1.0}, True)
        assert store.total_bytes() == 11
        assert store.get("b") == job("b")
        assert not store.update("c", progress=1)
        with pytest.raises(ValueError, match="stauts"):
            store.update("a", stauts="failed")
        with pytest.raises(SgldError, match="JSON"):
            store.update("a", timings={"x": float("nan")})

    def test_update_only_if(self, store: JobStore) -> None:
        store.add(job("a", status="cancelled"))
        unfinished: Any = ("queued", "in_progress")
        assert not store.update("a", only_if=unfinished, status="completed")
        assert store.update("a", only_if=("cancelled",), progress=3)
        assert [j.status for j in store.page("video").jobs] == ["cancelled"]

    def test_back_in_the_queue_it_has_not_started(self, store: JobStore) -> None:
        store.add(job("a"))
        store.claim("a")
        store.update("a", status="queued")
        assert store.queued()[0].started_at is None

    def test_queue_is_first_come_first_served(self, store: JobStore) -> None:
        # The clock goes back meanwhile.
        names = [f"job{i}" for i in range(12)]
        for i, name in enumerate(names):
            store.add(job(name, kind=("image", "video")[i % 2], created_at=NOW - i))
        store.claim("job3")
        assert [j.id for j in store.queued()] == [n for n in names if n != "job3"]
        assert store.counts() == {"queued": 11, "in_progress": 1}

    def test_requeue_running(self, store: JobStore) -> None:
        for name in ("once", "twice", "waiting", "done"):
            store.add(job(name, attempts=1 if name == "twice" else 0))
        for name in ("once", "twice", "done"):
            store.claim(name)
        store.update("once", progress=80)
        store.update("done", status="completed")
        assert store.requeue_running() == 1
        found = {j.id: j for j in store.page("video").jobs}
        assert {n: j.status for n, j in found.items()} == {
            "once": "queued",
            "twice": "failed",
            "waiting": "queued",
            "done": "completed",
        }
        assert (found["once"].progress, found["once"].attempts) == (0, 1)
        assert found["once"].started_at is None
        assert found["twice"].error is not None
        assert found["twice"].error["code"] == "engine_lost"
        assert found["twice"].completed_at == NOW
        assert store.requeue_running() == 0

    def test_delete(self, store: JobStore) -> None:
        store.add(FULL)
        store.add(job("b"))
        assert store.delete(FULL.id) == FULL
        assert store.delete(FULL.id) is None
        assert store.get(FULL.id) is None
        assert store.ids() == {"b"}
        assert store.total_bytes() == 0

    def test_page(self, store: JobStore) -> None:
        names = [f"v{i}" for i in range(5)]
        for name in names:
            store.add(job(name))  # all at the same instant
            store.add(job(f"i{name}", kind="image"))
        page = store.page("video", limit=2)
        assert [j.id for j in page.jobs] == ["v4", "v3"]
        assert page.has_more
        page = store.page("video", after="v3", limit=3)
        assert [j.id for j in page.jobs] == ["v2", "v1", "v0"]
        assert not page.has_more
        assert [j.id for j in store.page("video", order="asc", after="v3").jobs] == ["v4"]
        assert store.page("video", after="v0") == ([], False)
        assert [j.id for j in store.page("image", limit=1).jobs] == ["iv4"]

    @pytest.mark.parametrize(
        ("arguments", "field"),
        [
            ({"after": "nobody"}, "after"),
            ({"after": "img"}, "after"),
            ({"limit": 0}, "limit"),
            ({"limit": -1}, "limit"),
            ({"limit": 101}, "limit"),
            ({"order": "up"}, "order"),
        ],
    )
    def test_page_refuses(self, store: JobStore, arguments: dict[str, Any], field: str) -> None:
        store.add(job("img", kind="image"))
        with pytest.raises(ParameterError) as caught:
            store.page("video", **arguments)
        assert [problem.field for problem in caught.value.problems] == [field]
        assert caught.value.problems[0].value == arguments[field]

    @settings(
        max_examples=15,
        deadline=None,
        suppress_health_check=[
            HealthCheck.function_scoped_fixture,
            HealthCheck.differing_executors,
        ],
    )
    @given(
        kinds=st.lists(st.sampled_from(["image", "video"]), max_size=12),
        limit=st.integers(1, 7),
        order=st.sampled_from(["asc", "desc"]),
        deleted=st.sets(st.integers(0, 11)),
        late=st.integers(0, 3),
    )
    def test_pages_show_each_job_once(
        self,
        store: JobStore,
        kinds: list[Any],
        limit: int,
        order: Any,
        deleted: set[int],
        late: int,
    ) -> None:
        """Walking all pages gives every job in order, whatever comes and goes behind the cursor."""
        for left in store.ids():
            store.delete(left)
        jobs = [job(kind=kind) for kind in kinds]
        for one in jobs:
            store.add(one)
        wanted = [one.id for one in jobs if one.kind == "video"]
        wanted = wanted if order == "asc" else wanted[::-1]
        seen: list[str] = []
        gone: set[str] = set()
        after: str | None = None
        while True:
            page = store.page("video", after, limit, order)
            seen += [one.id for one in page.jobs]
            if not page.jobs and after is None:
                break
            if after is None:
                # Jobs that come while someone pages are behind the last (asc) or not seen (desc).
                for one in (job() for _ in range(late)):
                    store.add(one)
                    wanted += [one.id] if order == "asc" else []
                gone = {jobs[i].id for i in deleted if i < len(jobs)} - set(seen)
                for name in gone:
                    store.delete(name)
            if not page.jobs:
                break
            assert len(page.jobs) <= limit
            after = page.jobs[-1].id
            if not page.has_more and not (late and order == "asc"):
                break
        assert seen == [name for name in wanted if name not in gone]

    def test_expired_and_what_it_is_chosen_from(self, store: JobStore) -> None:
        store.add(job("old", status="completed", completed_at=NOW - 86400, outputs=[output(5)]))
        store.add(job("new", status="failed", completed_at=NOW - 86399))
        store.add(job("run", status="in_progress", created_at=0, outputs=[output(7)]))
        store.add(job("kept", status="completed", completed_at=0, expires_at=NOW + 1))
        store.add(job("odd", status="cancelled", created_at=NOW - 86401))
        assert [j.id for j in store.expired(NOW, keep_days=1)] == ["odd", "old"]
        assert [j.id for j in store.expired(NOW + 1, keep_days=1)] == ["kept", "odd", "old", "new"]
        assert store.expired(NOW) == []
        assert store.total_bytes() == 12

    def test_inputs(self, store: JobStore) -> None:
        store.add(job("a", inputs=["1", "2"]))
        store.add(job("b", inputs=["3"], status="in_progress"))
        store.add(job("c", inputs=["4"], status="failed"))
        store.add(job("d", status="failed"))
        assert store.inputs_in_use() == {"1", "2", "3"}
        assert [j.id for j in store.ended_with_inputs()] == ["c"]

    def test_threads(self, store: JobStore) -> None:
        """Many threads add, claim and count; nothing is lost, doubled or refused."""
        claims: list[str] = []
        errors: list[Exception] = []

        def work(number: int) -> None:
            try:
                for i in range(10):
                    store.add(job(f"t{number}-{i}"))
                    for waiting in store.queued()[:3]:
                        if store.claim(waiting.id):
                            claims.append(waiting.id)
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert len(claims) == len(set(claims))
        assert store.counts().get("in_progress", 0) == len(claims)
        assert len(store.ids()) == 60

    def test_newer_schema_is_refused(self, store: JobStore, url: str) -> None:
        engine = store._engine
        with engine.begin() as connection:
            connection.execute(sa.update(SCHEMA).values(version=SCHEMA_VERSION + 1))
        with pytest.raises(UserError, match=r"newer sgld \(schema 2, this one knows 1\)"):
            JobStore.open(url)

    def test_only_one_server_at_a_time(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        from sgld.server.jobs import database

        monkeypatch.setattr(database.hold, "__kwdefaults__", {"patience": 0.3})
        first = JobStore.open(url, exclusive=True)
        with pytest.raises(UserError, match="another server"):
            JobStore.open(url, exclusive=True)
        JobStore.open(url).close()  # a look is allowed
        first.close()
        first.close()
        with JobStore.open(url, exclusive=True) as second:
            second.add(job("a"))
            assert second.claim("a")

    def test_an_errors_cause_is_told(self, store: JobStore) -> None:
        with store._engine.begin() as connection:
            JOBS.drop(connection)
        with pytest.raises(SgldError, match="sgld_jobs") as caught:
            store.get("a")
        assert caught.value.code == "job_store_failed"
        with pytest.raises(SgldError, match="sgld_jobs"):
            store.add(job("a"))

    @pytest.mark.multi_process
    def test_two_processes_share_the_queue(self, store: JobStore, url: str) -> None:
        """Each of 120 jobs is claimed by one of two processes that run at the same time."""
        names = [f"job{i}" for i in range(120)]
        for name in names:
            store.add(job(name))
        code = """
            import sys
            from sgld.server.jobs.store import JobStore
            with JobStore.open(sys.argv[1]) as store:
                print("ready", flush=True)
                sys.stdin.readline()
                names = [job.id for job in store.queued()]
                print(*(name for name in names if store.claim(name)))
        """
        workers = [_python(code, url) for _ in range(2)]
        for worker in workers:
            assert worker.stdout.readline() == b"ready\n"
        for worker in workers:
            worker.stdin.write(b"\n")
            worker.stdin.flush()
        claimed = [worker.communicate(timeout=60)[0].decode().split() for worker in workers]
        assert sorted(itertools.chain(*claimed)) == sorted(names)
        assert all(worker.returncode == 0 for worker in workers)
        assert {j.attempts for j in store.page("video", limit=100).jobs} == {1}

    @pytest.mark.multi_process
    @pytest.mark.slow
    def test_a_killed_writer_leaves_whole_jobs(self, store: JobStore, url: str) -> None:
        """kill -9 at any moment: what was acknowledged is there, and each job is done or not."""
        code = """
            import sys
            from sgld.server.jobs.store import Job, JobStore
            with JobStore.open(sys.argv[1], exclusive=True) as store:
                for i in range(10_000):
                    name = f"{sys.argv[2]}-{i}"
                    store.add(Job(id=name, kind="video", created_at=i, request={"n": "x" * 5000}))
                    print(name, flush=True)
                    store.claim(name)
                    done = [{"key": "k", "bytes": 3}]
                    store.update(name, status="completed", outputs=done, progress=100)
        """
        for turn in range(4):
            worker = _python(code, url, str(turn))
            acknowledged = [worker.stdout.readline().decode().strip()]
            time.sleep(0.03 * turn)
            worker.send_signal(signal.SIGKILL)
            acknowledged += worker.communicate(timeout=60)[0].decode().split()
            assert acknowledged[0], "the worker did not start"
            known = {name for name in store.ids() if name.startswith(f"{turn}-")}
            assert set(acknowledged) <= known
            assert len(known) <= len(acknowledged) + 1
            for name in known:
                found = store.get(name)
                assert found is not None
                assert found.request == {"n": "x" * 5000}
                whole = (found.status, found.progress, len(found.outputs), found.attempts)
                assert whole in {
                    ("queued", 0, 0, 0),
                    ("in_progress", 0, 0, 1),
                    ("completed", 100, 1, 1),
                }
        completed = store.counts()["completed"]
        assert store.total_bytes() == 3 * completed


def _python(code: str, *arguments: str) -> Any:
    import textwrap

    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("", "no database URL"),
        ("jobs.sqlite3", "no database URL"),
        ("mysql://u:secret@h/d", "mysql cannot be used"),
        ("sqlite://", "needs a file"),
        ("sqlite:///:memory:", "needs a file"),
        ("postgresql://u:secret@h:notaport/d", "no database URL"),
        ("sqlite:////proc/nowhere/jobs.sqlite3", "cannot be made"),
        ("postgresql://u:secret@127.0.0.1:1/d?password=secret", r"u:\*\*\*@127.0.0.1:1/d cannot"),
    ],
)
def test_urls_that_cannot_be_used(url: str, said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        JobStore.open(url)
    assert "secret" not in str(caught.value)
    assert caught.value.remedy


def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("not a database, but long enough to look like one " * 50)
    before = file.read_bytes()
    with pytest.raises(UserError, match="not a database"):
        JobStore.open(f"sqlite:///{file}")
    assert file.read_bytes() == before


def test_postgres_needs_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(UserError, match=r"pip install sgld-core\[postgres\]"):
        JobStore.open("postgresql://127.0.0.1/x")


def test_sqlite_keeps_a_log_ahead_and_the_folder_private(store: JobStore, tmp_path: Path) -> None:
    folder = tmp_path / "state"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    raw = sqlite3.connect(folder / "jobs.sqlite3")
    try:
        assert raw.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert raw.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    finally:
        raw.close()


def test_a_reader_does_not_wait_for_a_writer(store: JobStore, tmp_path: Path) -> None:
    store.add(job("a"))
    raw = sqlite3.connect(tmp_path / "state" / "jobs.sqlite3", isolation_level=None)
    try:
        raw.execute("BEGIN IMMEDIATE")
        start = time.monotonic()
        assert store.get("a") is not None
        assert time.monotonic() - start < 1
        timer = threading.Timer(0.3, lambda: None)
        timer.start()
        done = threading.Thread(target=store.update, args=("a",), kwargs={"progress": 9})
        done.start()
        timer.join()
        assert done.is_alive()  # a writer waits for its turn …
        raw.execute("COMMIT")
        done.join(5)
    finally:
        raw.close()
    found = store.get("a")
    assert found is not None
    assert found.progress == 9  # … and gets it


def test_the_lock_of_a_killed_server_is_gone(url: str) -> None:
    code = """
        import sys, time
        from sgld.server.jobs.store import JobStore
        store = JobStore.open(sys.argv[1], exclusive=True)
        print("held", flush=True)
        time.sleep(60)
    """
    holder = _python(code, url)
    assert holder.stdout.readline() == b"held\n"
    os.kill(holder.pid, signal.SIGKILL)
    holder.communicate(timeout=20)
    JobStore.open(url, exclusive=True).close()
