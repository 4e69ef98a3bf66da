"""`sgld bench realtime` from end to end: a server of its own, and one that runs already."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sgld.api.errors import SgldError
from sgld.bench.machine import children_of, memory_of
from sgld.bench.own_server import OwnServer
from sgld.testing.served import TOYS, Served, served_here

KEY = "a-key-of-the-bench"
pytestmark = pytest.mark.multi_process


def bench(*words: str, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sgld", "bench", "realtime", *words],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, **TOYS, "OMP_NUM_THREADS": "1", **(environ or {})},
    )


def check_figures(report: dict[str, Any], sessions: int, chunks: int, steps: int) -> None:
    """The figures fit together; how large they are does not matter."""
    free, session = report["free_running"], report["session"]
    assert free["chunks"] == [chunks] * sessions
    assert free["frames"] == [chunks * session["chunk_frames"]] * sessions
    assert free["all_fps"] == pytest.approx(sum(free["session_fps"]))
    for fps, frames in zip(free["session_fps"], free["frames"], strict=True):
        assert frames / fps <= free["seconds"] * (1 + 1e-9)
    assert free["chunk_ms"]["count"] == sessions * chunks
    assert 0 < free["chunk_ms"]["median"] <= free["chunk_ms"]["p90"]
    for row, most in ((free, sessions * chunks), (report["stepping"], steps)):
        latency = row["key_to_frame_ms"]
        assert 0 < latency["least"] <= latency["median"] <= latency["most"]
        assert 1 <= latency["count"] <= most
        assert row["parts"]["chunk_total_ms"]["median"] >= 0
    assert report["stepping"]["chunks"] == report["stepping"]["key_to_frame_ms"]["count"] == steps
    assert report["machine"]["cores"] >= 1
    assert report["machine"]["torch"]


def test_a_server_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    done = bench(
        "tiny:toy-world", "--sessions", "2", "--chunks", "30", "--warm-chunks", "2",
        "--step-chunks", "3", "--format", "webp", "--size", "96x48", "--max-sessions=2",
        "--param", "seed=7", "--output", str(file),
        environ={"TMPDIR": str(tmp_path), "SGLD_PORT": "1", "SGLD_API_KEY": KEY},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(file.read_text())
    check_figures(report, sessions=2, chunks=30, steps=3)
    assert report["platform"] == "cpu"
    assert report["url"] is None
    assert (report["session"]["width"], report["session"]["height"]) == (96, 48)
    assert report["session"]["seed"] == 7
    assert report["settings"]["format"] == "webp"
    assert 0 < report["free_running"]["payload_bytes_per_frame"] < 96 * 48 * 3
    for when in ("idle", "busy"):
        memory = report["memory"][when]
        assert set(memory) == {"http", "engine"}
        assert memory["engine"]["rss_bytes"] > memory["http"]["rss_bytes"] > 2**20
    for text in ("toy-world, 96x48, webp, 2 sessions", "key to first frame, running free",
                 "memory of engine, resident"):  # fmt: skip
        assert text in done.stdout
    # Nothing stays: neither the server nor what it wrote.
    assert [path.name for path in tmp_path.iterdir()
            if not path.name.startswith("torchinductor_")] == ["figures.json"]  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("bench")
    one = {"max_sessions": 1}
    with served_here("tiny:toy-world", folder, one, api_key=(KEY,)) as served:
        yield served


def test_a_server_that_runs(server: Served, tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    url = server.url.replace("http", "ws")
    few = ("--chunks", "30", "--warm-chunks", "1", "--step-chunks", "2")
    done = bench("--url", url, "--api-key", KEY, *few, "--output", str(file))
    assert done.returncode == 0, done.stderr
    report = json.loads(file.read_text())
    check_figures(report, sessions=1, chunks=30, steps=2)
    assert report["url"] == url
    assert report["memory"]["busy"] == {}
    assert report["free_running"]["payload_bytes_per_frame"] == 64 * 48 * 3
    assert "measured from: " in done.stdout
    assert server.services.sessions.live == 0


def test_without_the_key_of_a_server_that_runs(server: Served) -> None:
    done = bench("--url", server.url)
    assert done.returncode == 1
    assert "wants an API key. Give --api-key." in done.stderr
    assert not done.stdout


def test_a_server_s_refusal_is_told(server: Served) -> None:
    done = bench("--url", server.url, "--api-key", KEY, "--param", "seed=-1")
    assert done.returncode == 1
    assert "the server says: " in done.stderr
    assert "seed" in done.stderr
    assert server.services.sessions.live == 0


def test_one_session_too_many_ends_all(server: Served) -> None:
    done = bench("--url", server.url, "--api-key", KEY, "--sessions", "2", "--chunks", "100000")
    assert done.returncode == 1
    assert "the server says: " in done.stderr
    assert not done.stdout
    assert server.services.sessions.live == 0


def test_sigterm_leaves_nothing_behind(tmp_path: Path) -> None:
    """Neither the server, nor its engine, nor what they wrote."""
    command = [sys.executable, "-m", "sgld", "bench", "realtime", "tiny:toy-world"]
    environ = {**os.environ, **TOYS, "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [*command, "--chunks", "100000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environ,
    ) as process:
        assert process.stderr is not None
        assert any(line.startswith("measuring: ") for line in process.stderr)
        [server] = children_of(process.pid)
        [engine] = children_of(server)
        process.terminate()
        process.communicate(timeout=120)
    assert process.returncode == 143
    assert memory_of(server) is None
    assert memory_of(engine) is None
    assert not [path for path in tmp_path.iterdir() if not path.name.startswith("torchinductor_")]


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    with (
        pytest.raises(SgldError, match="no pipeline 'no-such-model'") as caught,
        OwnServer(["tiny:no-such-model"], tmp_path, os.environ) as own,
    ):
        own.wait_until_ready()
    assert caught.value.code == "server_ended"
