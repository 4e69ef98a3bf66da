"""OpenAI's own client and our example against real `sgld serve` processes."""

from __future__ import annotations

import base64
import io
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import av
import httpx
import openai
import pytest
from openai import OpenAI
from PIL import Image

from sgld.testing.served import Served, served_apart, wait_for

pytestmark = pytest.mark.multi_process

EXAMPLE = Path(__file__).parents[1] / "examples" / "openai_client.py"


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Served]]:
    """A server of pictures and one of videos, started side by side."""
    with ExitStack() as stack:
        made = [
            stack.enter_context(
                served_apart(model, tmp_path_factory.mktemp("apart"), *flags, ready=False)
            )
            for model, flags in (
                ("tiny:toy-edit", ("--served-model-name", "demo", "--api-key", "secret")),
                ("tiny:wan-t2v", ()),
            )
        ]
        for server in made:
            wait_for(lambda url=server.url: get(f"{url}/health").status_code == 200, "health")
        yield made[0], made[1]


def get(url: str) -> httpx.Response:
    return httpx.get(url, trust_env=False, timeout=10)


def client_of(server: Served, key: str = "secret") -> Iterator[OpenAI]:
    with (
        httpx.Client(trust_env=False) as http,
        OpenAI(base_url=server.api, api_key=key, http_client=http, max_retries=0) as client,
    ):
        yield client


@pytest.fixture
def images(servers: tuple[Served, Served]) -> Iterator[OpenAI]:
    yield from client_of(servers[0])


@pytest.fixture
def videos(servers: tuple[Served, Served]) -> Iterator[OpenAI]:
    yield from client_of(servers[1])


def png(colour: str = "red") -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (64, 64), colour).save(buffer, "PNG")
    return buffer.getvalue()


def size_of(data: bytes) -> tuple[int, int]:
    with Image.open(io.BytesIO(data)) as image:
        return image.size


def words(error: openai.APIStatusError) -> tuple[Any, Any, Any]:
    """Param, code and type as the client has read them."""
    assert isinstance(error.body, dict)
    assert error.body["message"]
    assert (error.param, error.code, error.type) == tuple(
        error.body[name] for name in ("param", "code", "type")
    )
    return error.param, error.code, error.type


FAILURES = "sgld_failures_total"
INVALID = "invalid_request_error"


def test_pictures(images: OpenAI) -> None:
    answer = images.images.generate(model="demo", prompt="a lamp")
    assert answer.data
    assert answer.data[0].url
    file = httpx.get(
        answer.data[0].url, headers={"authorization": "Bearer secret"}, trust_env=False
    )
    assert size_of(file.content) == (64, 64)
    assert get(answer.data[0].url).status_code == 401

    two = images.images.generate(
        model="demo", prompt="a lamp", n=2, size="96x64", response_format="b64_json",  # pyright: ignore
        quality="high", style="vivid", user="me", extra_body={"num_inference_steps": 2, "seed": 4},
    )  # fmt: skip
    assert [item.model_extra["seed"] for item in two.data or [] if item.model_extra] == [4, 5]
    assert {size_of(base64.b64decode(item.b64_json or "")) for item in two.data or []} == {(96, 64)}
    assert two.model_extra
    assert two.model_extra["parameters"]["num_inference_steps"] == 2
    assert two._request_id
    assert two._request_id.startswith("req_")


def test_edits(images: OpenAI) -> None:
    given: dict[str, Any] = {"prompt": "a kite", "response_format": "b64_json"}
    one = images.images.edit(image=("a.png", png()), extra_body={"seed": 1}, **given)
    many = images.images.edit(image=[png(), png("blue")], extra_body={"seed": 1}, **given)
    made = [base64.b64decode((answer.data or [])[0].b64_json or "") for answer in (one, many)]
    assert size_of(made[0]) == (64, 64)
    assert made[0] != made[1]


@pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning")
def test_videos(videos: OpenAI) -> None:
    video = videos.videos.create(
        model="wan-t2v", prompt="a kite", size="64x64", seconds="1",  # pyright: ignore
        extra_body={"num_inference_steps": 2, "fps": 5},
    )  # fmt: skip
    assert (video.status, video.progress, video.size, video.seconds) == ("queued", 0, "64x64", "1")
    assert videos.videos.retrieve(video.id).id == video.id
    done = videos.videos.poll(video.id, poll_interval_ms=50)
    assert (done.status, done.progress, done.error) == ("completed", 100, None)
    content = videos.videos.download_content(video.id)
    with av.open(io.BytesIO(content.read())) as container:
        stream = container.streams.video[0]
        assert (sum(1 for _ in container.decode(stream)), stream.width) == (5, 64)
    assert videos.videos.download_content(video.id, variant="video").read()[4:8] == b"ftyp"
    second = videos.videos.create_and_poll(
        prompt="a boat", poll_interval_ms=50, extra_body={"num_inference_steps": 1, "num_frames": 1}
    )
    assert second.status == "completed"
    listed = videos.videos.list(limit=1)
    assert [item.id for item in listed.data] == [second.id]
    assert [item.id for item in listed] == [second.id, video.id]  # the client pages by itself
    deleted = videos.videos.delete(video.id)
    assert (deleted.id, deleted.deleted, deleted.object) == (video.id, True, "video.deleted")
    with pytest.raises(openai.NotFoundError) as missing:
        videos.videos.retrieve(video.id)
    assert words(missing.value) == (None, "not_found", INVALID)


