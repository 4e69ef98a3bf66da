"""Every answer that is not a success has the same shape, whoever made the error."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Annotated, Any

import httpx
import pytest
import structlog
from fastapi import FastAPI, Query, Request
from starlette.exceptions import HTTPException
from starlette.responses import StreamingResponse

from sgld.api.errors import (
    Cancelled,
    DeviceError,
    FeatureError,
    ModelError,
    ParameterError,
    PluginError,
    Problem,
    RequestError,
    SgldError,
    UserError,
)
from sgld.server.errors import (
    ApiError,
    NotReady,
    QueueFull,
    body_too_large,
    check_ready,
    check_task,
    client_request_id,
    envelope,
    error_response,
    headers_of,
    install_error_handlers,
    not_found,
    request_id_of,
)

SECRET = "/srv/private/folder"
BAD = "invalid_request_error"
ONE = ParameterError([Problem("size", "x", "is odd.", "Use y.")])
TWO = ParameterError([Problem("n", 0, "is low."), Problem("size", "x", "is odd.")])
UNKNOWN = ParameterError([Problem("foo", 1, "is unknown.", "", "unknown_parameter")])


@pytest.mark.parametrize(
    ("error", "status", "kind", "param", "code"),
    [
        (ONE, 400, BAD, "size", "invalid_parameter"),
        (TWO, 400, BAD, "n", "invalid_parameter"),
        (UNKNOWN, 400, BAD, "foo", "unknown_parameter"),
        (UserError("x"), 400, BAD, None, "invalid_request"),
        (FeatureError("x"), 400, BAD, None, "unsupported_feature"),
        (ModelError("x"), 400, BAD, None, "model_error"),
        (ModelError("x", code="model_not_found"), 404, BAD, "model", "model_not_found"),
        (not_found("model", "x"), 404, BAD, "model", "model_not_found"),
        (not_found("video", "x"), 404, BAD, None, "not_found"),
        (RequestError("x"), 500, "server_error", None, "stage_failed"),
        (RequestError("x", code="non_finite_output"), 500, "server_error", None,
         "non_finite_output"),
        (RequestError("x", code="out_of_memory"), 500, "server_error", None, "out_of_memory"),
        (SgldError("x", code="engine_lost"), 503, "server_error", None, "engine_lost"),
        (SgldError("x", code="invalid_parameter"), 400, BAD, None, "invalid_parameter"),
        (Cancelled("x"), 409, BAD, None, "cancelled"),
        (DeviceError("x"), 500, "server_error", None, "device_error"),
        (PluginError("x"), 500, "server_error", None, "plugin_failed"),
        (SgldError("x"), 500, "server_error", None, "internal_error"),
        (NotReady("x"), 503, "server_error", None, "not_ready"),
        (QueueFull("x"), 429, "rate_limit_error", None, "queue_full"),
        (ApiError("x", status=401, code="invalid_api_key"), 401, "authentication_error", None,
         "invalid_api_key"),
        (ApiError("x", status=403, code="forbidden"), 403, "permission_error", None, "forbidden"),
        (body_too_large(5, param="prompt"), 413, BAD, "prompt", "body_too_large"),
        (HTTPException(404), 404, BAD, None, "not_found"),
        (HTTPException(405), 405, BAD, None, "method_not_allowed"),
        (HTTPException(413), 413, BAD, None, "body_too_large"),
        (HTTPException(416), 416, BAD, None, "range_not_satisfiable"),
        (HTTPException(418, "tea"), 418, BAD, None, "i_m_a_teapot"),
        (HTTPException(599, "odd"), 599, "server_error", None, "status_599"),
        (ValueError(SECRET), 500, "server_error", None, "internal_error"),
        (MemoryError(), 500, "server_error", None, "internal_error"),
    ],
)  # fmt: skip
def test_the_table_of_statuses(
    error: Exception, status: int, kind: str, param: str | None, code: str
) -> None:
    got, body = envelope(error, "req_1")
    assert got == status
    assert body["error"].keys() == {"message", "type", "param", "code"}
    words = body["error"]
    assert (words["type"], words["param"], words["code"]) == (kind, param, code)
    assert words["message"]
    assert SECRET not in words["message"]


def test_every_problem_is_in_the_message() -> None:
    message = envelope(TWO)[1]["error"]["message"]
    assert message == "n=0: is low.\nsize='x': is odd."
    assert envelope(ONE)[1]["error"]["message"] == "size='x': is odd. Use y."


@pytest.mark.parametrize("code", ["disk_full", "write_failed"])
def test_files_of_the_server_are_not_named(code: str) -> None:
    status, body = envelope(SgldError(f"cannot write {SECRET}", code=code))
    assert status == 500
    assert body["error"]["code"] == code
    assert SECRET not in json.dumps(body)


@pytest.mark.parametrize(
    ("error", "headers"),
    [
        (QueueFull("x", retry_after=2.4), {"retry-after": "2"}),
        (NotReady("x", retry_after=0), {"retry-after": "1"}),
        (SgldError("x", code="engine_lost"), {"retry-after": "5"}),
        (RequestError("x", code="out_of_memory"), {"x-should-retry": "false"}),
        (ValueError("x"), {"x-should-retry": "false"}),
        (Cancelled("x"), {"x-should-retry": "false"}),
        (HTTPException(405, headers={"Allow": "GET"}), {"allow": "GET"}),
        (body_too_large(1), {"connection": "close"}),
        (ONE, {}),
    ],
)
def test_headers_tell_whether_to_try_again(error: Exception, headers: dict[str, str]) -> None:
    assert headers_of(error) == headers


def test_text_that_utf8_cannot_hold_does_not_break_the_answer() -> None:
    error = ParameterError([Problem("\ud800", "\udfff", "is odd.")])
    body = json.loads(error_response(error).body)
    assert body["error"]["param"] == "?"


def test_readiness_and_tasks() -> None:
    class State:
        ready, reason, retry_after = False, "the engine is starting", 7

    with pytest.raises(NotReady, match="the engine is starting") as caught:
        check_ready(State())
    assert caught.value.headers == {"retry-after": "7"}

    class Facts:
        name = "toy"
        routes = {"video": "/v1/videos"}  # noqa: RUF012

    check_task(Facts(), "video")
    with pytest.raises(ApiError, match="POST /v1/videos") as refused:
        check_task(Facts(), "edit")
    assert (refused.value.status, refused.value.code) == (400, "unsupported_task")


class Outer:
    """A layer further out that has given the request an id already."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/outer":
            scope.setdefault("state", {})["request_id"] = "req_outer"
        await self.app(scope, receive, send)


