"""How jobs and their outputs look in answers."""

from __future__ import annotations

from typing import Any

from fastapi import Request

from sgld.server.jobs.store import Job
from sgld.server.services import Services

PRESIGNED_SECONDS = 3600


def content_url(request: Request, job: Job, index: int, services: Services) -> str:
    """Where a client gets output `index`: from the bucket, or from this server."""
    output = job.outputs[index]
    direct = services.outputs.url(output["key"], file_name(job, index), PRESIGNED_SECONDS)
    if direct is not None:
        return direct
    route = "images" if job.kind == "image" else "videos"
    variant = f"?variant={index}" if index else ""
    return f"{str(request.base_url).rstrip('/')}/v1/{route}/{job.id}/content{variant}"


def file_name(job: Job, index: int) -> str:
    """The name that a browser offers for output `index`."""
    return f"{job.id}-{index}{job.request['output']['extension']}"


def used(job: Job) -> dict[str, Any]:
    """The parameters really used, as far as they are known."""
    parameters = dict(job.outputs[0]["parameters"] if job.outputs else job.request["params"])
    parameters.pop("seed", None)
    parameters["seeds"] = list(job.request["seeds"])
    return parameters


def warnings(job: Job) -> list[str]:
    """What was accepted without effect or adjusted, by the request's check or by any output."""
    made = [text for output in job.outputs for text in output.get("warnings", ())]
    return list(dict.fromkeys([*job.request.get("warnings", ()), *made]))


def video_object(request: Request, job: Job, services: Services) -> dict[str, Any]:
    """A job in the form of OpenAI's video object, with what we know beyond it."""
    params = used(job)
    frames, fps = params.get("num_frames", 1), params.get("fps") or 1
    urls = [content_url(request, job, i, services) for i in range(len(job.outputs))]
    return {
        "id": job.id,
        "object": "video",
        "model": job.model,
        "status": job.status,
        "progress": job.progress,
        "created_at": int(job.created_at),
        "started_at": int(job.started_at) if job.started_at else None,
        "completed_at": int(job.completed_at) if job.completed_at else None,
        "expires_at": int(job.expires_at) if job.expires_at else None,
        "prompt": params.get("prompt"),
        "size": f"{params.get('width')}x{params.get('height')}",
        "seconds": f"{round(frames / fps, 3):g}",
        "num_frames": frames,
        "fps": fps,
        "quality": "standard",
        "remixed_from_video_id": None,
        "num_outputs": len(job.request["seeds"]),
        "url": urls[0] if urls else None,
        "urls": urls or None,
        "outputs": [
            {k: v for k, v in item.items() if k not in ("key", "parameters")}
            for item in job.outputs
        ],
        "parameters": params,
        "inference_time_s": job.timings.get("total"),
        "timings": job.timings or None,
        "warnings": warnings(job),
        "error": job.error,
    }
