"""`/v1/images`: generations and edits wait for their result; content is kept with the job."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from sgld.server.bodies import Body, Kind, read_edit_body, read_image_body
from sgld.server.content import send_output
from sgld.server.errors import check_ready, check_task, not_found
from sgld.server.inputs import load_and_prepare
from sgld.server.jobs.store import Job
from sgld.server.jobs.table import ENDED
from sgld.server.openapi import file_answers, picture_answers, request_body
from sgld.server.picture_events import base64_of, follow, why_ended
from sgld.server.services import Services
from sgld.server.shapes import content_url, used, warnings
from sgld.server.submit import submit


def image_routes(services: Services) -> APIRouter:
    """The image routes over these services."""
    router = APIRouter()

    @router.post(
        "/v1/images/generations",
        summary="Make pictures from a prompt",
        response_model=None,
        responses=picture_answers("image_generation"),
        openapi_extra=request_body("image", services.facts, services.limits),
    )
    async def generate(request: Request) -> Response:
        return await _images(services, request, "image", await _body(request, services, False))

    @router.post(
        "/v1/images/edits",
        summary="Make pictures from pictures and a prompt",
        response_model=None,
        responses=picture_answers("image_edit"),
        openapi_extra=request_body("edit", services.facts, services.limits),
    )
    async def edit(request: Request) -> Response:
        return await _images(services, request, "edit", await _body(request, services, True))

    @router.head("/v1/images/{image_id}/content", include_in_schema=False)
    @router.get(
        "/v1/images/{image_id}/content",
        summary="The file of a picture",
        response_class=Response,
        responses=file_answers("image/png", "image/jpeg", "image/webp"),
    )
    async def content(request: Request, image_id: str, variant: str = "0") -> Response:
        job = services.runner.get(image_id) or await services.db(services.jobs.get, image_id)
        if job is None or job.kind != "image":
            raise not_found("image", image_id)
        return await send_output(services, request, job, variant)

    return router


async def _body(request: Request, services: Services, edit: bool) -> Body:
    check_ready(services.readiness)
    read = read_edit_body if edit else read_image_body
    return await read(request, services.limits)


async def _images(services: Services, request: Request, kind: Kind, body: Body) -> Response:
    check_task(services.facts, kind)
    prepared, images = await load_and_prepare(services, kind, body)
    job = await submit(services, "image", prepared, images, request)
    # Many may wait here for long, and their pictures are kept on disk.
    del images, body
    if prepared.output["stream"]:
        return await follow(services, job, kind)
    wanted = prepared.output["response_format"]
    job = await _wait(services, request, job)
    answer = await _answer(services, request, job, wanted)
    if wanted == "url":
        return JSONResponse(answer)
    # Large pictures would block the loop.
    return await services.files(JSONResponse, answer)


async def _wait(services: Services, request: Request, job: Job) -> Job:
    """Wait for the end of a job; a client that goes away takes its job along.

    Raises:
        SgldError: the job failed, with its code.
    """
    ended = asyncio.create_task(_last(services, job.id))
    gone = asyncio.create_task(_gone(request))
    try:
        await asyncio.wait([ended, gone], return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
        if not ended.done():
            await services.runner.cancel(job.id, "disconnect")
    final = await ended or await services.db(services.jobs.get, job.id)
    if final is None or final.status != "completed":
        raise why_ended(final)
    return final


async def _gone(request: Request) -> None:
    """Return when the client has left; the body has been read, so nothing else comes from it."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _last(services: Services, job_id: str) -> Job | None:
    """The job as it ended. Its file is kept by then; its record is written at the same time, and is
    known to this server meanwhile."""
    job: Job | None = None
    async for happened in services.runner.watch(job_id):
        job = happened.job
        if happened.job.status in ENDED:
            break
    return job


async def _answer(
    services: Services, request: Request, job: Job, response_format: str
) -> dict[str, Any]:
    params = used(job)
    data: list[dict[str, Any]] = []
    for index, output in enumerate(job.outputs):
        item: dict[str, Any] = {"revised_prompt": params.get("prompt"), "seed": output["seed"]}
        if response_format == "b64_json":
            item["b64_json"] = await services.files(base64_of, services, output["key"])
        else:
            link = partial(content_url, request, job, index, services)
            item["url"] = await services.files(link) if services.outputs.remote else link()
        data.append(item)
    return {
        "id": job.id,
        "created": int(job.created_at),
        "data": data,
        "model": job.model,
        "size": f"{job.outputs[0]['width']}x{job.outputs[0]['height']}",
        "output_format": job.request["output"]["format"],
        "parameters": params,
        "inference_time_s": job.timings.get("total"),
        "timings": job.timings,
        "warnings": warnings(job),
    }
