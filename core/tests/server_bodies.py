"""Families that a server could serve, and requests to them from a body on."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest

from sgld.api.errors import SgldError
from sgld.params.merge import Layer
from sgld.params.options import option
from sgld.params.sampling import Guided, ImageParams, SamplingParams, TakesImage, VideoParams
from sgld.server.bodies import Kind, Limits, make_body
from sgld.server.errors import envelope
from sgld.server.forms import UploadedFile
from sgld.server.parameters import ModelFacts, PreparedRequest, prepare_request


class Pictures(Guided, ImageParams):
    """A small family of pictures."""

    width: int = option(64, "Width.", ge=1, le=100_000)
    height: int = option(64, "Height.", ge=1, le=100_000)
    num_inference_steps: int = option(4, "Denoising steps.", unit="steps", ge=1, le=1000)


class Edits(TakesImage, Pictures):
    """The same from pictures."""

    max_images: ClassVar[int] = 2
    size_from_image: ClassVar[bool] = True
    takes_mask: ClassVar[bool] = True


class WholeEdits(Edits):
    """The same without masks."""

    takes_mask: ClassVar[bool] = False


class Clips(Guided, VideoParams):
    """A small family of clips."""

    width: int = option(64, "Width.", ge=1, le=100_000)
    height: int = option(64, "Height.", ge=1, le=100_000)
    num_frames: int = option(9, "Frames.", ge=1, le=100_000)


class PictureClips(TakesImage, Clips):
    """Clips that start from a picture."""

    needs_image: ClassVar[bool] = True
    size_from_image: ClassVar[bool] = True


def facts(cls: type[SamplingParams], *tasks: str, **preset: Any) -> ModelFacts:
    return ModelFacts("toy", "toy", cls, Layer("preset", preset, source="toy"), tasks)


PICTURES = facts(Pictures, "text-to-image", num_inference_steps=6)
EDITS = facts(Edits, "text-to-image", "image-to-image")
CLIPS = facts(Clips, "text-to-video", fps=8)
PICTURE_CLIPS = facts(PictureClips, "image-to-video")
SERVED: dict[str, ModelFacts] = {"image": PICTURES, "edit": EDITS, "video": CLIPS}
LIMITS = Limits(max_pixels=65536, max_prompt=100)
PNG = "data:image/png;base64,AAAA"


def prepare(
    kind: Kind,
    value: dict[str, Any],
    *,
    form: bool = False,
    served: ModelFacts | None = None,
    limits: Limits = LIMITS,
    mask: bytes | None = None,
    images: list[np.ndarray] | None = None,
) -> PreparedRequest:
    value = {"prompt": "a lamp", **value}
    if kind == "edit" and "image" not in value:
        value["image"] = PNG
    files = {"mask": [UploadedFile("mask", mask)]} if mask is not None else {}
    body = make_body(kind, value, files, limits, form=form)
    return prepare_request(kind, body, served or SERVED[kind], limits, images)


def refused(kind: Kind, value: dict[str, Any], **options: Any) -> dict[str, Any]:
    """The envelope of a request that must be refused with 400."""
    with pytest.raises(SgldError) as caught:
        prepare(kind, value, **options)
    status, body = envelope(caught.value)
    assert status == 400, body
    return body["error"]


def failure(kind: Kind, value: dict[str, Any], **options: Any) -> SgldError | None:
    """The error of a request, or None when it is fine."""
    try:
        prepare(kind, value, **options)
    except SgldError as error:
        return error
    return None


KINDS: tuple[Kind, ...] = ("image", "edit", "video")
KIND = pytest.mark.parametrize("kind", KINDS)
