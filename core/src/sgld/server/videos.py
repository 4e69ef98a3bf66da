"""`/v1/videos`: durable jobs that are queued, watched, cancelled, listed and downloaded."""

from __future__ import annotations

import base64
import io
import json
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import numpy as np
from fastapi import APIRouter, Query, Request
from starlette.responses import Response, StreamingResponse

from sgld.media.images import encode_image
from sgld.media.videos import write_video
from sgld.messages import Event
from sgld.server.answers import Video, VideoDeleted, VideoList
from sgld.server.bodies import read_video_body
from sgld.server.content import send_output
from sgld.server.errors import ApiError, check_ready, check_task, not_found
from sgld.server.inputs import load_and_prepare
from sgld.server.jobs.retention import remove_job
from sgld.server.jobs.store import Job
from sgld.server.openapi import CREATING, answers, event_content, file_answers, request_body
from sgld.server.runner import ENDED
from sgld.server.services import Services
from sgld.server.shapes import video_object
from sgld.server.submit import submit

PREVIEW_QUALITY: Final = 80
CHUNK_PRESET: Final = "veryfast"
"""Encoder speed of chunks: each watcher gets its own, and the whole clip comes later."""
EVENTS: Final = ("queued", "step", "preview", "chunk", "done", "failed", "cancelled")


def video_routes(services: Services) -> APIRouter:
    """The video routes over these services."""
    router = APIRouter()

    @router.post(
        "/v1/videos",
        summary="Queue a video",
        response_model=None,
        responses=answers(Video, *CREATING),
        openapi_extra=request_body("video", services.facts, services.limits),
    )
    async def create(request: Request) -> dict[str, Any]:
        check_ready(services.readiness)
        body = await read_video_body(request, services.limits)
        check_task(services.facts, "video")
        prepared, images = await load_and_prepare(services, "video", body)
        job = await submit(services, "video", prepared, images, request)
        return video_object(request, services.runner.get(job.id) or job, services)

    @router.get(
        "/v1/videos",
        summary="List videos",
        response_model=None,
        responses=answers(VideoList, 400, 500),
    )
    async def listing(
        request: Request,
        after: str | None = None,
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
        order: Literal["asc", "desc"] = "desc",
    ) -> dict[str, Any]:
        page = await services.db(services.jobs.page, "video", after, limit, order)
        jobs = [services.runner.get(job.id) or job for job in page.jobs]
        data = await services.files(_objects, request, jobs, services)
        return {
            "object": "list",
            "data": data,
            "first_id": data[0]["id"] if data else None,
            "last_id": data[-1]["id"] if data else None,
            "has_more": page.has_more,
        }

    @router.get(
        "/v1/videos/{video_id}",
        summary="One video",
        response_model=None,
        responses=answers(Video, 404, 500),
    )
    async def retrieve(request: Request, video_id: str) -> dict[str, Any]:
        job = await _job(services, video_id)
        return await services.files(video_object, request, job, services)

    @router.delete(
        "/v1/videos/{video_id}",
        summary="Stop and delete a video",
        response_model=None,
        responses=answers(VideoDeleted, 404, 500),
    )
    async def delete(request: Request, video_id: str) -> dict[str, Any]:
        await _job(services, video_id)
        await services.runner.cancel(video_id, "deleted")
        # Not on the store's own thread: a bucket may take its time.
        job = await services.files(
            remove_job, services.jobs, services.outputs, services.uploads, video_id
        )
        if job is None:
            raise not_found("video", video_id)
        return {"id": video_id, "object": "video.deleted", "deleted": True, "status": "deleted"}

    @router.post(
        "/v1/videos/{video_id}/cancel",
        summary="Stop a video",
        response_model=None,
        responses=answers(Video, 404, 409, 500),
    )
    async def cancel(request: Request, video_id: str) -> dict[str, Any]:
        job = await _job(services, video_id)
        if job.status in ENDED:
            raise ApiError(
                f"video {video_id!r} is {job.status}; there is nothing to cancel.",
                status=409,
                code="already_ended",
            )
        await services.runner.cancel(video_id, "request")
        return video_object(request, await _job(services, video_id), services)

    @router.head("/v1/videos/{video_id}/content", include_in_schema=False)
    @router.get(
        "/v1/videos/{video_id}/content",
        summary="The file of a video",
        response_class=Response,
        responses=file_answers("video/mp4", "video/webm", "image/gif"),
    )
    async def content(request: Request, video_id: str, variant: str = "0") -> Response:
        return await send_output(services, request, await _job(services, video_id), variant)

    @router.get(
        "/v1/videos/{video_id}/events",
        summary="What happens to a video, as it happens",
        response_class=StreamingResponse,
        responses={
            200: {
                "description": "Each event as it happens.",
                "content": event_content(*EVENTS),
            },
            **answers(None, 404, 500),
        },
    )
    async def events(request: Request, video_id: str) -> StreamingResponse:
        job = await _job(services, video_id)
        return StreamingResponse(
            _events(services, request, job),
            media_type="text/event-stream",
            headers={"cache-control": "no-store", "x-accel-buffering": "no"},
        )

    return router


