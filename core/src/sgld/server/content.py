"""Finished files: from this server with ranges, or a redirect to the bucket that holds them."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from fastapi import Request
from starlette.datastructures import Headers
from starlette.responses import FileResponse, RedirectResponse, Response
from starlette.types import Message, Receive, Scope, Send

from sgld.server.errors import ApiError
from sgld.server.jobs.store import Job
from sgld.server.services import Services
from sgld.server.shapes import PRESIGNED_SECONDS, file_name

RANGES: Final = re.compile(r"bytes\s*=\s*(\d+-\d*|-\d+)(\s*,\s*(\d+-\d*|-\d+))*", re.ASCII | re.I)
"""A Range header that means something; by RFC 9110 any other is ignored."""


class OutputFile(FileResponse):
    """A file, whole or in the ranges asked for; ranges outside of it are refused as any error."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it.

        Raises:
            ApiError: 416, before anything was sent.
        """
        if not RANGES.fullmatch(Headers(scope=scope).get("range", "").strip()):
            headers = [(name, value) for name, value in scope["headers"] if name != b"range"]
            scope = {**scope, "headers": headers}

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] >= 400:
                size = self.headers["content-length"]
                raise ApiError(
                    f"the range lies outside the file, which has {size} bytes.",
                    status=416,
                    code="range_not_satisfiable",
                    headers={"content-range": f"bytes */{size}"},
                )
            await send(message)

        await super().__call__(scope, receive, sending)


async def send_output(services: Services, request: Request, job: Job, word: str) -> Response:
    """The output of a job that `word` names; a file is streamed, so its size costs no memory.

    Raises:
        ApiError: 404 when the job has not completed or has no such output.
    """
    variant = _variant(job, word)
    if job.status != "completed":
        raise ApiError(
            f"{job.kind} {job.id!r} is {job.status}; there is no content.",
            status=404,
            code=f"{job.kind}_not_ready",
            remedy="Wait until its status is completed." if job.status in ("queued", "in_progress")
            else "",
        )  # fmt: skip
    if not 0 <= variant < len(job.outputs):
        raise ApiError(
            f"variant={variant}: this {job.kind} has {len(job.outputs)} outputs, counted from 0.",
            status=404,
            code="variant_not_found",
            param="variant",
        )
    output = job.outputs[variant]
    name = file_name(job, variant)
    url = await services.files(services.outputs.url, output["key"], name, PRESIGNED_SECONDS)
    if url is not None:
        return RedirectResponse(url, status_code=307)
    path = await services.files(services.outputs.open_path, output["key"])
    found = await services.files(_stat, path)
    if path is None or found is None:
        raise ApiError(
            f"the file of {job.kind} {job.id!r} is gone.", status=404, code="content_gone"
        )
    return OutputFile(
        path,
        media_type=output["media_type"],
        filename=name,
        content_disposition_type="inline",
        stat_result=found,
    )


def _stat(path: Path | None) -> os.stat_result | None:
    try:
        return None if path is None else os.stat(path)
    except FileNotFoundError:  # deleted since
        return None


def _variant(job: Job, word: str) -> int:
    """Which output: a number, or for videos the word of OpenAI's API for the file itself."""
    if job.kind == "video" and word == "video":
        return 0
    if re.fullmatch(r"-?[0-9]{1,9}", word):
        return int(word)
    raise ApiError(
        f"variant={word[:40]!r}: must be the number of an output, counted from 0.",
        code="invalid_parameter",
        param="variant",
    )
