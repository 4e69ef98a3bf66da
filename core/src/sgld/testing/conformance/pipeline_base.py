"""What the parts of the pipeline contract share: what an author says, and how outputs compare."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from sgld.messages import Output
from sgld.testing.conformance.base import Contract, expect


class OfPipeline(Contract):
    """Base of the parts of the pipeline contract.

    Args:
        pipeline: its id.
        params: parameters of every test request, over those of the smallest request.
        options: options of every load, as in `sgld.load`.
        pictured: parameters of requests with an input picture, where it has to show.
        guided: parameters that switch classifier-free guidance on.
        streamed: component or residency group whose layers `layerwise-offload` can stream.
        resized: parameters of a request of another size; by default one twice as wide.
        tiled: parameters of a request that is large enough for `--vae-tiling` to cut it.
    """

    kind: ClassVar[str] = "pipeline"
    named_by: ClassVar[str] = "pipeline"
    told: ClassVar[tuple[str, ...]] = (
        "pipeline", "params", "options", "pictured", "guided", "streamed", "resized", "tiled",
    )  # fmt: skip
    pipeline: ClassVar[str] = ""
    params: ClassVar[Mapping[str, Any]] = {}
    options: ClassVar[Mapping[str, Any]] = {}
    pictured: ClassVar[Mapping[str, Any]] = {}
    guided: ClassVar[Mapping[str, Any]] = {"guidance_scale": 4.0}
    streamed: ClassVar[str] = "dit"
    resized: ClassVar[Mapping[str, Any]] = {}
    tiled: ClassVar[Mapping[str, Any]] = {}


def same_bits(left: Output, right: Output) -> str:
    """How two outputs differ, or an empty string."""
    for name, mine, other in (
        ("latents", left.latents, right.latents),
        ("frames", left.frames, right.frames),
    ):
        if mine is None or other is None:
            continue
        if mine.shape != other.shape:
            return f"{name} {list(mine.shape)} and {list(other.shape)}"
        if not np.array_equal(mine, other):
            apart = np.abs(mine.astype(np.float64) - other.astype(np.float64))
            return f"{name} that differ by up to {apart.max():.3g} in {np.mean(apart > 0):.0%}"
    return ""


def expect_same(left: Output, right: Output, *, what: str, remedy: str) -> None:
    """Fail unless two outputs are the same to the bit."""
    __tracebackhide__ = True
    got = same_bits(left, right)
    expect(not got, expected=f"{what}: the same to the bit", got=got, remedy=remedy)


def expect_other(left: Output, right: Output, *, what: str, remedy: str) -> None:
    """Fail when two outputs are the same to the bit."""
    __tracebackhide__ = True
    got = same_bits(left, right)
    expect(got, expected=f"{what}: another result", got="the very same bits", remedy=remedy)
