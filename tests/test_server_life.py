"""How a server starts, gets ready, stops, is killed and comes back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from sgld.testing.life import Life
from sgld.testing.served import wait_for
from sgld.testing.toy_checkpoint import write_edit, write_video

pytestmark = [pytest.mark.multi_process, pytest.mark.slow]

SLOW_TOY = """
import os
from sgld.params.options import option
from sgld.testing import toy_plugin
from sgld.testing.toy_params import ToyEditParams
from sgld.testing.toy_plugin import sgld_plugin, hookimpl

class Params(ToyEditParams):
    warmup_delay: float = option(float(os.environ.get("WARMUP", "0")), "Slow.", ge=0, le=600)
    fail_at_step: int = option(int(os.environ.get("FAIL", "0")), "Broken.", ge=0)

@hookimpl
def sgld_pipelines():
    for spec in toy_plugin.sgld_pipelines():
        params = "slow_toy:Params" if spec.id == "toy-edit" else spec.params
        yield spec._replace(params=params)
"""
PICTURE = {"prompt": "a lamp"}
GENERATE = "/v1/images/generations"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of pictures and one of clips, side by side."""
    folder = tmp_path_factory.mktemp("models")
    write_edit(folder / "edit")
    write_video(folder / "video")
    return folder


@contextmanager
def living(model: Path, folder: Path, *flags: str, **environ: str) -> Iterator[Life]:
    """A server that leaves nothing behind."""
    shared = set(os.listdir("/dev/shm"))
    life = Life(str(model), folder, *flags, environ=environ)
    try:
        yield life
        if life.process is not None and life.process.poll() is None:
            assert life.stop() == 0
        assert life.left_behind() == []
        assert set(os.listdir("/dev/shm")) <= shared
        assert "never retrieved" not in life.log
        assert "Exception in ASGI" not in life.log
    finally:
        life.close()


def slow_toy(folder: Path) -> dict[str, str]:
    """The environment in which `toy-edit` is slow or broken as WARMUP and FAIL say."""
    (folder / "modules").mkdir()
    (folder / "modules" / "slow_toy.py").write_text(SLOW_TOY)
    path = os.pathsep.join([str(folder / "modules"), os.environ.get("PYTHONPATH", "")])
    return {"SGLD_EXTERNAL_MODEL_PACKAGE": "slow_toy", "PYTHONPATH": path}


def took(work: Callable[[], Any]) -> float:
    begin = time.monotonic()
    work()
    return time.monotonic() - begin