def _objects(request: Request, jobs: list[Job], services: Services) -> list[dict[str, Any]]:
    """On a thread: signing the addresses of many files takes its time."""
    return [video_object(request, job, services) for job in jobs]


async def _job(services: Services, video_id: str) -> Job:
    job = services.runner.get(video_id) or await services.db(services.jobs.get, video_id)
    if job is None or job.kind != "video":
        raise not_found("video", video_id)
    return job


async def _events(services: Services, request: Request, job: Job) -> AsyncIterator[str]:
    """Server-sent events `queued`, `step`, `preview`, `chunk`, then `done`, `failed` or
    `cancelled`."""
    services.metrics.streams(1)
    try:
        async for line in _lines(services, request, job):
            yield line
    finally:
        services.metrics.streams(-1)


async def _lines(services: Services, request: Request, job: Job) -> AsyncIterator[str]:
    watched = False
    async for happened in services.runner.watch(job.id):
        watched = True
        job, event = happened.job, happened.event
        facts: dict[str, Any] = {"id": job.id, "status": job.status, "progress": job.progress}
        if job.status in ENDED:
            yield _line(_ending(job), video_object(request, job, services))
        elif event is None:
            yield _line("queued" if job.status == "queued" else "step", facts)
        elif event.kind == "preview":
            shown = await services.save(_preview, event)
            yield _line("preview", facts | {"index": event.index, "step": event.step} | shown)
        elif event.kind == "frames":
            shown = await services.save(_chunk, event, services.scratch, job)
            yield _line("chunk", facts | {"index": event.index} | shown)
        else:
            more = {"index": event.index, "step": event.step, "total": event.total}
            yield _line("step", facts | more | {"seconds": round(event.seconds, 3)})
    if not watched:
        final = await _job(services, job.id)
        yield _line(_ending(final), video_object(request, final, services))


def _ending(job: Job) -> str:
    return "done" if job.status == "completed" else job.status


def _preview(event: Event) -> dict[str, str]:
    """What a preview shows: a frame, or latents."""
    if event.frames is not None:
        frame = event.frames[len(event.frames) // 2]
        return {"jpeg": _base64(encode_image(frame, "jpeg", PREVIEW_QUALITY))}
    buffer = io.BytesIO()
    np.save(buffer, np.asarray(event.latents, dtype=np.float16))
    return {"latents_npy": _base64(buffer.getvalue())}


def _chunk(event: Event, scratch: Path, job: Job) -> dict[str, Any]:
    """A chunk of a clip as a small clip of its own."""
    assert event.frames is not None
    path = scratch / f"{job.id}-{event.index}-{event.step}-{secrets.token_hex(4)}.mp4"
    try:
        write_video(path, event.frames, job.request["params"]["fps"], preset=CHUNK_PRESET)
        data = path.read_bytes()
    finally:
        path.unlink(missing_ok=True)
    frames = len(event.frames)
    return {
        "chunk": event.step,
        "chunks": event.total,
        "frames": frames,
        "mp4": _base64(data),
    }


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _line(name: str, data: dict[str, Any]) -> str:
    return f"event: {name}\ndata: {json.dumps(data, ensure_ascii=False, default=str)}\n\n"
