"""Where in time a frame stands for its rotary embedding. Needs no torch.

A model family picks one: keys are rotated before they are cached (`Absolute`, `ShotOffset`), or
cached as they are and rotated when they are read (`AtRead`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from sgld.causal.policies import Frame


class Positions(ABC):
    """A rule of temporal positions. `repr` names the settings: equal ones, equal text."""

    @abstractmethod
    def place(self, index: int, shot: int) -> float:
        """Position of frame `index` of scene `shot` when it is generated."""

    def seen(self, frames: Sequence[Frame]) -> tuple[float, ...]:
        """Positions of the frames that a chunk sees, its own included, all in order of time."""
        return tuple(frame.position for frame in frames)


@dataclass(frozen=True)
class Absolute(Positions):
    """The absolute frame index, for ever: the distance to a sink grows without bound."""

    def place(self, index: int, shot: int) -> float:
        return float(index)


@dataclass(frozen=True)
class ShotOffset(Positions):
    """The absolute index, and `phi` more for each scene; fractions are fine. Keys that are cached
    keep the position of their own scene.

    Args:
        phi: frames between two scenes.
    """

    phi: float

    def place(self, index: int, shot: int) -> float:
        return index + shot * self.phi


@dataclass(frozen=True)
class AtRead(Positions):
    """0, 1, 2, ... in order of time over what is seen, the chunk itself last. Keys are cached
    without rotation, and rotated anew at every read."""

    def place(self, index: int, shot: int) -> float:
        return float(index)

    def seen(self, frames: Sequence[Frame]) -> tuple[float, ...]:
        return tuple(map(float, range(len(frames))))
