"""A server under strain: clients that leave, jobs that crash, queues that are full.

Real `sgld serve` processes with toy families whose requests can be slow or fail on purpose. How
servers start, stop and are killed is in test_server_life.py.
"""

from __future__ import annotations

import base64
import io
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from sgld.testing.life import Life
from sgld.testing.served import wait_for
from sgld.testing.toy_checkpoint import write_edit, write_video

pytestmark = [pytest.mark.multi_process, pytest.mark.slow]

GENERATE, EDIT = "/v1/images/generations", "/v1/images/edits"


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Life]:
    """One server of pictures for all tests here."""
    yield from _served(tmp_path_factory.mktemp("images"), write_edit, "--max-queue", "8")


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Life]:
    """One server of clips, one at a time."""
    yield from _served(tmp_path_factory.mktemp("videos"), write_video, "--max-running", "1")


def _served(folder: Path, write: Callable[[Path], None], *flags: str) -> Iterator[Life]:
    write(folder / "model")
    shared = set(os.listdir("/dev/shm"))
    life = Life(str(folder / "model"), folder, *flags)
    try:
        life.start()
        yield life
        assert life.stop() == 0
        assert life.left_behind() == []
        assert set(os.listdir("/dev/shm")) <= shared
        assert "never retrieved" not in life.log
        assert "Exception in ASGI" not in life.log
    finally:
        life.close()


def make(life: Life, prompt: str = "a lamp", **fields: Any) -> httpx.Response:
    return life.client.post(GENERATE, json={"prompt": prompt, **fields})


def edit(life: Life, prompt: str, picture: bytes, **fields: Any) -> httpx.Response:
    return life.client.post(
        EDIT, data={"prompt": prompt, **fields}, files={"image": ("a.png", picture, "image/png")}
    )


def pixels(answer: httpx.Response) -> np.ndarray[Any, Any]:
    assert answer.status_code == 200, answer.text
    data = base64.b64decode(answer.json()["data"][0]["b64_json"])
    return np.asarray(Image.open(io.BytesIO(data)))


def picture(value: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (64, 64), (value, 255 - value, 90)).save(buffer, "PNG")
    return buffer.getvalue()


def settled(life: Life) -> bool:
    info = life.client.get("/server_info").json()
    return not info["running"] and not info["queued"]


def test_eight_at_once_get_what_each_asked_for(images: Life) -> None:
    """A11: nothing is shared between requests, not even the id that the client chose."""

    def ask(index: int) -> httpx.Response:
        fields = {"seed": str(index), "response_format": "b64_json"}
        if index % 2:
            return edit(images, f"prompt {index}", picture(index * 30), **fields)
        return make(images, f"prompt {index}", seed=index, response_format="b64_json")

    solo = [pixels(ask(index)) for index in range(8)]
    assert len({array.tobytes() for array in solo}) == 8
    barrier = threading.Barrier(8)

    def together(index: int) -> httpx.Response:
        barrier.wait()
        return ask(index)

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(together, range(8)))
    for alone, answer in zip(solo, answers, strict=True):
        np.testing.assert_array_equal(pixels(answer), alone)
    assert len({answer.json()["id"] for answer in answers}) == 8
    assert len({answer.headers["x-request-id"] for answer in answers}) == 8

    def named(seed: int) -> httpx.Response:
        body = {"prompt": "twice", "seed": seed, "response_format": "b64_json"}
        return images.client.post(GENERATE, json=body, headers={"X-Request-Id": "mine"})

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(named, (1, 2))
    assert first.json()["id"] != second.json()["id"]
    assert first.headers["x-request-id"] != second.headers["x-request-id"]
    assert (pixels(first) != pixels(second)).any()
    # Uploads go with their jobs.
    assert list((images.folder / "state" / "uploads").iterdir()) == []


