"""Every endpoint but videos: status, shape and errors, on a real socket with toy models."""

from __future__ import annotations

import base64
import io
import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families

from sgld.server.answers import (
    Alive,
    ErrorAnswer,
    Generated,
    ModelDetails,
    ModelList,
    Pictures,
    ServerInfo,
)
from sgld.testing.served import Served, served_here

GENERATE = "/v1/images/generations"
EDIT = "/v1/images/edits"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served_here("tiny:toy-edit", tmp_path_factory.mktemp("edit"), max_body_mib=1) as served:
        yield served


@pytest.fixture(scope="module")
def web(server: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, trust_env=False, timeout=60) as client:
        yield client


def png(width: int = 64, height: int = 64, colour: Any = "red", mode: str = "RGB") -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, (width, height), colour).save(buffer, "PNG")
    return buffer.getvalue()


def pixels(data: bytes) -> tuple[tuple[int, int], bytes]:
    with Image.open(io.BytesIO(data)) as image:
        return image.size, image.convert("RGB").tobytes()


def pictures(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    Pictures.model_validate_json(answer.text)
    return answer.json()


def error(answer: httpx.Response, status: int, code: str, param: str | None = None) -> str:
    assert (answer.status_code, answer.json()["error"].get("code")) == (status, code), answer.text
    ErrorAnswer.model_validate_json(answer.text)
    assert answer.json()["error"]["param"] == param
    assert answer.headers["x-request-id"].startswith("req_")
    return answer.json()["error"]["message"]


def make(web: httpx.Client, **fields: Any) -> dict[str, Any]:
    return pictures(web.post(GENERATE, json={"prompt": "a lamp", **fields}))


def blob(web: httpx.Client, **fields: Any) -> bytes:
    return base64.b64decode(make(web, response_format="b64_json", **fields)["data"][0]["b64_json"])


# Images


def test_an_answer_reports_what_was_really_used(web: httpx.Client) -> None:
    given = {"n": 2, "seed": 7, "size": "96x64", "num_inference_steps": 3, "guidance_scale": 2.5}
    answer = make(web, model="toy-edit", user="u-1", style="vivid", quality="hd", **given)
    assert answer["model"] == "toy-edit"
    assert (answer["size"], answer["output_format"]) == ("96x64", "png")
    used = answer["parameters"]
    assert (used["width"], used["height"], used["num_inference_steps"]) == (96, 64, 3)
    assert (used["guidance_scale"], used["seeds"], used["prompt"]) == (2.5, [7, 8], "a lamp")
    assert [item["seed"] for item in answer["data"]] == [7, 8]
    assert answer["inference_time_s"] > 0
    assert answer["timings"]["denoise"] >= 0
    starts = [warning.split()[0] for warning in answer["warnings"]]
    assert starts == ["user", "style", "quality=hd"]
    for item in answer["data"]:
        assert item["revised_prompt"] == "a lamp"
        file = httpx.get(item["url"], trust_env=False)
        assert (file.status_code, file.headers["content-type"]) == (200, "image/png")
        assert pixels(file.content)[0] == (96, 64)


@pytest.mark.parametrize(
    ("format", "media_type"), [("png", "image/png"), ("jpeg", "image/jpeg"), ("webp", "image/webp")]
)
def test_formats(web: httpx.Client, format: str, media_type: str) -> None:
    answer = make(web, output_format=format, output_compression=80)
    file = web.get(answer["data"][0]["url"])
    assert (answer["output_format"], file.headers["content-type"]) == (format, media_type)
    with Image.open(io.BytesIO(file.content)) as image:
        assert image.format == format.upper()


def test_base64_is_the_file(web: httpx.Client) -> None:
    answer = make(web, response_format="b64_json", seed=3)
    assert "url" not in answer["data"][0]
    file = web.get(f"/v1/images/{answer['id']}/content").content
    assert base64.b64decode(answer["data"][0]["b64_json"]) == file


def test_a_file_answers_head_and_ranges(web: httpx.Client) -> None:
    address = make(web)["data"][0]["url"]
    file = web.get(address)
    head = web.head(address)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == str(len(file.content))
    part = web.get(address, headers={"range": "bytes=8-15"})
    assert (part.status_code, part.content) == (206, file.content[8:16])
    assert web.get(address, headers={"if-range": "x", "range": "bytes=0-3"}).status_code == 200
    for ignored in ("lines=0-3", "bytes=abc", "bytes=", "bytes=-", "nonsense"):
        assert web.get(address, headers={"range": ignored}).content == file.content
    for outside in (f"bytes={len(file.content)}-", "bytes=9999999999-", "bytes=-0"):
        answer = web.get(address, headers={"range": outside})
        error(answer, 416, "range_not_satisfiable")
        assert answer.headers["content-range"] == f"bytes */{len(file.content)}"


def test_what_is_not_there(web: httpx.Client) -> None:
    error(web.get("/v1/images/image_x/content"), 404, "not_found")
    answer = make(web)
    there = f"/v1/images/{answer['id']}/content"
    error(web.get(there, params={"variant": 1}), 404, "variant_not_found", "variant")
    error(web.get(there, params={"variant": -1}), 404, "variant_not_found", "variant")
    error(web.get(there, params={"variant": "x"}), 400, "invalid_parameter", "variant")
    # An image is no video, and the other way round.
    error(web.get(f"/v1/videos/{answer['id']}"), 404, "not_found")


def test_an_edit_is_the_same_as_json_and_as_a_form(web: httpx.Client) -> None:
    picture = png(64, 64, "blue")
    data_url = "data:image/png;base64," + base64.b64encode(picture).decode()
    common = {"prompt": "a kite", "seed": 5, "response_format": "b64_json"}
    form = {name: str(value) for name, value in common.items()}
    answers = [
        web.post(EDIT, data=form, files={"image": ("a.png", picture)}),
        web.post(EDIT, data=form, files=[("image[]", ("b.png", picture))]),
        web.post(EDIT, json={**common, "image": data_url}),
        web.post(EDIT, json={**common, "image": [data_url]}),
        web.post(EDIT, json={**common, "images": [{"image_url": data_url}]}),
        web.post(EDIT, json={**common, "url": data_url}),
        web.post(EDIT, data={**form, "url[]": data_url}, files={"x": ("", b"")}),
    ]
    # Their pixels: the files themselves say when they were made.
    made = {pixels(base64.b64decode(pictures(answer)["data"][0]["b64_json"])) for answer in answers}
    assert len(made) == 1
    assert made != {pixels(blob(web, seed=5))}


def test_several_pictures_and_a_mask(web: httpx.Client) -> None:
    mask = Image.new("L", (64, 64), 0)
    mask.paste(255, (0, 0, 32, 64))
    buffer = io.BytesIO()
    mask.save(buffer, "PNG")
    files = [
        ("image[]", ("a.png", png())),
        ("image[]", ("b.png", png(colour="green"))),
        ("mask", ("m.png", buffer.getvalue())),
    ]
    answer = pictures(web.post(EDIT, data={"prompt": "x", "seed": "1"}, files=files))
    assert answer["warnings"] == ["size is 64x64, from the shape of the input picture"]
    size, data = pixels(web.get(answer["data"][0]["url"]).content)
    right = [data[3 * (64 * row + 40) :][:3] for row in range(size[1])]
    assert set(right) == {b"\xff\0\0"}  # the mask protects the first picture there
    blank = [files[0], ("mask", ("m.png", png(mode="L", colour=0)))]
    message = error(
        web.post(EDIT, data={"prompt": "x"}, files=blank), 400, "invalid_parameter", "mask"
    )
    assert "blank" in message


def test_an_edit_needs_a_picture(web: httpx.Client) -> None:
    for answer in (
        web.post(EDIT, json={"prompt": "x"}),
        web.post(EDIT, data={"prompt": "x"}, files={"image": ("", b"")}),
    ):
        message = error(answer, 400, "missing_parameter", "image")
        assert message.startswith("image: is required.")
    broken = web.post(EDIT, data={"prompt": "x"}, files={"image": ("a.png", b"no picture")})
    error(broken, 400, "invalid_parameter", "image")


# Errors


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"num_inference_step": 3}, "num_inference_step", "num_inference_steps"),
    ({"gidance_scale": 3}, "gidance_scale", "guidance_scale"),
    ({"prompt": ""}, "prompt", "not empty"),
    ({"prompt": ["a", "b"]}, "prompt", "text"),
    ({"prompt": "x" * 32_001}, "prompt", "32000"),
    ({"size": "65x64"}, "size", "64x64 and 80x64"),
    ({"response_format": "xml"}, "response_format", "url, b64_json"),
    ({"output_format": "bmp"}, "output_format", "png, jpeg, webp"),
    ({"output_path": "/tmp"}, "output_path", "no paths"),
    ({"image_path": "/etc/hostname"}, "image_path", "the picture itself"),
    ({"background": "transparent"}, "background", "opaque"),
    ({"stream": True, "n": 2}, "n", "only one"),
    ({"profile": True}, "profile", "not allowed"),
    ({"quality": "shiny"}, "quality", "auto"),
    ({"seed": [1, 2]}, "seed", "the list must have 1"),
    ({"seed": -1}, "seed", "from 0"),
]


