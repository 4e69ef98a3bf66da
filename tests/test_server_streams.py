"""Streams of pictures from a real `sgld serve`: the engine in a process of its own, clients that
leave, failures in the middle."""

from __future__ import annotations

import base64
import io
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from openai import OpenAI
from PIL import Image

from sgld.server.answers import ErrorBody
from sgld.testing.served import Served, served_apart, wait_for

pytestmark = pytest.mark.multi_process

GENERATE = "/v1/images/generations"
EDIT = "/v1/images/edits"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served_apart("tiny:toy-edit", tmp_path_factory.mktemp("streams")) as served:
        yield served


@pytest.fixture(scope="module")
def web(server: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, trust_env=False, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def client(server: Served, web: httpx.Client) -> OpenAI:
    return OpenAI(base_url=server.api, api_key="-", http_client=web, max_retries=0)


@contextmanager
def stream(web: httpx.Client, **fields: Any) -> Iterator[Iterator[tuple[str, dict[str, Any]]]]:
    """The events of a stream as they come, name and data."""
    body = {"prompt": "a lamp", "stream": True, **fields}
    with web.stream("POST", GENERATE, json=body) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-store"
        yield _events(answer)


def _events(answer: httpx.Response) -> Iterator[tuple[str, dict[str, Any]]]:
    name = ""
    for line in answer.iter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


def metric(web: httpx.Client, name: str, **labels: str) -> float:
    total = 0.0
    for line in web.get("/metrics").text.splitlines():
        wanted = all(f'{key}="{value}"' in line for key, value in labels.items())
        if line.startswith(name) and wanted:
            total += float(line.split()[-1])
    return total


def test_previews_come_while_the_picture_is_made(web: httpx.Client) -> None:
    begin = time.monotonic()
    with stream(web, partial_images=3, step_delay=0.2) as events:
        times = [(name, time.monotonic() - begin) for name, _ in events]
    names = [name.rpartition(".")[2] for name, _ in times]
    assert names == ["partial_image"] * 3 + ["completed"]
    # 0.2 s lie between two steps, so what comes at once was not sent when it was made.
    gaps = [later - earlier for (_, earlier), (_, later) in pairwise(times)]
    assert min(gaps) > 0.1


def test_large_previews_cross_from_the_engine(client: OpenAI) -> None:
    events = list(
        client.images.generate(
            prompt="a lamp", stream=True, partial_images=3, size="512x512", output_format="webp",
            extra_body={"seed": 3},
        )
    )  # fmt: skip
    assert len(events) == 4
    for event in events:
        with Image.open(io.BytesIO(base64.b64decode(event.b64_json))) as image:
            assert (image.format, image.size) == ("WEBP", (512, 512))
            assert np.asarray(image).std() > 1


@pytest.mark.parametrize(
    ("fields", "code", "shown"),
    [({"fail_at_step": 3}, "stage_failed", 2), ({"oom_at_step": 2}, "out_of_memory", 1),
     ({"inf_at_step": 4}, "non_finite_output", 3)],
)  # fmt: skip
def test_a_failure_ends_the_stream_with_an_error(
    web: httpx.Client, client: OpenAI, fields: dict[str, Any], code: str, shown: int
) -> None:
    with stream(web, partial_images=3, **fields) as events:
        *before, (name, last) = list(events)
    assert [one for one, _ in before] == ["image_generation.partial_image"] * shown
    assert (name, last["type"]) == ("error", "error")
    error = ErrorBody.model_validate(last["error"])
    assert (error.code, error.type) == (code, "server_error")
    with pytest.raises(openai.APIError) as raised:
        list(client.images.generate(prompt="x", stream=True, extra_body=fields))
    assert raised.value.code == code
    assert web.post(GENERATE, json={"prompt": "x"}).status_code == 200


def test_an_engine_that_dies_twice_ends_the_stream_with_an_error(web: httpx.Client) -> None:
    with stream(web, partial_images=3, exit_at_step=3) as events:
        found = list(events)
    # The second attempt made the same previews again, which nobody needs to see.
    indexes = [data["partial_image_index"] for name, data in found[:-1]]
    assert indexes == [0, 1]
    assert (found[-1][0], found[-1][1]["error"]["code"]) == ("error", "engine_lost")
    # First for a picture, because the server's health learns of the loss a little later; then for
    # the health, which learns of the new engine a little later, too.
    wait_for(lambda: web.post(GENERATE, json={"prompt": "x"}).status_code == 200, "an engine", 60)
    wait_for(lambda: web.get("/health").status_code == 200, "health", 10)


@pytest.mark.parametrize("after", ["partial_image", "nothing"])
def test_a_client_that_leaves_stops_its_job_within_a_step(web: httpx.Client, after: str) -> None:
    web.post(GENERATE, json={"prompt": "x", "num_inference_steps": 1})
    cancelled = metric(web, "sgld_cancellations_total", kind="image", reason="disconnect")
    long = {"num_inference_steps": 400, "step_delay": 0.1, "partial_images": 0}
    if after == "partial_image":
        long |= {"num_inference_steps": 8, "step_delay": 0.3, "partial_images": 3}
    with stream(web, **long) as events:
        if after == "partial_image":
            assert next(events)[0].endswith("partial_image")
        else:
            wait_for(lambda: metric(web, "sgld_requests_running") == 1, "its start", 10)
    left = time.monotonic()
    steps = metric(web, "sgld_steps_total", kind="image")
    wait_for(lambda: metric(web, "sgld_requests_running") == 0, "its end", 5)
    assert time.monotonic() - left < 3
    time.sleep(0.5)
    assert metric(web, "sgld_steps_total", kind="image") <= steps + 2
    after_all = metric(web, "sgld_cancellations_total", kind="image", reason="disconnect")
    assert after_all == cancelled + 1
    assert metric(web, "sgld_event_streams_open") == 0


def test_a_client_that_leaves_the_queue_is_forgotten(server: Served, web: httpx.Client) -> None:
    hold = {"num_inference_steps": 15, "step_delay": 0.1}
    with ExitStack() as stack:
        others = httpx.Client(base_url=server.url, trust_env=False, timeout=60)
        stack.enter_context(others)
        for _ in range(4):
            stack.enter_context(stream(others, **hold))
        wait_for(lambda: metric(web, "sgld_requests_running") == 4, "four jobs", 10)
        with stream(web, num_inference_steps=1):
            wait_for(lambda: metric(web, "sgld_queue_length") == 1, "a queue", 5)
        wait_for(lambda: metric(web, "sgld_queue_length") == 0, "an empty queue", 2)
    wait_for(lambda: metric(web, "sgld_requests_running") == 0, "their ends", 10)


def test_an_edit_with_a_mask_is_streamed(web: httpx.Client) -> None:
    picture, mask = Image.new("RGB", (64, 64), "red"), Image.new("L", (64, 64))
    mask.paste(255, (0, 0, 32, 64))
    files = {"image": ("a.png", _png(picture)), "mask": ("m.png", _png(mask))}
    data = {"prompt": "x", "stream": "true", "partial_images": "2"}
    with web.stream("POST", EDIT, data=data, files=files) as answer:
        found = list(_events(answer))
    kinds = ["image_edit.partial_image"] * 2 + ["image_edit.completed"]
    assert [name for name, _ in found] == kinds
    for _, event in found:
        with Image.open(io.BytesIO(base64.b64decode(event["b64_json"]))) as image:
            pixels = np.asarray(image.convert("RGB"))
        assert (pixels[:, 32:] == (255, 0, 0)).all()
        assert (pixels[:, :32] != (255, 0, 0)).any()


def _png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()
