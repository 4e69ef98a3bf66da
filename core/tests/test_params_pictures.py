"""A family's own rules for input pictures: how many, and of which sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import pytest

from sgld.api.errors import ParameterError
from sgld.params.merge import Layer
from sgld.params.options import Finding
from sgld.params.requests import Prepared, fit_to_images, prepare
from sgld.params.sampling import ImageParams, TakesImage


class Several(TakesImage, ImageParams):
    """Takes three pictures, none of them narrower than 64 pixels."""

    max_images: ClassVar[int] = 3

    @classmethod
    def image_findings(cls, sizes: Sequence[tuple[int, int]]) -> list[Finding]:
        return [
            Finding("image_path", f"{w}x{h} is narrow.", "Widen it.") for w, h in sizes if w < 64
        ]


def asked(count: int, cls: type[ImageParams] = Several) -> Prepared:
    values = {"prompt": "a", "image_path": ["p.png"] * count}
    return prepare(cls, [Layer("call", values)])[0]


def test_every_picture_that_a_family_does_not_take_is_named():
    fine = asked(2)
    assert fit_to_images(fine, [(64, 1), (65, 1)]) == fine
    with pytest.raises(ParameterError) as caught:
        fit_to_images(asked(3), [(63, 10), (64, 10), (1, 20)])
    assert [problem.field for problem in caught.value.problems] == ["image_path"] * 2
    assert "63x10 is narrow. Widen it." in str(caught.value)
    assert "1x20 is narrow." in str(caught.value)


def test_too_many_pictures_say_how_many_are_taken():
    assert asked(3).image_paths == ("p.png",) * 3
    with pytest.raises(ParameterError, match=r"4 pictures .* takes 3\. Give at most 3"):
        asked(4)