@pytest.mark.parametrize(("fields", "param", "words"), BAD, ids=lambda v: str(v)[:30])
def test_sibling_routes_refuse_alike(
    web: httpx.Client, fields: dict[str, Any], param: str, words: str
) -> None:
    body = {"prompt": "x", **fields}
    image = "data:image/png;base64," + base64.b64encode(png()).decode()
    answers = [web.post(GENERATE, json=body), web.post(EDIT, json={**body, "image": image})]
    messages = {answer.json()["error"]["message"] for answer in answers}
    assert [answer.status_code for answer in answers] == [400, 400]
    assert {answer.json()["error"]["param"] for answer in answers} == {param}
    assert len(messages) == 1
    assert words in messages.pop()


def test_every_problem_is_told_at_once(web: httpx.Client) -> None:
    answer = web.post(GENERATE, json={"n": 0, "fps": 3, "colour": 1})
    message = error(answer, 400, "invalid_parameter", "colour")
    assert {line.split(":")[0].split("=")[0] for line in message.splitlines()} == {
        "n", "fps", "colour", "prompt",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["other", "toy-edit ", "TOY-EDIT"])
def test_a_wrong_model_is_404_everywhere(web: httpx.Client, name: str) -> None:
    image = "data:image/png;base64," + base64.b64encode(png()).decode()
    for route, more in ((GENERATE, {}), (EDIT, {"image": image})):
        answer = web.post(route, json={"model": name, "prompt": "x", **more})
        assert "toy-edit" in error(answer, 404, "model_not_found", "model")


