"""The job store on a real PostgreSQL: all that holds on SQLite (core/tests/test_jobs_store.py)."""

from __future__ import annotations

import importlib.util
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sgld.server.jobs.store import Job, JobStore


def _core_tests(name: str) -> Any:
    """A test module of the core, whose tests are to run on another service too."""
    path = Path(__file__).parent.parent / "core" / "tests" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"shared_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


shared = _core_tests("test_jobs_store")
store = shared.store


@pytest.fixture
def url(postgres_url: str) -> Iterator[str]:
    """A database of its own for each test."""
    import psycopg

    name = f"t{uuid.uuid4().hex}"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
        yield postgres_url.rsplit("/", 1)[0] + f"/{name}"
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


class TestOnPostgres(shared.TestJobStore):
    """Every test of the core's job store, on PostgreSQL."""


def test_a_lost_connection_is_made_anew(store: JobStore, url: str) -> None:
    import psycopg

    store.add(Job(id="a", kind="video", created_at=1.0))
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'sgld' AND datname = current_database()"
        )
    assert store.claim("a")


def test_postgres_scheme_is_understood(url: str) -> None:
    with JobStore.open(url.replace("postgresql://", "postgres://")) as opened:
        assert opened.ids() == set()


def test_unknown_database(postgres_url: str) -> None:
    from sgld.api.errors import UserError

    with pytest.raises(UserError, match='database "nowhere" does not exist'):
        JobStore.open(postgres_url.rsplit("/", 1)[0] + "/nowhere")
