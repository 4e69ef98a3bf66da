"""Pictures as a stream of server-sent events, in the form of OpenAI's image API.

    event: image_generation.partial_image     a preview; `image_edit.…` for edits
    event: image_generation.completed         the picture, once, at the end
    event: error                              instead of it, with the envelope of every error

What is wrong with a request is a plain 400 before the stream begins. A client that goes away takes
its job along.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import structlog
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from sgld.api.errors import SgldError
from sgld.media.formats import quality_number
from sgld.media.images import encode_image
from sgld.messages import Event
from sgld.server.active import JobEvent
from sgld.server.bodies import Kind
from sgld.server.errors import NotReady, error_event
from sgld.server.jobs.store import Job
from sgld.server.jobs.table import ENDED
from sgld.server.services import Services
from sgld.server.shapes import used, warnings

log = structlog.get_logger("sgld.server")

HEADERS: Final = {"cache-control": "no-store", "x-accel-buffering": "no"}
NO_USAGE: Final = {
    "input_tokens": 0,
    "input_tokens_details": {"image_tokens": 0, "text_tokens": 0},
    "output_tokens": 0,
    "total_tokens": 0,
}
"""Clients expect the field; nothing is billed here, so no tokens are counted."""


async def follow(services: Services, job: Job, kind: Kind) -> StreamingResponse:
    """The events of an admitted job as an answer."""
    watched = services.runner.watch(job.id)
    # From here on it is watched: the answer begins later, and a preview may come before.
    await anext(watched, None)
    return _Answer(services, job, kind, watched)


def why_ended(job: Job | None) -> SgldError:
    """Why there is no picture, as an error."""
    error = (job.error if job else None) or {"code": "cancelled", "message": "cancelled"}
    if error["code"] == "not_ready":
        return NotReady(error["message"])
    return SgldError(error["message"], code=error["code"])


def base64_of(services: Services, key: str) -> str:
    """A stored file as text. Blocks."""
    return _text(services.outputs.read(key))


class _Answer(StreamingResponse):
    def __init__(
        self, services: Services, job: Job, kind: Kind, watched: AsyncIterator[JobEvent]
    ) -> None:
        self._services, self._job, self._watched = services, job, watched
        self._name = "image_edit" if kind == "edit" else "image_generation"
        self._ended = False
        super().__init__(self._events(), media_type="text/event-stream", headers=HEADERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events; the job ends with the answer, whatever way that ends."""
        self._services.metrics.streams(1)
        try:
            async with aclosing(self._watched):  # pyright: ignore[reportArgumentType]
                await super().__call__(scope, receive, send)
        finally:
            self._services.metrics.streams(-1)
            if not self._ended:
                self._services.runner.drop(self._job.id, "disconnect")

    async def _events(self) -> AsyncIterator[bytes]:
        try:
            async for event in self._until_the_end():
                yield event
        except SgldError as error:
            yield error_event(error, self._job.request_id)
        except Exception as error:
            log.error("a stream of pictures failed", exc_info=error)
            yield error_event(error, self._job.request_id)

    async def _until_the_end(self) -> AsyncIterator[bytes]:
        shown: set[int] = set()
        async for happened in self._watched:
            event = happened.event
            if happened.job.status in ENDED:
                self._ended = True
                yield await self._last(happened.job)
                return
            # A job whose engine was lost starts over and makes the same previews again.
            if event is None or event.kind != "preview" or event.frames is None:
                continue
            if event.step not in shown:
                shown.add(event.step)
                yield await self._preview(event, event.frames, len(shown) - 1)
        raise NotReady("the server is stopping.")

    async def _preview(self, event: Event, frames: npt.NDArray[np.uint8], number: int) -> bytes:
        output = self._job.request["output"]
        frame = frames[len(frames) // 2]
        quality = quality_number(output["quality"], moving=False)
        data = await self._services.save(encode_image, frame, output["format"], quality)
        return self._line(
            "partial_image",
            _text(data),
            f"{frame.shape[1]}x{frame.shape[0]}",
            {"partial_image_index": number},
        )

    async def _last(self, job: Job) -> bytes:
        if job.status != "completed":
            raise why_ended(job)
        output = job.outputs[0]
        data = await self._services.files(base64_of, self._services, output["key"])
        more = {
            "usage": NO_USAGE,
            "id": job.id,
            "model": job.model,
            "seed": output["seed"],
            "parameters": used(job),
            "inference_time_s": job.timings.get("total"),
            "timings": job.timings,
            "warnings": warnings(job),
        }
        return self._line("completed", data, f"{output['width']}x{output['height']}", more)

    def _line(self, what: str, data: str, size: str, more: dict[str, Any]) -> bytes:
        name = f"{self._name}.{what}"
        facts = {
            "type": name,
            "b64_json": data,
            "created_at": int(time.time()),
            "size": size,
            "quality": "auto",
            "background": "opaque",
            "output_format": self._job.request["output"]["format"],
        }
        return f"event: {name}\ndata: {json.dumps(facts | more, default=str)}\n\n".encode()


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