def test_models(images: OpenAI) -> None:
    assert [model.id for model in images.models.list()] == ["demo"]
    model = images.models.retrieve("demo")
    assert (model.object, model.owned_by) == ("model", "sgld")
    assert model.model_extra
    assert model.model_extra["defaults"]["num_inference_steps"] == 4
    with pytest.raises(openai.NotFoundError) as error:
        images.models.retrieve("nope")
    assert words(error.value) == ("model", "model_not_found", INVALID)


BAD: list[tuple[dict[str, Any], type[openai.APIStatusError], tuple[Any, Any]]] = [
    ({"response_format": "xml"}, openai.BadRequestError, ("response_format", "invalid_parameter")),
    ({"prompt": ""}, openai.BadRequestError, ("prompt", "invalid_parameter")),
    ({"model": "dall-e-3"}, openai.NotFoundError, ("model", "model_not_found")),
    ({"n": 11}, openai.BadRequestError, ("n", "invalid_parameter")),
    ({"size": "1x1"}, openai.BadRequestError, ("size", "invalid_parameter")),
    ({"extra_body": {"stepz": 3}}, openai.BadRequestError, ("stepz", "unknown_parameter")),
]


@pytest.mark.parametrize(("fields", "kind", "expected"), BAD, ids=lambda v: str(v)[:24])
def test_errors_raise_the_right_class(
    images: OpenAI,
    fields: dict[str, Any],
    kind: type[openai.APIStatusError],
    expected: tuple[Any, Any],
) -> None:
    with pytest.raises(kind) as error:
        images.images.generate(**{"model": "demo", "prompt": "x", **fields})
    assert words(error.value) == (*expected, INVALID)


def test_errors_before_any_route(images: OpenAI, servers: tuple[Served, Served]) -> None:
    with pytest.raises(openai.NotFoundError) as error:
        images.post("/nope", body={}, cast_to=object)
    assert words(error.value) == (None, "not_found", INVALID)
    with pytest.raises(openai.APIStatusError) as error:
        images.put("/images/generations", body={}, cast_to=object)
    assert (error.value.status_code, error.value.code) == (405, "method_not_allowed")
    with pytest.raises(openai.BadRequestError) as error:
        images.post("/images/generations", body={}, cast_to=object)
    assert words(error.value) == ("prompt", "missing_parameter", INVALID)
    with pytest.raises(openai.APIStatusError) as error:
        images.post("/images/generations", body={"prompt": "x" * 2**21}, cast_to=object)
    assert (error.value.status_code, error.value.code) == (413, "body_too_large")
    for client in client_of(servers[0], key="wrong"):
        with pytest.raises(openai.AuthenticationError) as error:
            client.models.list()
        assert words(error.value) == (None, "invalid_api_key", "authentication_error")
    raw = httpx.post(
        f"{servers[0].api}/images/generations",
        content=b"{'prompt'",
        headers={"authorization": "Bearer secret", "content-type": "application/json"},
        trust_env=False,
    )
    assert (raw.status_code, raw.json()["error"]["code"]) == (400, "invalid_json")


def test_a_failure_of_ours_is_not_tried_again(servers: tuple[Served, Served]) -> None:
    url = f"{servers[0].url}/metrics"
    headers = {"authorization": "Bearer secret"}

    def failures() -> float:
        lines = httpx.get(url, headers=headers, trust_env=False).text.splitlines()
        found = [line for line in lines if 'code="non_finite_output"' in line]
        return sum(float(line.split()[-1]) for line in found if line.startswith(FAILURES))

    before = failures()
    for client in client_of(servers[0]):
        eager = client.with_options(max_retries=3)
        with pytest.raises(openai.InternalServerError) as error:
            eager.images.generate(model="demo", prompt="x", extra_body={"inf_at_step": 1})
        assert words(error.value) == (None, "non_finite_output", "server_error")
    assert failures() == before + 1


@pytest.mark.parametrize("which", [0, 1])
def test_the_example(servers: tuple[Served, Served], tmp_path: Path, which: int) -> None:
    picture = tmp_path.parent / "photo.png"
    picture.write_bytes(png())
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), "--base-url", servers[which].api, "--api-key", "secret",
         "--output", str(tmp_path), *(["--image", str(picture)] if which == 0 else [])],
        capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "NO_PROXY": "127.0.0.1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "refused as it should be" in done.stdout
    made = sorted(path.suffix for path in tmp_path.iterdir())
    assert made == ([".png", ".png", ".png"], [".mp4"])[which]


def test_the_http_process_never_loads_torch(servers: tuple[Served, Served]) -> None:
    for server in servers:
        pid = server.process.pid
        mapped = Path(f"/proc/{pid}/maps").read_text()
        assert "pydantic_core" in mapped  # the right process, and it may be read
        assert "libtorch" not in mapped
        assert "torch/" not in mapped
        tasks = Path(f"/proc/{pid}/task").glob("*/children")
        children = [child for task in tasks for child in task.read_text().split()]
        loaded = [Path(f"/proc/{child}/maps").read_text() for child in children]
        assert any("libtorch" in text for text in loaded)


def test_a_server_ends_cleanly_and_frees_its_port(tmp_path: Path) -> None:
    with served_apart("tiny:toy-image", tmp_path, "--no-warmup", ready=False) as server:
        port = server.url.rsplit(":", 1)[1]
        assert get(f"{server.url}/liveness").status_code == 200
        early = get(f"{server.url}/health")
        if early.status_code == 503:
            assert early.json()["error"]
            assert int(early.headers["retry-after"]) > 0
        begin = time.monotonic()
    assert time.monotonic() - begin < 15
    assert server.process.returncode == 0, "".join(server.lines)
    with served_apart("tiny:toy-image", tmp_path, "--port", port, ready=False) as again:
        assert again.url.endswith(f":{port}")
