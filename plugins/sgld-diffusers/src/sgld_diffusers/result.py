"""From what a pipeline returns to frames."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from PIL import Image

from sgld.api.errors import RequestError
from sgld_diffusers.reading.described import CLIPS, PICTURES, Described


def frames_of(result: Any, described: Described) -> torch.Tensor:
    """The one picture or clip of a result as RGB in 0..1, [F, H, W, 3].

    Raises RequestError when the pipeline returned something else.
    """
    value = _first(_field(result, PICTURES | CLIPS, described.name))
    pixels = _pixels(value, described.name)
    if pixels.ndim == 5 and pixels.shape[0] == 1:
        pixels = pixels[0]
    if pixels.ndim == 3:
        pixels = pixels[None]
    if pixels.ndim != 4 or pixels.shape[-1] not in (1, 3, 4):
        raise _unusable(described.name, f"an array {list(pixels.shape)}")
    if pixels.shape[-1] == 1:
        pixels = pixels.expand(*pixels.shape[:-1], 3)
    return pixels[..., :3]


def _field(result: Any, names: frozenset[str], pipeline: str) -> Any:
    if isinstance(result, tuple) and not hasattr(result, "_fields"):
        return result[0]
    for name in sorted(names):
        value = result.get(name) if isinstance(result, Mapping) else getattr(result, name, None)
        if value is not None:
            return value
    raise _unusable(pipeline, type(result).__name__)


def _first(value: Any) -> Any:
    """The first of a batch of one."""
    if isinstance(value, np.ndarray | torch.Tensor):
        return value[0] if value.ndim in (4, 5) and value.shape[0] == 1 else value
    if isinstance(value, list | tuple) and value:
        first = value[0]
        if isinstance(first, Image.Image) and len(value) > 1:
            return value  # a clip without a batch around it
        return first
    return value


def _pixels(value: Any, pipeline: str) -> torch.Tensor:
    if isinstance(value, Image.Image):
        value = np.asarray(value.convert("RGB"))
    if isinstance(value, list | tuple) and value:
        parts = [np.asarray(v.convert("RGB")) if isinstance(v, Image.Image) else v for v in value]
        value = np.stack([np.asarray(part) for part in parts])
    if isinstance(value, torch.Tensor):  # channels before pixels
        value = value.detach().float()
        return value.movedim(-3, -1) if value.shape[-3] in (1, 3, 4) else value
    if isinstance(value, np.ndarray):
        # A copy where it may not be written to or runs backwards: torch shares its memory else.
        tensor = torch.from_numpy(np.require(value, requirements=["C", "W"]))
        return tensor.float() / 255 if tensor.dtype == torch.uint8 else tensor.float()
    raise _unusable(pipeline, type(value).__name__)


def _unusable(pipeline: str, what: str) -> RequestError:
    return RequestError(f"{pipeline} returned {what}, which is neither a picture nor a clip.")
