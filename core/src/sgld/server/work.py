"""One job from its request to its stored outputs; how it ends is written down by the runner."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog

from sgld.api.errors import SgldError
from sgld.media.images import load_image
from sgld.media.saving import save_output
from sgld.messages import Event, Output, Request
from sgld.server.active import Active
from sgld.server.jobs.store import Job

if TYPE_CHECKING:
    from sgld.server.services import Services

log = structlog.get_logger("sgld.server")

WRITE_EVERY: Final = 1.0
"""Seconds between two notes of a running job's progress in the store."""


class Work:
    """Runs one job; afterwards `outputs` and `timings` are what the job has made.

    Cancelling `run` stops the engine after at most one more step and leaves no thread behind that
    would still write.
    """

    def __init__(self, services: Services, active: Active) -> None:
        self._services = services
        self._active = active
        self._written = 0.0
        self.outputs: list[dict[str, Any]] = []
        self.timings: Mapping[str, float] = {}

    async def run(self) -> None:
        """Run the job to its last output.

        Raises:
            SgldError: it failed, with a code.
            asyncio.CancelledError: it was cancelled, or the engine stopped.
        """
        active = self._active
        request = await self._request(active.job)
        async with self._services.engine.run(request) as events:
            async for event in events:
                active.meter.event(event)
                active.trace.event(event)
                await self._take(event)
        self.outputs.sort(key=lambda item: item["index"])
        if len(self.outputs) != len(active.job.request["seeds"]):
            raise SgldError("an output is missing.", code="internal_error")

    async def _take(self, event: Event) -> None:
        active = self._active
        if event.kind == "started":
            active.begun = True
        elif event.kind == "step":
            await self._stepped(event)
        elif event.kind == "queued":
            active.steps.clear()  # the engine was lost and starts over
        elif event.kind in ("preview", "frames"):
            active.tell(event)
        elif event.kind == "output" and event.output is not None:
            self.outputs.append(await self._keep(event.output))
            self.timings = dict(event.output.timings)
        elif event.kind == "failed":
            raise SgldError(event.message, code=event.code)
        elif event.kind == "cancelled":
            raise asyncio.CancelledError

    async def _request(self, job: Job) -> Request:
        services = self._services
        images = [await services.files(_picture, services, name) for name in job.inputs]
        # The mask is the last of the uploads, and was black and white when it was stored.
        mask = images.pop()[:, :, 0] > 0 if job.request.get("masked") else None
        return Request(
            id=f"{job.id}-{job.attempts + 1}",
            params=job.request["params"],
            seeds=tuple(job.request["seeds"]),
            images=tuple(images),
            preview_every=int(job.request["params"].get("preview_every", 0)),
            profile=bool(job.request.get("profile", False)),
            previews=int(job.request.get("previews", 0)),
            mask=mask,
        )

    async def _stepped(self, event: Event) -> None:
        services, active = self._services, self._active
        job = active.job
        active.steps[event.index] = (event.step, event.total)
        share = sum(step / total for step, total in active.steps.values() if total)
        percent = int(share * 100 / len(job.request["seeds"]))
        progress = max(job.progress, min(99, percent))
        now = time.monotonic()
        if job.status == "queued":
            # A picture is stored when it has ended.
            if job.kind == "video" and not await services.db(services.jobs.claim, job.id):
                raise SgldError("the job is not in the store any more.", code="job_lost")
            active.job = replace(
                job,
                status="in_progress",
                started_at=time.time(),
                attempts=job.attempts + 1,
                progress=progress,
            )
            self._written = now
        else:
            active.job = replace(job, progress=progress)
            if now - self._written > WRITE_EVERY:
                self._written = now
                await self._note(progress)
        active.tell(event)

    async def _note(self, progress: int) -> None:
        services, job_id = self._services, self._active.job.id
        try:
            await services.db(services.jobs.update, job_id, flush=False, progress=progress)
        except SgldError as error:
            # Worth no job: the store may be back when its result is to be written down.
            log.warning("progress not stored", job=job_id, error=str(error))

    async def _keep(self, output: Output) -> dict[str, Any]:
        job = self._active.job
        self._active.keys.append(output_key(job, output.index))
        saving = asyncio.ensure_future(
            self._services.save(_save, self._services, job, output, self._services.scratch)
        )
        try:
            return await asyncio.shield(saving)
        except asyncio.CancelledError:
            # The thread cannot be stopped, and what it stores after the job's end would stay.
            await asyncio.wait([saving])
            raise


def output_key(job: Job, index: int) -> str:
    """Where output `index` of a job is stored."""
    return f"{job.id}/{index}{job.request['output']['extension']}"


def _picture(services: Services, name: str) -> Any:
    return load_image(services.uploads.read(name))


def _save(services: Services, job: Job, output: Output, scratch: Path) -> dict[str, Any]:
    """Write an output's file and hand it to the output store. Runs on a thread."""
    wanted = job.request["output"]
    key = output_key(job, output.index)
    saved = save_output(
        output,
        folder=scratch,
        file_name=key.replace("/", "-"),
        format=wanted["format"],
        quality=wanted.get("quality"),
        preset=wanted.get("preset"),
        # The record in the file itself and the job's own say all that it would.
        sidecar=False,
        metadata={"model": job.model, "warnings": job.request.get("warnings", [])},
    )
    try:
        # A clip may be worth minutes of a device; whoever asked for a picture gets it right now.
        services.outputs.put(key, saved.path, wanted["media_type"], flush=job.kind == "video")
    finally:
        saved.path.unlink(missing_ok=True)
    return {
        "key": key,
        "media_type": wanted["media_type"],
        "bytes": saved.bytes,
        "width": saved.width,
        "height": saved.height,
        "frames": saved.frames,
        "fps": float(saved.fps),
        "seed": output.seed,
        "index": output.index,
        "parameters": dict(output.parameters),
        "warnings": list(saved.warnings),
    }
