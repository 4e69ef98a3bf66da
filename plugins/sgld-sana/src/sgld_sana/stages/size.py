"""The size that is generated: the one asked for, or the nearest that the model was trained on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch

from sgld.api.errors import RequestError
from sgld_sana.models.config import SanaConfig

IMAGE_BINS: Final = {16: 512, 32: 1024, 64: 2048, 128: 4096}
"""`sample_size` of the picture network → side of the square in its table."""
VIDEO_BINS: Final = {30: 480, 22: 720}


def generated_size(params: Any, config: SanaConfig) -> tuple[int, int]:
    """Height and width in pixels that the latents of a request stand for.

    Raises:
        RequestError: binning was asked for and there is no table for this network.
    """
    if not params.use_resolution_binning:
        return params.height, params.width
    side = (VIDEO_BINS if config.video else IMAGE_BINS).get(config.sample_size)
    if side is None:
        raise RequestError(
            f"use_resolution_binning=true: there is no table of sizes for sample_size="
            f"{config.sample_size} in transformer/config.json.",
            code="invalid_parameter",
            remedy="Leave it out and give width and height.",
        )
    return nearest(_bins(side), params.height, params.width)


def nearest(bins: Mapping[str, Any], height: int, width: int) -> tuple[int, int]:
    """Height and width of the entry whose shape, its key, is nearest to height / width."""
    shape = height / width
    rows, columns = bins[min(bins, key=lambda key: abs(float(key) - shape))]
    return int(rows), int(columns)


def _bins(side: int) -> Mapping[str, Any]:
    """The published table of a size, from diffusers."""
    from diffusers.pipelines.pixart_alpha import (  # noqa: PLC0415
        pipeline_pixart_alpha,
        pipeline_pixart_sigma,
    )
    from diffusers.pipelines.sana import pipeline_sana  # noqa: PLC0415
    from diffusers.pipelines.sana_video import pipeline_sana_video  # noqa: PLC0415

    return {
        480: pipeline_sana_video.ASPECT_RATIO_480_BIN,
        512: pipeline_pixart_alpha.ASPECT_RATIO_512_BIN,
        720: pipeline_sana_video.ASPECT_RATIO_720_BIN,
        1024: pipeline_pixart_alpha.ASPECT_RATIO_1024_BIN,
        2048: pipeline_pixart_sigma.ASPECT_RATIO_2048_BIN,
        4096: pipeline_sana.ASPECT_RATIO_4096_BIN,
    }[side]


def resized(frames: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Frames [F, 3, H, W] scaled to cover `height` x `width`, bilinear, and cropped to it."""
    rows, columns = frames.shape[2:]
    if (rows, columns) == (height, width):
        return frames
    ratio = max(height / rows, width / columns)
    # At least what is asked for: a product of floats may fall a hair short of it.
    size = (max(int(rows * ratio), height), max(int(columns * ratio), width))
    scaled = torch.nn.functional.interpolate(frames, size=size, mode="bilinear")
    top, left = (size[0] - height) // 2, (size[1] - width) // 2
    return scaled[:, :, top : top + height, left : left + width]