def make_app() -> FastAPI:
    app = FastAPI()

    @app.get("/ok")
    async def ok(request: Request) -> dict[str, str]:
        return {"id": request_id_of(request)}

    @app.get("/outer")
    async def outer() -> None:
        raise ONE

    @app.get("/query")
    async def query(limit: Annotated[int, Query(ge=1, le=100)], after: str = "") -> None:
        pass

    @app.get("/unexpected")
    async def unexpected() -> None:
        raise RuntimeError(SECRET)

    @app.get("/blocking")
    def blocking() -> None:
        raise QueueFull("full.")

    @app.get("/events")
    async def events() -> StreamingResponse:
        async def lines() -> AsyncIterator[bytes]:
            yield b"data: 1\n\n"
            raise RequestError("step 3 failed.", code="non_finite_output")

        return StreamingResponse(lines(), media_type="text/event-stream")

    @app.get("/file")
    async def file() -> StreamingResponse:
        async def parts() -> AsyncIterator[bytes]:
            yield b"abc"
            raise OSError(SECRET)

        return StreamingResponse(parts(), media_type="video/mp4")

    install_error_handlers(app)
    app.add_middleware(Outer)
    return app


def ask(method: str, path: str, **options: Any) -> httpx.Response:
    async def run() -> httpx.Response:
        transport = httpx.ASGITransport(make_app())
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.request(method, path, **options)

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("method", "path", "status", "code", "param"),
    [
        ("GET", "/nowhere", 404, "not_found", None),
        ("POST", "/ok", 405, "method_not_allowed", None),
        ("GET", "/query", 400, "missing_parameter", "limit"),
        ("GET", "/query?limit=x", 400, "invalid_parameter", "limit"),
        ("GET", "/query?limit=0", 400, "invalid_parameter", "limit"),
        ("GET", "/unexpected", 500, "internal_error", None),
        ("GET", "/blocking", 429, "queue_full", None),
    ],
)
def test_errors_of_the_framework_look_alike(
    method: str, path: str, status: int, code: str, param: str | None
) -> None:
    answer = ask(method, path)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/json"
    words = answer.json()["error"]
    assert words.keys() == {"message", "type", "param", "code"}
    assert (words["code"], words["param"]) == (code, param)
    assert answer.headers["x-request-id"].startswith("req_")


