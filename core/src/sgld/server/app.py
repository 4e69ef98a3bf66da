"""The HTTP application: routes, the layers around them, and the life of its background work."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import time
from collections.abc import AsyncIterator

from fastapi import FastAPI
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sgld import __version__
from sgld.observe.logs import bound
from sgld.server.errors import (
    CLIENT_REQUEST_ID,
    REQUEST_ID,
    ApiError,
    client_request_id,
    error_response,
    install_error_handlers,
    request_id_of,
)
from sgld.server.health import health_routes
from sgld.server.images import image_routes
from sgld.server.models import model_routes
from sgld.server.openapi import install_openapi
from sgld.server.page.routes import PAGE_PATHS, page_routes
from sgld.server.realtime.keys import socket_keys
from sgld.server.realtime.routes import realtime_routes
from sgld.server.services import Services
from sgld.server.videos import video_routes
from sgld.server.warmup import get_ready

MOST_KEYS = 4
"""Keys that one socket may try."""
OPEN_PATHS = ("/liveness", "/health")
"""What answers without a key: probes, which tell nothing about anybody's work."""


def make_app(services: Services) -> FastAPI:
    """The application over these services; starting and stopping it starts and stops their work."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        services.engine.start()
        tasks: list[asyncio.Task[None]] = []
        try:
            await services.runner.recover()
            tasks.append(asyncio.create_task(get_ready(services), name="readiness"))
            tasks.append(asyncio.create_task(services.keep(), name="retention"))
            yield
        finally:
            await services.sessions.stop(services.options.drain_seconds)
            await services.runner.stop(services.options.drain_seconds)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await services.engine.close()
            services.close()

    app = FastAPI(
        title="sgld",
        version=__version__,
        description="Images and videos from diffusion models, in the words of OpenAI's API.",
        lifespan=lifespan,
    )
    install_error_handlers(app)
    for routes in (
        health_routes,
        model_routes,
        image_routes,
        video_routes,
        page_routes,
        realtime_routes,
    ):
        app.include_router(routes(services))
    install_openapi(app, keys=bool(services.options.api_key), open_paths=OPEN_PATHS)
    # Each layer lies around those before it: who is let in or not, an answer is counted and named.
    if services.options.api_key:
        app.add_middleware(ApiKeys, keys=services.options.api_key)
    app.add_middleware(RequestContext, services=services)
    if services.options.cors_origin:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(services.options.cors_origin),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["authorization", "content-type", "x-request-id"],
            expose_headers=[REQUEST_ID, CLIENT_REQUEST_ID, "retry-after"],
        )
    return app


class ApiKeys:
    """Lets in who sends `Authorization: Bearer KEY` with one of the keys; see
    `sgld.server.realtime.keys` for sockets."""

    def __init__(self, app: ASGIApp, keys: tuple[str, ...]) -> None:
        self._app = app
        self._keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 401, or pass the request on."""
        path = scope.get("path", "")
        open_path = scope["type"] == "http" and (
            path in OPEN_PATHS or path == "/" or path.startswith(PAGE_PATHS)
        )
        if scope["type"] not in ("http", "websocket") or open_path or self._knows(scope):
            await self._app(scope, receive, send)
            return
        error = ApiError(
            "the API key is missing or wrong.",
            status=401,
            code="invalid_api_key",
            remedy="Send it as `Authorization: Bearer KEY`.",
        )
        await error_response(error)(scope, receive, send)

    def _knows(self, scope: Scope) -> bool:
        given = [
            value[7:].strip()
            for name, value in scope["headers"]
            if name == b"authorization" and value[:7].lower() == b"bearer "
        ][-1:]
        if scope["type"] == "websocket" and not given:
            given = list(socket_keys(scope))[:MOST_KEYS]
        # Every key is compared, and in constant time, so that time tells nothing of any of them.
        matches = [hmac.compare_digest(one, key) for one in given for key in self._keys]
        return any(matches)


class RequestContext:
    """Gives each request an id, binds it to the log, counts and times the answer."""

    def __init__(self, app: ASGIApp, services: Services) -> None:
        self._app = app
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on; the answer carries `x-request-id`."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = request_id_of(HTTPConnection(scope))
        begin, status = time.perf_counter(), 500
        client_id = client_request_id(Headers(scope=scope))

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers[REQUEST_ID] = request_id
                if client_id:
                    headers[CLIENT_REQUEST_ID] = client_id
                headers.update(scope["state"].get("trace_headers", {}))
            elif status < 300 and getattr(scope.get("route"), "path", "").endswith("/content"):
                self._services.metrics.bytes_out(len(message.get("body", b"")))
            await send(message)

        with bound(request_id=request_id):
            try:
                await self._app(scope, receive, answer)
            finally:
                route = getattr(scope.get("route"), "path", "")
                seconds = time.perf_counter() - begin
                self._services.metrics.http(scope["method"], route, status, seconds)