def test_a_client_that_leaves_takes_its_work_along(images: Life) -> None:
    """A13, and the same for a request that is still waiting."""
    begin = time.monotonic()
    make(images, num_inference_steps=2)
    idle_seconds = time.monotonic() - begin
    cancelled = images.metric("sgld_cancellations_total", kind="image", reason="disconnect")
    slow = {"prompt": "long", "num_inference_steps": 300, "step_delay": 0.1}
    with pytest.raises(httpx.ReadTimeout):
        images.client.post(GENERATE, json=slow, timeout=0.6)
    steps = images.metric("sgld_steps_total", kind="image")
    probes: list[float] = []
    begin = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        short = pool.submit(make, images, num_inference_steps=2)
        for path in ("/health", "/liveness") * 10:
            asked = time.monotonic()
            assert images.client.get(path).status_code == 200
            probes.append(time.monotonic() - asked)
        assert short.result().status_code == 200
    assert time.monotonic() - begin < 10 * idle_seconds + 2
    assert max(probes) < 1.0
    wait_for(lambda: settled(images), "the abandoned request's end", 5)
    time.sleep(0.3)
    assert images.metric("sgld_steps_total", kind="image") <= steps + 2 + 2
    after = images.metric("sgld_cancellations_total", kind="image", reason="disconnect")
    assert after == cancelled + 1


def test_a_client_that_leaves_the_queue_is_forgotten(images: Life) -> None:
    steps = images.metric("sgld_steps_total", kind="image")
    hold = {"num_inference_steps": 12, "step_delay": 0.1}
    with ThreadPoolExecutor(4) as pool:
        held = [pool.submit(make, images, **hold) for _ in range(4)]
        wait_for(lambda: images.metric("sgld_requests_running") == 4, "four running jobs", 10)
        with pytest.raises(httpx.ReadTimeout):
            images.client.post(GENERATE, json={"prompt": "queued"}, timeout=0.3)
        wait_for(lambda: images.metric("sgld_queue_length") == 0, "an empty queue", 2)
        assert [one.result().status_code for one in held] == [200] * 4
    assert images.metric("sgld_steps_total", kind="image") == steps + 4 * 12


def test_a_full_queue_says_when_to_come_back(images: Life) -> None:
    hold = {"num_inference_steps": 5, "step_delay": 0.06}
    with ThreadPoolExecutor(12) as pool:
        held = [pool.submit(make, images, **hold) for _ in range(12)]
        wait_for(lambda: images.metric("sgld_queue_length") == 8, "a full queue", 10)
        refused = make(images)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
        assert int(refused.headers["retry-after"]) >= 1
        assert images.client.get("/health").status_code == 200
        assert [one.result().status_code for one in held] == [200] * 12
    assert make(images).status_code == 200


def test_a_short_request_does_not_wait_for_a_long_one(images: Life) -> None:
    with ThreadPoolExecutor(1) as pool:
        long = pool.submit(make, images, num_inference_steps=50, step_delay=0.05)
        wait_for(lambda: images.metric("sgld_requests_running") == 1, "the long request", 10)
        assert make(images, num_inference_steps=2).status_code == 200
        assert not long.done()
        assert long.result().status_code == 200


@pytest.mark.parametrize(
    ("fields", "status", "code", "words"),
    [
        ({"oom_at_step": 2}, 500, "out_of_memory", "are free"),
        ({"fail_at_step": 1}, 500, "stage_failed", "denoise"),
        ({"inf_at_step": 3}, 500, "non_finite_output", "step 3"),
    ],
)
def test_what_fails_fails_alone(
    images: Life, fields: dict[str, Any], status: int, code: str, words: str
) -> None:
    answer = make(images, **fields)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["code"] == code
    assert words in answer.json()["error"]["message"]
    assert images.metric("sgld_failures_total", kind="image", code=code) == 1
    assert make(images).status_code == 200


def test_a_request_that_kills_the_engine_twice_is_given_up(images: Life) -> None:
    """Others that ran beside it are run again and give what they give alone."""
    fields = {"seed": 5, "num_inference_steps": 20, "step_delay": 0.05}
    alone = pixels(make(images, response_format="b64_json", **fields))
    with ThreadPoolExecutor(2) as pool:
        beside = pool.submit(make, images, response_format="b64_json", **fields)
        wait_for(lambda: images.metric("sgld_requests_running") == 1, "the other request", 10)
        lost = pool.submit(make, images, exit_at_step=1)
        while not (lost.done() and beside.done()):
            assert images.client.get("/liveness").status_code == 200
            time.sleep(0.1)
    assert lost.result().status_code == 503
    assert lost.result().json()["error"]["code"] == "engine_lost"
    np.testing.assert_array_equal(pixels(beside.result()), alone)
    wait_for(lambda: images.metric("sgld_engine_restarts_total") == 2, "the second restart", 30)
    wait_for(lambda: images.status("/health") == 200, "the engine", 30)
    assert make(images).status_code == 200


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
    content = life.client.get(f"/v1/videos/{id}/content")
    assert content.status_code == 200
    assert len(content.content) == final["outputs"][0]["bytes"]
    return final