def clip(life: Life, **fields: Any) -> str:
    answer = life.client.post("/v1/videos", json={"prompt": "a kite", **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()["id"]


def video(life: Life, id: str) -> dict[str, Any]:
    return life.client.get(f"/v1/videos/{id}").json()


def completed(life: Life, id: str, seconds: float = 60) -> dict[str, Any]:
    wait_for(lambda: video(life, id)["status"] not in ("queued", "in_progress"), id, seconds)
    final = video(life, id)
    assert final["status"] == "completed", final
    content = life.client.get(f"/v1/videos/{id}/content", follow_redirects=True)
    assert content.status_code == 200
    assert len(content.content) == final["outputs"][0]["bytes"]
    return final


def test_not_ready_before_warm_up_has_ended(model: Path, tmp_path: Path) -> None:
    """A22, and SIGINT during warm-up (A23)."""
    environ = slow_toy(tmp_path) | {"WARMUP": "2"}
    with living(model / "edit", tmp_path, **environ) as life:
        life.start(ready=False)
        assert life.status("/liveness") == 200
        early = life.client.post(GENERATE, json=PICTURE)
        assert (early.status_code, early.json()["error"]["code"]) == (503, "not_ready")
        assert int(early.headers["retry-after"]) >= 1
        assert life.status("/v1/models") == 200
        reasons: set[str] = set()
        while (health := life.client.get("/health")).status_code == 503:
            assert int(health.headers["retry-after"]) >= 1
            reasons.add(health.json()["error"])
            time.sleep(0.05)
        assert any("warming up" in reason for reason in reasons)
        assert life.client.post(GENERATE, json=PICTURE | {"warmup_delay": 0}).status_code == 200
        assert life.stop() == 0
        life.start("--drain-seconds", "20", ready=False)
        wait_for(lambda: "model loaded" in life.log.rpartition("listening")[2], "loading", 60)
        assert took(lambda: life.stop(signal.SIGINT)) < 10


def test_a_failed_warm_up_is_never_green(model: Path, tmp_path: Path) -> None:
    environ = slow_toy(tmp_path) | {"FAIL": "1"}
    with living(model / "edit", tmp_path, **environ) as life:
        life.start(ready=False)
        wait_for(lambda: "told to fail" in life.client.get("/health").text, "the reason", 60)
        assert life.status("/health") == 503
        answer = life.client.post(GENERATE, json=PICTURE)
        assert answer.status_code == 503
        assert "told to fail" in answer.json()["error"]["message"]
        assert life.status("/liveness") == 200
        assert life.stop() == 1


def test_signals_end_it_and_the_port_is_free_again(model: Path, tmp_path: Path) -> None:
    """A23 on one port: while it starts, idle, within a request, twice."""
    with living(model / "edit", tmp_path, "--drain-seconds", "1") as life:
        life.start(ready=False)
        life.engine()
        assert took(lambda: life.stop(signal.SIGTERM)) < 5
        assert life.left_behind() == []
        life.start()
        busy = subprocess.run(
            [sys.executable, "-m", "sgld", "serve", life.model, "--port", str(life.port)],
            env=life.environ,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert busy.returncode == 1
        assert len(busy.stderr.strip().splitlines()) <= 2
        assert f"port {life.port}" in busy.stderr
        assert not (tmp_path / "sgld-state").exists()
        assert life.status("/health") == 200
        with ThreadPoolExecutor(1) as pool:
            slow = {"num_inference_steps": 600, "step_delay": 0.1}
            request = pool.submit(life.client.post, GENERATE, json=PICTURE | slow)
            wait_for(lambda: life.metric("sgld_steps_total", kind="image") > 2, "steps", 10)
            assert took(lambda: life.stop(signal.SIGINT)) < 10
            answer = request.result()
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "not_ready")
        assert life.left_behind() == []


def test_a_second_signal_does_not_wait(model: Path, tmp_path: Path) -> None:
    with living(model / "video", tmp_path) as life:
        life.start()
        id = clip(life, num_inference_steps=600, step_delay=0.1)
        with httpx.stream(
            "GET", f"{life.client.base_url}/v1/videos/{id}/events", trust_env=False
        ) as events:
            lines = events.iter_lines()
            wait_for(lambda: next(lines) == "event: step", "a step", 10)
            threading.Timer(0.5, lambda: os.kill(life.pid, signal.SIGINT)).start()
            assert took(lambda: life.stop(signal.SIGINT)) < 10
            assert "event: done" not in list(lines)
        assert "stopping at once" in life.log


def test_a_stop_lets_running_work_end(model: Path, tmp_path: Path) -> None:
    """SIGTERM drains; what cannot end in time, and what waits, is the next server's."""
    with living(model / "video", tmp_path, "--max-running", "2") as life:
        life.start("--drain-seconds", "2")
        long = clip(life, num_inference_steps=60, step_delay=0.05)
        short = clip(life, num_inference_steps=8, step_delay=0.05)
        waiting = clip(life)
        wait_for(lambda: video(life, short)["status"] == "in_progress", "both", 10)
        assert took(life.stop) < 8
        life.start("--no-warmup", ready=False)
        assert video(life, short)["status"] == "completed"
        assert [video(life, id)["status"] for id in (long, waiting)] == ["queued"] * 2
        assert video(life, long)["progress"] == 0
        assert completed(life, short)["progress"] == 100
        completed(life, waiting)
        assert completed(life, long)["status"] == "completed"
        assert life.log.count("waiting for running jobs") == 1


def killed_and_back(life: Life) -> None:
    """Three jobs wait, one runs and one has ended when the server is killed; all are there after
    the next start."""
    life.start()
    done = clip(life, seed=1)
    size = completed(life, done)["outputs"][0]["bytes"]
    running = clip(life, num_inference_steps=30, step_delay=0.1, seed=2)
    queued = [clip(life, seed=seed) for seed in (3, 4, 5)]
    wait_for(lambda: video(life, running)["progress"] >= 10, "some steps", 20)
    life.kill()
    life.start()
    listed = [row["id"] for row in life.client.get("/v1/videos?order=asc").json()["data"]]
    assert listed == [done, running, *queued]
    assert completed(life, done)["outputs"][0]["bytes"] == size
    for seed, id in enumerate([running, *queued], start=2):
        assert completed(life, id)["parameters"]["seeds"] == [seed]


def test_a_killed_server_goes_on_where_it_was(model: Path, tmp_path: Path) -> None:
    """And then: what is older or more than is to be kept goes at the next start."""
    with living(model / "video", tmp_path, "--max-running", "1") as life:
        killed_and_back(life)
        newest = life.client.get("/v1/videos?limit=1").json()["first_id"]
        life.stop()
        life.start("--keep-gib", "1e-9", ready=False)
        wait_for(lambda: len(life.client.get("/v1/videos").json()["data"]) == 1, "retention", 20)
        assert video(life, newest)["status"] == "completed"
        folders = [path.name for path in (tmp_path / "outputs").glob("video_*")]
        assert folders == [newest]


def test_a_killed_server_goes_on_with_postgresql(
    model: Path, tmp_path: Path, postgres_url: str
) -> None:
    store = ("--job-store", postgres_url, "--max-running", "1")
    with living(model / "video", tmp_path, *store) as life:
        killed_and_back(life)


def test_results_in_a_bucket(model: Path, tmp_path: Path, s3_server: Any) -> None:
    boto3 = pytest.importorskip("boto3")

    environ = s3_server.environ()
    client = boto3.session.Session().client(
        "s3",
        endpoint_url=s3_server.endpoint,
        region_name=s3_server.region,
        aws_access_key_id=s3_server.access_key,
        aws_secret_access_key=s3_server.secret_key,
    )

    def keys() -> list[str]:
        found = client.list_objects_v2(Bucket=s3_server.bucket).get("Contents", [])
        return [item["Key"] for item in found]

    with living(model / "video", tmp_path, **environ) as life:
        life.start()
        id = clip(life)
        final = completed(life, id)
        content = life.client.get(f"/v1/videos/{id}/content")
        assert content.status_code == 307
        assert content.headers["location"].startswith(s3_server.endpoint)
        assert keys() == [f"{id}/0.mp4"]
        part = httpx.get(final["url"], headers={"range": "bytes=4-7"}, trust_env=False)
        assert (part.status_code, part.content) == (206, b"ftyp")
        assert life.client.delete(f"/v1/videos/{id}").status_code == 200
        assert keys() == []
        # The bucket goes while a job runs: the job fails, the server does not.
        id = clip(life, num_inference_steps=10, step_delay=0.1)
        wait_for(lambda: video(life, id)["status"] == "in_progress", "a step", 10)
        client.delete_bucket(Bucket=s3_server.bucket)
        wait_for(lambda: video(life, id)["status"] == "failed", "the failure", 60)
        assert video(life, id)["error"]["code"] == "output_store_failed"
        client.create_bucket(Bucket=s3_server.bucket)
        again = completed(life, clip(life))
        assert life.client.delete(f"/v1/videos/{again['id']}").status_code == 200
    client.close()
