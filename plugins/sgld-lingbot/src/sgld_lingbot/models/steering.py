"""The camera of one generation as a part of its state."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch

from sgld.causal.cache import Part
from sgld.causal.errors import SnapshotError, StateError
from sgld_lingbot.models.camera import Matrix, Track, walk
from sgld_lingbot.models.dit import ChunkCamera


class Steering(Part):
    """Where the camera stands, and what the network made of it for the present chunk.

    `steer` moves it; the chunk's commit makes that final, so a chunk that is steered again before
    it starts from the same place. Chunks without keys leave it where it is.

    Args:
        undo: how many chunks `rollback` can take back.
    """

    def __init__(self, undo: int = 0) -> None:
        self.undo = undo
        self.condition: ChunkCamera | None = None
        """What the forwards of this chunk are given; stays until the next chunk has its own."""
        self._stands = Track.start()
        self._moved: Track | None = None
        self._past: deque[Track] = deque(maxlen=undo)

    def steer(self, levels: Sequence[Sequence[str]]) -> Matrix:
        """What a chunk with these keys is told, one step [4, 4] per latent frame."""
        moves, self._moved = walk(self._stands, levels)
        return moves

    @property
    def track(self) -> Track:
        """Where the camera stood after the last committed chunk."""
        return self._stands

    def commit(self) -> None:
        self._past.append(self._stands)
        self._stands, self._moved = self._moved or self._stands, None

    def rollback(self, chunks: int) -> None:
        if not 0 <= chunks <= len(self._past):
            raise StateError(
                f"chunks={chunks}: {len(self._past)} are remembered.", code="not_remembered"
            )
        for _ in range(chunks):
            self._stands = self._past.pop()
        self._moved = self.condition = None

    def fork(self) -> Self:
        other = type(self)(self.undo)
        other._stands = self._stands
        other._past.extend(self._past)
        return other

    def dump(self) -> tuple[Mapping[str, Any], Mapping[str, torch.Tensor]]:
        # Python writes a float64 so that reading gives the same bits.
        track = self._stands._asdict()
        return {**track, "pose": track["pose"].tolist()}, {}

    def load(self, values: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
        try:
            pose = np.array(values["pose"], dtype=np.float64)
            numbers = float(values["pitch"]), float(values["longest"]), int(values["frames"])
        except (KeyError, TypeError, ValueError) as error:
            raise _mismatch(str(error)) from error
        if tensors or pose.shape != (4, 4) or not np.isfinite([*pose.flat, *numbers]).all():
            raise _mismatch("it is no pose with pitch, longest step and count")
        self.reset()
        self._stands = Track(pose, *numbers)

    def reset(self) -> None:
        self._stands, self._moved, self.condition = Track.start(), None, None
        self._past.clear()

    def nbytes(self) -> int:
        condition = self.condition
        return 0 if condition is None else condition.nbytes()

    def free(self) -> None:
        self.condition = None


def _mismatch(reason: str) -> SnapshotError:
    return SnapshotError(
        f"the camera of this snapshot cannot be read: {reason}.", code="snapshot_mismatch"
    )
