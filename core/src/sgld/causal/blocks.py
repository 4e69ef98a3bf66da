"""How a clip is cut into chunks of latent frames. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Self


class Chunk(NamedTuple):
    """One chunk: which latent frames it is made of.

    Args:
        index: number of the chunk, from 0.
        first: absolute index of its first latent frame, from 0.
        frames: its latent frames.
    """

    index: int
    first: int
    frames: int


class BlockPlan(NamedTuple):
    """Chunk sizes of one generation.

    Args:
        size: latent frames of an ordinary chunk, 1 or more.
        first: latent frames of chunk 0; 0: like the others. 1 is an independent first frame.
        total: latent frames in all; 0: endless. The last chunk is shorter when they do not come
            out even.

    Every method raises ValueError for sizes that make no plan.
    """

    size: int
    first: int = 0
    total: int = 0

    @classmethod
    def remainder_first(cls, size: int, total: int) -> Self:
        """For models whose chunks must not be short: what does not come out even is part of chunk
        0, which has size to 2 · size - 1 frames (fewer if `total` is less than a chunk)."""
        plan = cls(size, 0, total)
        plan.check()
        return plan._replace(first=size + total % size if total > size else total)

    def check(self) -> None:
        """Raise ValueError for sizes that make no plan."""
        if self.size < 1 or self.first < 0 or self.total < 0:
            raise ValueError(f"{self}: chunks have 1 frame or more, and nothing is negative")

    @property
    def head(self) -> int:
        """Latent frames of chunk 0, were `total` not shorter."""
        return self.first or self.size

    @property
    def count(self) -> int:
        """How many chunks; 0 for an endless plan."""
        self.check()
        if not self.total:
            return 0
        return 1 - (-max(0, self.total - self.head) // self.size)

    def chunk(self, index: int) -> Chunk:
        """Chunk `index`. Raises IndexError past the end."""
        self.check()
        first = 0 if index <= 0 else self.head + (index - 1) * self.size
        frames = self.head if index == 0 else self.size
        if index < 0 or (self.total and first >= self.total):
            raise IndexError(f"chunk {index} of {self}")
        if self.total:
            frames = min(frames, self.total - first)
        return Chunk(index, first, frames)

    def chunks(self) -> Iterator[Chunk]:
        """Every chunk in order; endless for an endless plan."""
        index = 0
        while True:
            try:
                chunk = self.chunk(index)
            except IndexError:
                return
            yield chunk
            index += 1

    def chunk_at(self, frame: int) -> Chunk:
        """The chunk that latent frame `frame` is part of. Raises IndexError past the end."""
        self.check()
        if frame < 0:
            raise IndexError(f"frame {frame} of {self}")
        chunk = self.chunk(0 if frame < self.head else 1 + (frame - self.head) // self.size)
        if frame >= chunk.first + chunk.frames:
            raise IndexError(f"frame {frame} of {self}")
        return chunk

    @property
    def even(self) -> bool:
        """Whether no chunk is short; so for an endless plan."""
        return not self.total or self.round_frames(self.total) == self.total

    def round_frames(self, frames: int, *, up: bool = True) -> int:
        """The nearest number of latent frames, not less than `frames` (not more with `up=False`,
        but at least chunk 0), that whole chunks make up."""
        self.check()
        over = max(0, frames - self.head)
        whole = -(-over // self.size) if up else over // self.size
        return self.head + whole * self.size
