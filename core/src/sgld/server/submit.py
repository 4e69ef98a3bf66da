"""From a validated request to a job: uploads stored, limits asked, the job in line."""

from __future__ import annotations

import io
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from fastapi import Request
from PIL import Image

from sgld.server.errors import request_id_of
from sgld.server.jobs.store import Job
from sgld.server.jobs.table import Kind
from sgld.server.parameters import PreparedRequest
from sgld.server.services import Services

MEDIA_TYPES = {
    "png": ("image/png", ".png"),
    "jpeg": ("image/jpeg", ".jpg"),
    "webp": ("image/webp", ".webp"),
    "mp4": ("video/mp4", ".mp4"),
    "webm": ("video/webm", ".webm"),
    "gif": ("image/gif", ".gif"),
}
"""Format → media type and file ending."""


async def submit(
    services: Services,
    kind: Kind,
    prepared: PreparedRequest,
    images: Sequence[npt.NDArray[np.uint8]],
    request: Request,
) -> Job:
    """Store the input pictures and admit the job.

    Raises:
        QueueFull: too many jobs wait; nothing was stored.
    """
    services.runner.admit_check()
    one = prepared.prepared
    services.metrics.bytes_uploaded(sum(image.nbytes for image in images))
    format = prepared.output.get("format") or ("png" if kind == "image" else "mp4")
    media_type, extension = MEDIA_TYPES[format]
    names: list[str] = []
    try:
        for image in [*images, *_as_picture(prepared.mask)]:
            names.append(await services.files(_save, services, image))
        job = Job(
            id=f"{kind}_{uuid.uuid4().hex}",
            kind=kind,
            status="queued",
            created_at=time.time(),
            model=services.name,
            request={
                "params": one.params.model_dump(mode="json"),
                "seeds": list(one.seeds),
                "output": {
                    "format": format,
                    "media_type": media_type,
                    "extension": extension,
                    "quality": prepared.output.get("quality"),
                    "preset": prepared.output.get("x264_preset"),
                },
                "warnings": list(prepared.warnings),
                "profile": bool(prepared.output.get("profile", False)),
                "previews": _previews(kind, prepared.output),
                "masked": prepared.mask is not None,
            },
            inputs=names,
            request_id=request_id_of(request),
        )
        trace = services.tracing.request(f"POST {request.scope['route'].path}", request.headers)
        trace.set(model=services.name, pipeline=services.plan.spec.id)
        request.state.trace_headers = trace.headers
        client = request.client.host if request.client else ""
        await services.runner.admit(job, trace, client)
    except BaseException:
        for name in names:
            services.uploads.delete(name)
        raise
    return job


def _previews(kind: Kind, output: Mapping[str, Any]) -> int:
    """How many previews somebody will see."""
    shown = kind == "video" or output.get("stream", False)
    return int(output.get("partial_images", 0)) if shown else 0


def _as_picture(mask: npt.NDArray[np.bool_] | None) -> list[npt.NDArray[np.uint8]]:
    return [] if mask is None else [np.repeat(mask[:, :, None], 3, axis=2).astype(np.uint8) * 255]


def _save(services: Services, image: npt.NDArray[np.uint8]) -> str:
    """What a client sent is kept as pixels only: no metadata, no trailing data, no odd format."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG", compress_level=1)
    return services.uploads.save(buffer.getvalue(), ".png")
