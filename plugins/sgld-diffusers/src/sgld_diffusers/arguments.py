"""From a request to the arguments of a pipeline's `__call__`."""

from __future__ import annotations

import re
from typing import Any, Final

from PIL import Image

from sgld.api.errors import RequestError
from sgld.engine.job import Job
from sgld_diffusers.params import HANDLED
from sgld_diffusers.reading.described import Described
from sgld_diffusers.reading.signature import Argument

REPAINTS: Final = re.compile(r"Inpaint|Fill")
"""Class names whose mask is optional in the signature only."""


def call_arguments(described: Described, job: Job) -> dict[str, Any]:
    """Everything but the callbacks; what the request leaves as the pipeline has it is left out here
    too.

    Raises RequestError when the pipeline needs a mask and there is none.
    """
    taken, params = described.arguments, job.params
    given: dict[str, Any] = {
        name: getattr(params, name)
        for name in type(params).model_fields
        if name in taken and name not in HANDLED and _is_news(getattr(params, name), taken[name])
    }
    if "generator" in taken:
        given["generator"] = job.generator
    if "output_type" in taken:
        given["output_type"] = "np"
    for name in ("fps", "frame_rate"):
        if name in taken and described.kind == "video":
            given[name] = params.fps if int in taken[name].scalars else float(params.fps)
    if described.image and job.request.images:
        pictures = [Image.fromarray(picture) for picture in job.request.images]
        given[described.image] = pictures if described.several else pictures[0]
    if job.request.mask is not None and "mask_image" in taken:
        given["mask_image"] = Image.fromarray(job.request.mask)
    elif "mask_image" in taken and REPAINTS.search(described.name):
        raise RequestError(
            f"{described.name} repaints a part of a picture, and the request has no mask.",
            code="invalid_parameter",
            remedy="Send `mask` with the picture; the HTTP API's edits take one.",
        )
    return given


def _is_news(value: Any, argument: Argument) -> bool:
    return value is not None and (argument.required or value != argument.default)
