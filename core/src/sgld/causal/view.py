"""What one layer sees of a cache, and attention over it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

Attend = Callable[..., Tensor]
Rotate = Callable[[Tensor, tuple[float, ...]], Tensor]


class Segment(NamedTuple):
    """A stretch of the cache, both [B, n, heads, head_dim]; slices of it, not copies.

    Packed storage has its place here: a segment that holds codes and scales and unpacks itself for
    the one layer that reads it. There is none yet.
    """

    k: Tensor
    v: Tensor


class View(NamedTuple):
    """The current chunk and the history that it attends to.

    Args:
        segments: in the order of storage, which is not that of time.
        positions: temporal position of every frame, in the order of `segments`.
        query: temporal positions of the current chunk's own frames.
    """

    segments: tuple[Segment, ...]
    positions: tuple[float, ...]
    query: tuple[float, ...]

    @property
    def tokens(self) -> int:
        """Keys in all."""
        return sum(segment.k.shape[1] for segment in self.segments)

    def dense(self) -> Segment:
        """All of it as one segment; a copy only when there are several."""
        if len(self.segments) == 1:
            return self.segments[0]
        return Segment(
            torch.cat([segment.k for segment in self.segments], dim=1),
            torch.cat([segment.v for segment in self.segments], dim=1),
        )


def attend(
    q: Tensor,
    view: View,
    kernel: Attend,
    *,
    scale: float | None = None,
    rotate: Rotate | None = None,
) -> Tensor:
    """softmax(q·kᵀ·scale)·v over everything that `view` shows.

    Softmax does not mind the order of keys, so a ring that is full is one segment and goes to the
    kernel as it lies. Several segments are joined for this one layer: exact with any kernel, and
    cheap beside the attention itself.

    Args:
        q: [B, S, heads, head_dim], rotated already.
        view: from `KvCache.read`.
        kernel: an `attend(q, k, v, *, scale)` op of `sgld.ops`.
        scale: 1/sqrt(head_dim) when None.
        rotate: `(k, positions) -> k` for keys that are cached without rotation; positions are per
            frame, and the tokens of a frame lie together.
    """
    k, v = view.dense()
    if rotate is not None:
        k = rotate(k, view.positions)
    return kernel(q, k, v, scale=scale)
