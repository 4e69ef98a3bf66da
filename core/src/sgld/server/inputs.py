"""The pictures of a request, from wherever the client gave them, decoded within the limits."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sgld.media.fetch import fetch_media
from sgld.media.images import load_image
from sgld.server.bodies import Body, Kind
from sgld.server.parameters import PreparedRequest, prepare_request
from sgld.server.services import Services

Picture = npt.NDArray[np.uint8]


async def load_and_prepare(
    services: Services, kind: Kind, body: Body
) -> tuple[PreparedRequest, list[Picture]]:
    """Check a body, then fetch and decode its pictures, then check what depends on them: a wrong
    field costs no download.

    Raises:
        ParameterError: everything that is wrong with the fields, or with a picture.
    """
    facts, limits = services.facts, services.limits
    if body.inputs:
        prepare_request(kind, body, facts, limits)
    images = await load_inputs(services, kind, body)
    prepared = await asyncio.to_thread(prepare_request, kind, body, facts, limits, images)
    return prepared, images


async def load_inputs(services: Services, kind: Kind, body: Body) -> list[Picture]:
    """Every input picture of a body, RGB uint8 [H, W, 3], uploads first, then addresses; the
    model's own for a request that brings none.

    Raises:
        ParameterError: one is no picture, too large, or must not be fetched.
    """
    images: list[Picture] = []
    for field, files in body.files.items():
        for upload in files:
            images.append(await _decode(upload.data, field, services))
    for field, url in body.urls:
        data = await fetch_media(url, policy=services.policy, field=field)
        images.append(await _decode(data, field, services))
    if not images and (path := services.facts.begins_with(kind)):
        data = await asyncio.to_thread(Path(path).read_bytes)
        images.append(await _decode(data, "input_reference", services))
    return images


async def _decode(data: bytes, field: str, services: Services) -> Picture:
    limit = services.limits.max_input_pixels
    return await asyncio.to_thread(load_image, data, max_pixels=limit, field=field)
