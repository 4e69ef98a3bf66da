"""Masks of edits: which pixels may change; read from transparency or from brightness."""

from __future__ import annotations

import io

import numpy as np
import numpy.typing as npt
from PIL import Image

from sgld.api.errors import ParameterError, Problem
from sgld.media.images import MAX_PIXELS, load_image

MIDDLE = 128


def check_mask(
    data: bytes, size: tuple[int, int] | None, max_pixels: int = MAX_PIXELS
) -> npt.NDArray[np.bool_]:
    """The mask [H, W], True where the picture may change.

    With transparency, transparent pixels may change, as in OpenAI's API; without, bright ones.
    `size` is width and height of the picture that the mask belongs to.

    Raises `ParameterError` when it is no picture, blank, or of another size.
    """
    load_image(data, max_pixels=max_pixels, field="mask")  # refuses what is broken or too large
    with Image.open(io.BytesIO(data)) as image:
        if size is not None and image.size != size:
            shown = f"{image.size[0]}x{image.size[1]}"
            message = f"must have the size of the first picture, {size[0]}x{size[1]}."
            raise ParameterError([Problem("mask", shown, message)])
        mask = _read(image)
    if mask.all() or not mask.any():
        message = "is blank: it marks all of the picture or nothing."
        raise ParameterError([Problem("mask", None, message, "Paint what may change.")])
    return mask


def _read(image: Image.Image) -> npt.NDArray[np.bool_]:
    if image.has_transparency_data:
        alpha = np.asarray(image.convert("RGBA").getchannel("A"))
        if alpha.min() != alpha.max():
            return alpha < MIDDLE
    return np.asarray(image.convert("L")) >= MIDDLE