def test_the_allowed_methods_are_named() -> None:
    assert ask("POST", "/ok").headers["allow"] == "GET"


def test_nothing_of_an_unexpected_error_is_shown_but_the_log_has_it() -> None:
    with structlog.testing.capture_logs() as logs:
        answer = ask("GET", "/unexpected")
    assert SECRET not in answer.text
    assert "Traceback" not in answer.text
    request_id = answer.headers["x-request-id"]
    assert request_id in answer.json()["error"]["message"]
    (entry,) = [entry for entry in logs if entry["log_level"] == "error"]
    assert entry["request_id"] == request_id
    assert SECRET in str(entry["exc_info"])


def test_an_event_stream_ends_with_the_error() -> None:
    answer = ask("GET", "/events")
    events = answer.text.split("\n\n")
    assert events[0] == "data: 1"
    name, data = events[1].split("\n")
    assert name == "event: error"
    assert json.loads(data.removeprefix("data: "))["error"]["code"] == "non_finite_output"


def test_a_broken_file_is_cut_off_not_ended() -> None:
    """Without a last empty chunk the client knows that the file is not whole."""
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {
        "type": "http", "method": "GET", "path": "/file", "raw_path": b"/file", "headers": [],
        "query_string": b"", "scheme": "http", "server": ("test", 80), "client": ("test", 1),
        "http_version": "1.1", "root_path": "", "asgi": {"version": "3.0", "spec_version": "2.4"},
    }  # fmt: skip
    asyncio.run(make_app()(scope, receive, send))
    bodies = [message for message in sent if message["type"] == "http.response.body"]
    assert [message["body"] for message in bodies] == [b"abc"]
    assert bodies[-1]["more_body"] is True


def test_ids_are_unique_and_the_callers_own_is_only_repeated() -> None:
    first = ask("GET", "/ok", headers={"x-request-id": "mine"})
    second = ask("GET", "/ok", headers={"x-request-id": "mine"})
    assert first.headers["x-client-request-id"] == "mine"
    assert second.headers["x-client-request-id"] == "mine"
    ids = {first.headers["x-request-id"], second.headers["x-request-id"]}
    assert len(ids) == 2
    assert ids == {first.json()["id"], second.json()["id"]}
    assert "mine" not in ids


@pytest.mark.parametrize("given", ["", "a b", "é", "x" * 129, "a\tb"])
def test_an_id_that_cannot_be_repeated_is_dropped(given: str) -> None:
    from starlette.datastructures import Headers

    headers = Headers(raw=[(b"x-request-id", given.encode("latin-1"))])
    assert client_request_id(headers) == ""


def test_an_id_given_further_out_is_kept() -> None:
    answer = ask("GET", "/outer")
    assert answer.status_code == 400
    assert "x-request-id" not in answer.headers


def test_the_openai_client_reads_the_errors() -> None:
    openai = pytest.importorskip("openai")
    import httpx2

    async def run() -> None:
        transport = httpx2.ASGITransport(make_app())
        async with openai.AsyncOpenAI(
            api_key="x",
            base_url="http://test",
            max_retries=0,
            http_client=httpx2.AsyncClient(transport=transport),
        ) as client:
            with pytest.raises(openai.NotFoundError) as missing:
                await client.get("/nowhere", cast_to=object)
            assert missing.value.code == "not_found"
            assert missing.value.type == BAD
            with pytest.raises(openai.RateLimitError) as full:
                await client.get("/blocking", cast_to=object)
            assert full.value.code == "queue_full"
            with pytest.raises(openai.InternalServerError) as ours:
                await client.get("/unexpected", cast_to=object)
            assert ours.value.request_id in ours.value.message

    asyncio.run(run())
