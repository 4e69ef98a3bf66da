"""Every answer that is not a success: one envelope, one table of statuses, on every route.

    {"error": {"message": "...", "type": "invalid_request_error", "param": "size", "code": "..."}}

* `ApiError(message, status=..., code=...)`, its kinds `NotReady` and `QueueFull`, its makers
  `not_found` and `body_too_large`, and the checks `check_ready` and `check_task`: for routes.
* `envelope(error) -> (status, body)`, `headers_of(error)`, `error_response(error)`,
  `error_event(error)`: any exception as an answer.
* `install_error_handlers(app)`: from then on every exception becomes an envelope and every answer
  carries `x-request-id`, unless a layer further out has already given the request an id.
* `request_id_of(request)`: the id of a request; unique, whatever the client calls it.

4xx is the caller's fault, 5xx is ours. An unexpected exception is a 500 with code `internal_error`
that shows only the request id; the traceback goes to the log. See the table `STATUSES`.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, cast

import structlog
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sgld.api.errors import ParameterError, SgldError, UserError
from sgld.server.refusals import (
    RETRY_SECONDS,
    ApiError,
    NotReady,
    QueueFull,
    body_too_large,
    check_ready,
    check_task,
    not_found,
)

__all__ = [
    "ApiError",
    "NotReady",
    "QueueFull",
    "body_too_large",
    "check_ready",
    "check_task",
    "client_request_id",
    "envelope",
    "error_event",
    "error_response",
    "headers_of",
    "install_error_handlers",
    "log_error",
    "new_request_id",
    "not_found",
    "request_id_of",
    "status_of",
    "type_of",
]

log = structlog.get_logger("sgld.server")

REQUEST_ID: Final = "x-request-id"
CLIENT_REQUEST_ID: Final = "x-client-request-id"

STATUSES: Final[Mapping[str, int]] = {
    "invalid_request": 400,
    "invalid_parameter": 400,
    "unsupported_feature": 400,
    "model_not_found": 404,
    # Another owner (DELETE, cancel) ended the work that this caller was waiting for.
    "cancelled": 409,
    # The request fits the limits but not this machine: ours, and trying again does not help.
    "out_of_memory": 500,
    "non_finite_output": 500,
    "stage_failed": 500,
    # The engine is being restarted: trying again helps.
    "engine_lost": 503,
}
"""Error code → HTTP status, where the class alone (`UserError` 400, others 500) does not say it."""

AGAIN: Final = frozenset({"engine_lost", "not_ready", "queue_full"})
"""Codes after which the same request may work; clients are told not to retry other 5xx."""

HIDDEN: Final[Mapping[str, str]] = {
    "disk_full": "The server has no space left to store the result.",
    "write_failed": "The server could not store the result.",
}
"""Codes whose own message names files of the server, with what the caller reads instead."""

TYPES: Final[Mapping[int, str]] = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
}
"""HTTP status → type word; other 4xx are `invalid_request_error`, 5xx are `server_error`."""

FRAMEWORK: Final[Mapping[int, tuple[str, str]]] = {
    400: ("invalid_request", "The request cannot be read."),
    404: ("not_found", "There is no such address here; /docs lists all."),
    405: ("method_not_allowed", "This address does not take this method."),
    413: ("body_too_large", "The request body is too large."),
    415: ("unsupported_media_type", "The content type is not taken here."),
    416: ("range_not_satisfiable", "The range lies outside the file."),
}
"""Status of an error made by the framework → code and message."""


def type_of(status: int) -> str:
    """The type word of a status, in OpenAI's vocabulary."""
    return TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")


def status_of(error: BaseException) -> int:
    """The HTTP status of any exception."""
    if isinstance(error, ApiError):
        return error.status
    if isinstance(error, HTTPException):
        return error.status_code
    if isinstance(error, RequestValidationError):
        return 400
    if isinstance(error, SgldError):
        return STATUSES.get(error.code, 400 if isinstance(error, UserError) else 500)
    return 500


def envelope(error: BaseException, request_id: str = "") -> tuple[int, dict[str, Any]]:
    """Status and JSON body of any exception; nothing of an unexpected one is shown."""
    status = status_of(error)
    message, param, code = _words(error, status, request_id)
    body = {"message": message, "type": type_of(status), "param": param, "code": code}
    return status, {"error": body}


def _words(error: BaseException, status: int, request_id: str) -> tuple[str, str | None, str]:
    if isinstance(error, ParameterError):
        return str(error), error.problems[0].field, error.code
    if isinstance(error, SgldError):
        param = getattr(error, "param", None)
        if param is None and error.code == "model_not_found":
            param = "model"
        return HIDDEN.get(error.code, str(error)), param, error.code
    if isinstance(error, RequestValidationError):
        return _validation_words(error.errors())
    if isinstance(error, HTTPException):
        code, message = FRAMEWORK.get(status, ("", ""))
        code = code or re.sub(r"\W+", "_", _phrase(status).lower())
        plain = error.detail in (_phrase(status), "", None)
        return message if plain and message else str(error.detail), None, code
    quoted = f" Report it with the request id {request_id}." if request_id else ""
    return f"the server made a mistake.{quoted}", None, "internal_error"


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return f"status {status}"