def test_deleting_a_running_video_stops_it(videos: Life) -> None:
    """A12: what waits says so, and DELETE ends the work, not only its record."""
    first = clip(videos, step_delay=0.2, num_inference_steps=20)
    second = clip(videos, step_delay=0.02, num_inference_steps=20)
    assert video(videos, second)["status"] == "queued"
    wait_for(lambda: video(videos, first)["progress"] >= 10, "two steps", 10)
    assert video(videos, first)["status"] == "in_progress"
    assert video(videos, second)["status"] == "queued"
    assert videos.client.get(f"/v1/videos/{first}/content").status_code == 404
    steps = videos.metric("sgld_steps_total", kind="video")
    assert videos.client.delete(f"/v1/videos/{first}").json()["deleted"] is True
    begin = time.monotonic()
    wait_for(lambda: video(videos, second)["status"] != "queued", "the second one", 5)
    assert time.monotonic() - begin < 2
    completed(videos, second)
    assert videos.metric("sgld_steps_total", kind="video") <= steps + 1 + 20
    for path in ("", "/content", "/events"):
        gone = videos.client.get(f"/v1/videos/{first}{path}")
        assert (gone.status_code, gone.json()["error"]["code"]) == (404, "not_found")
    assert videos.client.delete(f"/v1/videos/{first}").status_code == 404
    unknown = videos.client.delete("/v1/videos/video_nope")
    assert (unknown.status_code, unknown.json()["error"]["type"]) == (404, "invalid_request_error")
    assert not list((videos.folder / "outputs").glob(f"{first}*"))
    assert videos.metric("sgld_cancellations_total", kind="video", reason="deleted") == 1


def test_a_video_outlives_its_engine(videos: Life) -> None:
    """A killed engine is started again and the video runs once more; HTTP answers throughout."""
    id = clip(videos, step_delay=0.1, num_inference_steps=20, seed=3)
    wait_for(lambda: video(videos, id)["progress"] >= 20, "some steps", 10)
    os.kill(videos.engine(), signal.SIGKILL)
    unready = 0
    while video(videos, id)["status"] == "in_progress":
        begin = time.monotonic()
        assert videos.client.get("/liveness").status_code == 200
        unready += videos.client.get("/health").status_code == 503
        assert time.monotonic() - begin < 1
        time.sleep(0.05)
    assert unready > 0
    final = completed(videos, id)
    assert final["outputs"][0]["seed"] == 3
    assert videos.metric("sgld_engine_restarts_total") == 1


def test_watchers_see_a_video_from_the_queue_to_its_end(videos: Life) -> None:
    wait_for(lambda: videos.status("/health") == 200, "the engine", 30)
    hold = clip(videos, step_delay=0.1, num_inference_steps=5)
    id = clip(videos, num_inference_steps=3)

    def follow(_: int) -> list[str]:
        lines = videos.client.get(f"/v1/videos/{id}/events").text.splitlines()
        return [line.partition(" ")[2] for line in lines if line.startswith("event:")]

    with ThreadPoolExecutor(2) as pool:
        for seen in pool.map(follow, range(2)):
            assert seen[0] == "queued"
            assert seen.count("step") == 3
            assert seen[-1] == "done"
    assert follow(0) == ["done"]
    completed(videos, hold)
    assert videos.metric("sgld_event_streams_open") == 0


def test_a_waiting_video_is_cancelled_without_a_step(videos: Life) -> None:
    hold = clip(videos, step_delay=0.1, num_inference_steps=10)
    waiting = clip(videos)
    steps = videos.metric("sgld_steps_total", kind="video")
    ended = videos.client.post(f"/v1/videos/{waiting}/cancel").json()
    assert (ended["status"], ended["error"]["code"]) == ("cancelled", "cancelled")
    again = videos.client.post(f"/v1/videos/{waiting}/cancel")
    assert (again.status_code, again.json()["error"]["code"]) == (409, "already_ended")
    with ThreadPoolExecutor(4) as pool:
        path = f"/v1/videos/{hold}"
        codes = sorted(r.status_code for r in pool.map(videos.client.delete, [path] * 4))
    assert codes[0] == 200
    assert set(codes[1:]) == {404}
    assert videos.metric("sgld_steps_total", kind="video") <= steps + 2
    wait_for(lambda: settled(videos), "an idle server", 5)
