"""The tiny request that shows that a model works before clients are let in."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import Any

import numpy as np
import numpy.typing as npt
import structlog

from sgld.api.errors import ParameterError, SgldError
from sgld.messages import Request
from sgld.params.merge import Layer
from sgld.params.sampling import SamplingParams, VideoParams
from sgld.params.size import SIZES, parse_size
from sgld.plan import ModelPlan
from sgld.server.services import Services

log = structlog.get_logger("sgld.server")

POLL_SECONDS = 0.2
SMALL = 64
"""Least side asked of a pipeline that is only inspected (its networks may halve a picture several
times, which its grid does not tell), and of the input picture where it decides about the size."""
STEPS = 2
"""Steps asked of such a pipeline: not every schedule can be made of one."""
Warmed = tuple[dict[str, Any], tuple[int, ...], tuple[npt.NDArray[np.uint8], ...]]


def smallest_request(plan: ModelPlan, size: str = "") -> Warmed:
    """Parameters, seeds and pictures of the cheapest valid request, or of one with this size."""
    cls, inspected = plan.params_class, bool(plan.spec.inspect)
    side = _on_grid(cls, SMALL if inspected else 1)
    parsed = parse_size(size) if size else (side, side)
    if isinstance(parsed, str):  # a size name: the parameters turn it into numbers on the grid
        parsed = SIZES[parsed]
    width, height = parsed
    values: dict[str, Any] = {"prompt": "" if cls.prompt_optional else "warm-up"}
    values |= {"width": width, "height": height}
    if "dmd_denoising_steps" not in cls.model_fields:
        values["num_inference_steps"] = STEPS if inspected else 1
    if issubclass(cls, VideoParams):
        values["num_frames"] = 1
    built = _built(plan, values, keep=() if inspected and not size else tuple(values))
    height, width = built.height or SMALL, built.width or SMALL
    images = (np.zeros((height, width, 3), np.uint8),) if cls.needs_image else ()
    return built.model_dump(mode="json"), (0,), images


def _on_grid(cls: type[SamplingParams], least: int) -> int:
    """The smallest side that is on the grid and not below `least`."""
    unit = cls.spatial_multiple
    return -(-max(cls.min_size, least) // unit) * unit


def _built(plan: ModelPlan, values: dict[str, Any], keep: tuple[str, ...]) -> SamplingParams:
    """The parameters; what the pipeline decides by itself is left to it, but for `keep`."""
    try:
        return plan.build([Layer("call", values)]).params
    except ParameterError as error:
        refused = {problem.field for problem in error.problems} - set(keep)
        if not refused & set(values):
            raise
    values = {name: value for name, value in values.items() if name not in refused}
    return plan.build([Layer("call", values)]).params


async def get_ready(services: Services) -> None:
    """Wait for the engine, warm it, then let requests in; what fails stays as the reason."""
    ready = services.readiness
    try:
        await _engine_ready(services)
        if services.options.warmup:
            for size in ("", *services.options.warmup_size):
                ready.reason = f"warming up{f' {size}' if size else ''}"
                await _warm_up(services, size)
    except SgldError as error:
        ready.failed, ready.reason, ready.retry_after = True, str(error).rstrip("."), 60
        log.error("not ready", reason=str(error), code=error.code)
        return
    ready.ready, ready.reason = True, ""
    services.runner.open()
    log.info("ready", model=services.name, seconds=round(time.time() - ready.started, 1))
    await _watch(services)


async def _engine_ready(services: Services) -> None:
    while True:
        state = services.engine.state
        if state.status == "ready":
            return
        if state.status in ("failed", "stopped"):
            raise SgldError(f"the engine could not start: {state.reason}", code="engine_failed")
        loading = dict(state.loading or {})
        done = sum(row[0] for row in loading.values())
        total = sum(row[1] for row in loading.values())
        share = f" ({done * 100 // total} %)" if total else ""
        services.readiness.reason = f"the engine is {state.status}{share}"
        await asyncio.sleep(POLL_SECONDS)


async def _warm_up(services: Services, size: str) -> None:
    """Run one request. Of a pipeline that is only inspected nobody knows which small request it
    can run: when the smallest one fails, that says nothing about others, so it is only told."""
    try:
        await _warm(services, size)
    except SgldError as error:
        if size or not services.plan.spec.inspect or services.engine.state.status != "ready":
            raise
        log.warning("warm-up failed", reason=str(error), code=error.code)


async def _warm(services: Services, size: str) -> None:
    params, seeds, images = smallest_request(services.plan, size)
    request = Request(f"warmup-{uuid.uuid4().hex[:8]}", params, seeds, images)
    begin = time.monotonic()
    async with services.engine.run(request) as events:
        async for event in events:
            if event.kind == "failed":
                raise SgldError(f"warm-up failed: {event.message}", code="warmup_failed")
    log.info("warmed", size=size or "smallest", seconds=round(time.monotonic() - begin, 2))


async def _watch(services: Services) -> None:
    """Readiness follows the engine from now on: not ready while it is being restarted."""
    ready = services.readiness
    while True:
        state = services.engine.state
        up = state.status == "ready"
        if up != ready.ready:
            ready.ready = up
            ready.reason = (
                "" if up else f"the engine is {state.status}: {state.reason}".rstrip(". :")
            )
            ready.failed = state.status in ("failed", "stopped")
        await asyncio.sleep(POLL_SECONDS)
