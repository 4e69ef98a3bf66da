"""Probes and facts: `/liveness`, `/health`, `/health_generate`, `/server_info`, `/metrics`."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from sgld import __version__
from sgld.messages import Request as EngineRequest
from sgld.server.answers import Alive, Generated, ServerInfo, Unavailable
from sgld.server.openapi import answers
from sgld.server.services import Services
from sgld.server.warmup import smallest_request

GENERATE_SECONDS = 60.0
UNAVAILABLE: dict[int | str, dict[str, Any]] = {
    503: {"model": Unavailable, "description": "Not now; the reason, and Retry-After."}
}


def health_routes(services: Services) -> APIRouter:
    """Routes that answer at once, whatever the engine does."""
    router = APIRouter()
    probing = asyncio.Lock()

    @router.get(
        "/liveness",
        summary="Whether this process answers",
        response_model=None,
        responses=answers(Alive),
    )
    async def liveness() -> dict[str, str]:
        return {"status": "ok"}

    @router.get(
        "/health",
        summary="Whether generation requests are taken",
        responses=answers(Alive) | UNAVAILABLE,
    )
    async def health() -> Response:
        return _health(services)

    @router.get(
        "/health_generate",
        summary="Whether a tiny generation works",
        responses=answers(Generated) | UNAVAILABLE,
    )
    async def health_generate() -> Response:
        if not services.readiness.ready:
            return _health(services)
        if probing.locked():
            return _unhealthy("another probe is generating", 5)
        async with probing:
            return await _generate(services)

    @router.get(
        "/server_info",
        summary="What is served, by what, with which options",
        response_model=None,
        responses=answers(ServerInfo),
    )
    async def server_info() -> dict[str, Any]:
        state = services.engine.state
        return {
            "version": __version__,
            "model_path": services.plan.options.model_path,
            "served_model_name": services.name,
            "pipeline": services.plan.spec.id,
            "plugins": [
                {"name": row.name, "distribution": row.dist, "version": row.version}
                for row in services.plan.catalog.plugins
            ],
            "engine": {
                "status": state.status,
                "reason": state.reason,
                "restarts": state.restarts,
                "device_memory": dict(state.device_memory or {}),
            },
            "ready": services.readiness.ready,
            "queued": services.runner.queued,
            "running": services.runner.running,
            "sessions": services.sessions.live,
            "serving_options": services.plan.options.model_dump(mode="json"),
            "server_options": services.options.model_dump(
                mode="json", exclude={"api_key", "job_store", "otlp_endpoint"}
            ),
        }

    @router.get(
        "/metrics",
        summary="Metrics for Prometheus",
        response_class=PlainTextResponse,
        responses={200: {"content": {"application/openmetrics-text": {}}}},
    )
    async def metrics(request: Request) -> Response:
        services.metrics.engine_state(services.engine.state)
        services.metrics.session_bytes(services.sessions.bytes_kept)
        shown = services.metrics.render(request.headers.get("accept", ""))
        return Response(shown.body, media_type=shown.content_type)

    return router


def _health(services: Services) -> Response:
    ready = services.readiness
    if not ready.ready:
        return _unhealthy(ready.reason, ready.retry_after)
    return JSONResponse({"status": "ok"})


def _unhealthy(reason: str, retry_after: int) -> Response:
    body = {"status": "unavailable", "error": reason}
    return JSONResponse(body, status_code=503, headers={"retry-after": str(retry_after)})


async def _generate(services: Services) -> Response:
    params, seeds, images = smallest_request(services.plan)
    request = EngineRequest(f"health-{uuid.uuid4().hex[:8]}", params, seeds, images)
    begin = time.monotonic()
    try:
        async with asyncio.timeout(GENERATE_SECONDS):
            async with services.engine.run(request) as events:
                async for event in events:
                    if event.kind == "failed":
                        return _unhealthy(f"{event.code}: {event.message}", 30)
    except TimeoutError:
        return _unhealthy(f"no result within {GENERATE_SECONDS:g} s", 30)
    return JSONResponse({"status": "ok", "seconds": round(time.monotonic() - begin, 3)})