def test_a_task_that_the_model_lacks(web: httpx.Client) -> None:
    message = error(web.post("/v1/videos", json={"prompt": "x"}), 400, "unsupported_task")
    assert "POST /v1/images/generations or POST /v1/images/edits" in message


@pytest.mark.parametrize(
    ("body", "content_type", "status", "code"),
    [
        (b"{", "application/json", 400, "invalid_json"),
        (b"[]", "application/json", 400, "invalid_json"),
        (b'{"prompt":"x","prompt":"y"}', "application/json", 400, "duplicate_parameter"),
        (b'{"prompt":"x","guidance_scale":NaN}', "application/json", 400, "invalid_json"),
        (b"\xff\xfe", "application/json", 400, "invalid_json"),
        (b"prompt=x", "application/x-www-form-urlencoded", 415, "unsupported_media_type"),
        (b"{}", "text/plain", 415, "unsupported_media_type"),
        (b"--x", "multipart/form-data", 400, "invalid_form"),
        (b"--x\r\n", "multipart/form-data; boundary=x", 400, "invalid_form"),
        (b" " * (2**20 + 1), "application/json", 413, "body_too_large"),
    ],
)
def test_bodies_that_cannot_be_read(
    web: httpx.Client, body: bytes, content_type: str, status: int, code: str
) -> None:
    for route in (GENERATE, EDIT):
        answer = web.post(route, content=body, headers={"content-type": content_type})
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), answer.text
        ErrorAnswer.model_validate_json(answer.text)