def _validation_words(entries: Sequence[Any]) -> tuple[str, str | None, str]:
    lines: list[str] = []
    first: str | None = None
    for entry in entries:
        where = [str(part) for part in entry.get("loc", ())]
        name = ".".join(where[1:]) or (where[0] if where else "body")
        first = first or name
        lines.append(f"{name}: {str(entry.get('msg', 'is wrong')).rstrip('.')}.")
    missing = len(entries) == 1 and entries[0].get("type") == "missing"
    code = "missing_parameter" if missing else "invalid_parameter"
    return "\n".join(lines) or "The request is not valid.", first, code


def headers_of(error: BaseException) -> dict[str, str]:
    """The extra headers of an error's answer, such as Retry-After and Allow."""
    headers: dict[str, str] = {}
    if isinstance(error, ApiError | HTTPException):
        headers |= {name.lower(): value for name, value in (error.headers or {}).items()}
    status = status_of(error)
    code = getattr(error, "code", "internal_error")
    if code == "engine_lost":
        headers.setdefault("retry-after", str(RETRY_SECONDS))
    # OpenAI's clients retry 409 and 5xx by themselves unless this header says otherwise.
    if (status >= 500 or status == 409) and code not in AGAIN and "retry-after" not in headers:
        headers["x-should-retry"] = "false"
    return headers


def error_response(error: BaseException, request_id: str = "") -> Response:
    """The complete answer for any exception."""
    status, body = envelope(error, request_id)
    return JSONResponse(_encodable(body), status_code=status, headers=headers_of(error))


def _encodable(body: dict[str, Any]) -> dict[str, Any]:
    """The body without lone surrogates, which a caller may have sent and UTF-8 cannot hold."""
    text = json.dumps(body).encode("utf-8", "replace")
    words: dict[str, Any] = json.loads(text)["error"]
    clean = {
        name: value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
        for name, value in words.items()
    }
    return {"error": clean}


def new_request_id() -> str:
    """A fresh id: `req_` and 32 hexadecimal digits."""
    return f"req_{uuid.uuid4().hex}"


def request_id_of(request: HTTPConnection) -> str:
    """The id given to this request; a new one when the middleware is not installed."""
    state = cast("dict[str, Any]", request.scope.setdefault("state", {}))
    return state.setdefault("request_id", new_request_id())


def client_request_id(headers: Headers) -> str:
    """The caller's own X-Request-Id if it can be repeated in a header, else an empty text.

    It names nothing inside: two callers may send the same one.
    """
    given = headers.get(REQUEST_ID, "")
    return given if re.fullmatch(r"[\x21-\x7e]{1,128}", given) else ""


class Envelopes:
    """ASGI middleware: gives every request an id and turns what is raised into an answer.

    When an answer has already begun, an event stream gets a last `error` event; any other body is
    cut off, so that the client sees a broken transfer instead of a short file.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        known = "request_id" in scope.get("state", {})
        request_id = request_id_of(HTTPConnection(scope))
        client_id = client_request_id(Headers(scope=scope))
        started: Message | None = None

        async def sending(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = message
                headers = MutableHeaders(scope=message)
                if not known:
                    headers[REQUEST_ID] = request_id
                    headers.update({CLIENT_REQUEST_ID: client_id} if client_id else {})
            await send(message)

        try:
            await self.app(scope, receive, sending)
        except ClientDisconnect:
            log.info("the client left before its request was read", request_id=request_id)
        except Exception as raised:
            error = raised if started is None else _cause(raised)
            log_error(error, request_id)
            if started is None:
                await error_response(error, request_id)(scope, receive, sending)
            elif _is_event_stream(started):
                await send({"type": "http.response.body", "body": error_event(error, request_id)})


def _cause(raised: Exception) -> BaseException:
    """What really happened: Starlette wraps an error that comes after the answer has begun."""
    cause = raised.__cause__
    return cause if isinstance(cause, SgldError | HTTPException) else raised


def _is_event_stream(start: Message) -> bool:
    return Headers(raw=start["headers"]).get("content-type", "").startswith("text/event-stream")


def error_event(error: BaseException, request_id: str = "") -> bytes:
    """The error as the last event of a server-sent event stream."""
    body = {"type": "error", **_encodable(envelope(error, request_id)[1])}
    return f"event: error\ndata: {json.dumps(body)}\n\n".encode()


def log_error(error: BaseException, request_id: str) -> None:
    """Log faults of ours: a traceback for what nobody expected, one line for what we raise."""
    if status_of(error) < 500 or getattr(error, "code", "") in AGAIN:
        return
    if isinstance(error, SgldError):
        log.error("request failed", request_id=request_id, code=error.code, reason=str(error))
    elif isinstance(error, HTTPException):
        log.error("request failed", request_id=request_id, reason=str(error.detail))
    else:
        log.error("unexpected error", request_id=request_id, exc_info=error)


async def _answer(request: Request, error: Exception) -> Response:
    request_id = request_id_of(request)
    log_error(error, request_id)
    return error_response(error, request_id)


def install_error_handlers(app: FastAPI) -> None:
    """Answer every error of `app` with the envelope and every request with an id.

    Middleware that is added later lies outside: it must answer its own errors, with
    `error_response`.
    """
    for kind in (SgldError, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, _answer)
    app.add_middleware(Envelopes)
