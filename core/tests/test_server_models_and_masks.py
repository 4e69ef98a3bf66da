"""Which model a body asks for, and the pictures and masks that come with it."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image
from server_bodies import (
    CLIPS,
    EDITS,
    KIND,
    PICTURE_CLIPS,
    PICTURES,
    PNG,
    WholeEdits,
    facts,
    prepare,
    refused,
)

from sgld.api.errors import SgldError
from sgld.params.server import ServerOptions
from sgld.server.bodies import Kind, Limits
from sgld.server.errors import check_task, envelope

# Models and pictures -----------------------------------------------------------------------------


@KIND
def test_the_model_must_be_the_served_one(kind: Kind) -> None:
    assert prepare(kind, {"model": "toy"}).warnings == []
    with pytest.raises(SgldError) as caught:
        prepare(kind, {"model": "dall-e-3", "n": 0})
    status, body = envelope(caught.value)
    assert status == 404
    assert (body["error"]["code"], body["error"]["param"]) == ("model_not_found", "model")
    assert "'toy'" in body["error"]["message"]


def test_which_routes_a_model_serves() -> None:
    assert set(PICTURES.routes) == {"image"}
    assert set(EDITS.routes) == {"image", "edit"}
    assert CLIPS.routes == {"video": "/v1/videos"}
    with pytest.raises(SgldError, match="POST /v1/videos"):
        check_task(CLIPS, "image")


def test_pictures_are_counted_under_the_names_of_the_api() -> None:
    error = refused("edit", {"image": None})
    assert (error["param"], error["code"]) == ("image", "missing_parameter")
    error = refused("edit", {"image": [PNG] * 3})
    assert error["param"] == "image"
    assert "takes 2" in error["message"]
    error = refused("video", {}, served=PICTURE_CLIPS)
    assert (error["param"], error["code"]) == ("input_reference", "missing_parameter")
    error = refused("video", {"input_reference": PNG})
    assert (error["param"], error["code"]) == ("input_reference", "unsupported_parameter")
    assert prepare("video", {"input_reference": PNG}, served=PICTURE_CLIPS).prepared.seeds


def encoded(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def strokes(mode: str) -> bytes:
    """The same mask in several modes: the left half may change."""
    pixels = np.zeros((64, 64), np.uint8)
    pixels[:, :32] = 255
    if mode == "RGBA":
        alpha = 255 - pixels
        return encoded(Image.fromarray(np.dstack([pixels * 0] * 3 + [alpha]), "RGBA"))
    image = Image.fromarray(pixels)
    return encoded(image.point(lambda v: v > 0, "1") if mode == "1" else image.convert(mode))


PICTURE = [np.full((64, 64, 3), 9, np.uint8)]


@pytest.mark.filterwarnings("ignore:.*mode.*parameter:DeprecationWarning")
@pytest.mark.parametrize("mode", ["RGBA", "L", "1", "RGB"])
def test_masks_of_all_kinds_mean_the_same(mode: str) -> None:
    from sgld.server.masks import check_mask

    mask = check_mask(strokes(mode), (64, 64))
    assert mask[:, :32].all()
    assert not mask[:, 32:].any()
    request = prepare("edit", {}, mask=strokes(mode), images=PICTURE)
    assert np.array_equal(request.mask, mask)
    assert prepare("edit", {}, images=PICTURE).mask is None


def test_a_mask_is_refused_where_it_would_do_nothing() -> None:
    served = facts(WholeEdits, "image-to-image")
    error = refused("edit", {}, mask=b"not looked at", served=served)
    assert (error["param"], error["code"]) == ("mask", "unsupported_parameter")
    assert "whole picture" in error["message"]


@pytest.mark.parametrize(
    "mask",
    [b"", b"no picture", encoded(Image.new("L", (64, 64), 0)),
     encoded(Image.new("L", (64, 64), 255)), encoded(Image.new("RGBA", (64, 64))),
     encoded(Image.new("RGBA", (64, 64), (0, 0, 0, 255))), strokes("L")[:-40]],
)  # fmt: skip
def test_wrong_masks(mask: bytes) -> None:
    assert refused("edit", {}, mask=mask, images=PICTURE)["param"] == "mask"


def test_a_mask_of_another_size_is_refused() -> None:
    error = refused("edit", {}, mask=strokes("L"), images=[np.zeros((32, 64, 3), np.uint8)])
    assert error["param"] == "mask"
    assert "64x32" in error["message"]


def test_limits_come_from_the_options() -> None:
    options = ServerOptions(max_body_mib=3, max_pixels=4096, max_frames=5, profile="traces")
    limits = Limits.of(options)
    assert limits.max_body_bytes == 3 * 2**20
    assert (limits.max_pixels, limits.max_frames, limits.allow_profile) == (4096, 5, True)
    assert limits.as_dict()["max_pixels"] == 4096


def test_validation_needs_no_torch() -> None:
    import subprocess
    import sys

    code = (
        "import sys, sgld.server.parameters, sgld.media.fetch;"
        "sys.exit(any(name in sys.modules for name in ('torch', 'diffusers', 'transformers')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