def test_a_body_without_length_is_limited_too(web: httpx.Client) -> None:
    chunks = (b" " * 65536 for _ in range(17))
    answer = web.post(GENERATE, content=chunks, headers={"content-type": "application/json"})
    error(answer, 413, "body_too_large")


def test_the_frameworks_own_errors_have_the_envelope(web: httpx.Client) -> None:
    error(web.get("/nope"), 404, "not_found")
    answer = web.put(GENERATE, json={})
    error(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == "POST"
    assert web.get("/v1/models/").json()["error"]["code"] in ("not_found", "model_not_found")


def test_the_callers_request_id_is_repeated_beside_ours(web: httpx.Client) -> None:
    answers = [web.get("/liveness", headers={"x-request-id": "mine-1"}) for _ in range(2)]
    assert [a.headers["x-client-request-id"] for a in answers] == ["mine-1", "mine-1"]
    assert len({a.headers["x-request-id"] for a in answers}) == 2


# The model and the server


def test_models(web: httpx.Client) -> None:
    listed = ModelList.model_validate_json(web.get("/v1/models").text)
    card = listed.data[0]
    assert (card.id, card.pipeline) == ("toy-edit", "toy-edit")
    assert card.supported_task_types == ["text-to-image", "image-to-image"]
    one = ModelDetails.model_validate_json(web.get("/v1/models/toy-edit").text)
    assert one.defaults["num_inference_steps"] == 4
    rows = {row.name: row for row in one.parameters}
    steps = rows["num_inference_steps"]
    assert (steps.minimum, steps.maximum, steps.default, steps.unit) == (1, 1000, 4, "steps")
    assert (rows["prompt"].required, rows["size"].sets) == (True, ["width", "height"])
    assert one.limits["max_body_bytes"] == 2**20
    error(web.get("/v1/models/nope"), 404, "model_not_found", "model")
    error(web.get("/v1/models/a/b"), 404, "model_not_found", "model")


def test_probes(web: httpx.Client) -> None:
    for path in ("/liveness", "/health"):
        Alive.model_validate_json(web.get(path).text)
    answer = Generated.model_validate_json(web.get("/health_generate").text)
    assert 0 <= answer.seconds < 60
    info = ServerInfo.model_validate_json(web.get("/server_info").text)
    assert (info.served_model_name, info.ready, info.engine.status) == ("toy-edit", True, "ready")
    assert "api_key" not in info.server_options
    assert "job_store" not in info.server_options


def test_metrics_parse_and_count(web: httpx.Client) -> None:
    def count() -> float:
        families = text_string_to_metric_families(web.get("/metrics").text)
        samples = [s for family in families for s in family.samples]
        names = {s.name for s in samples}
        assert {"sgld_jobs_queued", "sgld_jobs_running"} & names or len(names) > 5
        return sum(
            s.value
            for s in samples
            if s.labels.get("route") == GENERATE and s.name.endswith(("_total", "_count"))
        )

    before = count()
    make(web)
    assert count() > before


def test_documents(web: httpx.Client, server: Served) -> None:
    document = web.get("/openapi.json").json()
    assert document["info"]["title"] == "sgld"
    body = document["paths"][GENERATE]["post"]["requestBody"]["content"]
    assert set(body) == {"application/json", "multipart/form-data"}
    fields = body["application/json"]["schema"]["properties"]
    assert fields["num_inference_steps"]["maximum"] == 1000
    assert fields["model"]["enum"] == ["toy-edit"]
    assert "image_path" not in fields
    for path, operations in document["paths"].items():
        for operation in operations.values():
            assert "422" not in operation["responses"], path
            for status, answer in operation["responses"].items():
                if status[0] in "45" and path not in ("/health", "/health_generate"):
                    schema = answer["content"]["application/json"]["schema"]
                    assert schema == {"$ref": "#/components/schemas/ErrorAnswer"}, path
    assert "text/html" in web.get("/docs").headers["content-type"]


def test_there_is_no_cors_unless_asked_for(web: httpx.Client) -> None:
    answer = web.get("/liveness", headers={"origin": "https://a.example"})
    assert "access-control-allow-origin" not in answer.headers


# Other options


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    options: dict[str, Any] = {
        "api_key": ("key-1", "key-2"), "cors_origin": ("https://a.example",),
        "served_model_name": "demo", "max_queue": 1, "max_pixels": 64 * 64,
    }  # fmt: skip
    folder = tmp_path_factory.mktemp("guarded")
    with (
        served_here("tiny:toy-image", folder, {"max_running": 1}, **options) as served,
        httpx.Client(base_url=served.url, trust_env=False, timeout=60) as client,
    ):
        yield client


@pytest.mark.parametrize("given", [None, "Bearer", "Bearer key-3", "key-1", "Basic key-1"])
def test_a_key_is_asked_for(guarded: httpx.Client, given: str | None) -> None:
    headers = {"authorization": given} if given is not None else {}
    for method, path in (
        ("GET", "/v1/models"), ("POST", GENERATE), ("GET", "/metrics"), ("GET", "/nope"),
        ("GET", "/openapi.json"), ("GET", "/health_generate"),
    ):  # fmt: skip
        answer = guarded.request(method, path, headers=headers)
        error(answer, 401, "invalid_api_key")
        assert answer.json()["error"]["type"] == "authentication_error"
    assert guarded.get("/health", headers=headers).status_code == 200
    assert guarded.get("/liveness", headers=headers).status_code == 200


@pytest.mark.parametrize("key", ["key-1", "key-2"])
def test_every_key_opens(guarded: httpx.Client, key: str) -> None:
    headers = {"authorization": f"bearer {key}"}
    assert guarded.get("/v1/models", headers=headers).json()["data"][0]["id"] == "demo"
    document = guarded.get("/openapi.json", headers=headers).json()
    assert document["paths"][GENERATE]["post"]["security"] == [{"key": []}]
    assert "security" not in document["paths"]["/health"]["get"]


def test_an_allowed_origin_may_call(guarded: httpx.Client) -> None:
    asked = {
        "origin": "https://a.example",
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
    }
    answer = guarded.options(GENERATE, headers=asked)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "https://a.example"
    other = guarded.options(GENERATE, headers={**asked, "origin": "https://b.example"})
    assert "access-control-allow-origin" not in other.headers
    # A refused key can be read by the page, too.
    refused = guarded.get("/v1/models", headers={"origin": "https://a.example"})
    assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (
        401,
        "https://a.example",
    )


def test_the_servers_own_limit_and_a_full_queue(guarded: httpx.Client) -> None:
    guarded.headers["authorization"] = "Bearer key-1"
    body = {"prompt": "x", "size": "80x64"}
    message = error(guarded.post(GENERATE, json=body), 400, "invalid_parameter", "size")
    assert "the limit of this server is 4096" in message
    slow = json.dumps({"prompt": "x", "step_delay": 0.3}).encode()
    address = (guarded.base_url.host, guarded.base_url.port or 0)
    head = (
        f"POST {GENERATE} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer key-1\r\n"
        f"content-type: application/json\r\ncontent-length: {len(slow)}\r\n\r\n"
    ).encode()
    sockets = [socket.create_connection(address) for _ in range(2)]
    try:
        for number, one in enumerate(sockets):
            one.sendall(head + slow)
            _until_busy(guarded, number + 1)
        answer = guarded.post(GENERATE, json={"prompt": "x"})
        error(answer, 429, "queue_full")
        assert int(answer.headers["retry-after"]) > 0
    finally:
        for one in sockets:
            one.close()
    _until_busy(guarded, 0)
    assert guarded.post(GENERATE, json={"prompt": "x"}).status_code == 200


def _until_busy(client: httpx.Client, jobs: int) -> None:
    end = time.monotonic() + 20
    while time.monotonic() < end:
        info = client.get("/server_info").json()
        if info["queued"] + info["running"] == jobs:
            return
        time.sleep(0.02)
    raise AssertionError(f"never {jobs} jobs")
