"""Numbers of the scene: what a look means in colours, fog and heights, frame by frame.

A frame is drawn from a row of `SIZE` numbers (`row`), a camera and the seed of the world. A new
look is blended in over the first frames of a chunk; all numbers, also the pillars' height, go
along.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from demo_world.looks import ALL, Look

HEIGHT: Final = 96
WIDTH: Final = 160
FIELD: Final = 75.0
"""Degrees seen from left to right."""
EYE: Final = 0.62
STEPS: Final = 26
"""Cells that a ray looks at."""
SUNK: Final = 0.6
WHOLE: Final = 1.5
"""Pillars sink where one walks: at `SUNK` cells from the middle they are gone, from `WHOLE` on they
stand. So nothing is ever walked through, and no wall fills the picture."""
SUN: Final = (math.sin(0.7), math.cos(0.7))
"""Where the sun stands, on the ground."""

# Where each number stands in a row.
SKY_TOP, SKY_LOW, SUN_COLOUR, SUN_POWER, LIGHT = 0, 3, 6, 9, 10
GROUND_A, GROUND_B, PILLAR_A, PILLAR_B = 13, 16, 19, 22
FOG, SCALE, SUN_SIN, HILLS = 25, 26, 27, 28
SIZE: Final = 32

Rgb = tuple[float, float, float]

_TIME: Final = {
    #        sky: top, low                       sun, light                        sine, power
    "day": ((0.20, 0.44, 0.86), (0.74, 0.86, 0.97), (1.0, 0.95, 0.78), (1.0, 0.99, 0.96), 0.42, 1),
    "dusk": ((0.24, 0.20, 0.46), (0.98, 0.56, 0.30), (1.0, 0.72, 0.3), (0.95, 0.75, 0.66), 0.15, 1),
    "night": ((0.02, 0.03, 0.12), (0.16, 0.19, 0.38), (0.9, 0.93, 1), (0.5, 0.56, 0.74), 0.36, 0.8),
}  # fmt: skip
_PALETTE: Final = {
    #        ground, two squares                 pillars, from one to the other
    "warm": ((0.86, 0.68, 0.46), (0.54, 0.35, 0.24), (0.74, 0.26, 0.18), (0.95, 0.72, 0.34)),
    "cold": ((0.66, 0.77, 0.86), (0.33, 0.45, 0.62), (0.20, 0.34, 0.70), (0.58, 0.84, 0.88)),
    "mono": ((0.78, 0.78, 0.78), (0.45, 0.45, 0.45), (0.30, 0.30, 0.30), (0.80, 0.80, 0.80)),
}


def _mix(a: Rgb, b: Rgb, share: float) -> Rgb:
    return tuple(x + (y - x) * share for x, y in zip(a, b, strict=True))  # type: ignore


def row(look: Look) -> list[float]:
    """The numbers of a look, without the hills, which belong to the world."""
    top, low, sun, light, sine, power = _TIME[look.time]
    fog = 0.12
    if look.weather == "fog":
        fog, power = 0.32, power * 0.3
        grey: Rgb = (sum(low) / 3,) * 3
        low = _mix(low, grey, 0.6)
        top = _mix(top, low, 0.75)
    one, two, first, last = _PALETTE[look.palette]
    scale = 1.0 if look.shape == "tall" else 0.30
    numbers = [*top, *low, *sun, power, *light, *one, *two, *first, *last, fog, scale, sine]
    return numbers + [0.0] * (SIZE - len(numbers))


def table() -> Tensor:
    """The rows of all looks, [36, SIZE], in the order of `looks.ALL`."""
    return torch.tensor([row(look) for look in ALL])


def hills(seed: Tensor) -> Tensor:
    """Shape of the mountains of each world, [B, 4] in about -1..1."""
    phases = torch.stack([seed.double() * 0.61803, seed.double() * 0.41421], -1) % 1 * math.tau
    return torch.cat([phases.sin(), phases.cos()], -1).float()


def blend(looks: Tensor, begin: Tensor, seed: Tensor, rows: Tensor, chunk: int = 3) -> Tensor:
    """The rows of a clip's frames, [B, 12·chunks - 3, SIZE].

    Args:
        looks: which look each chunk has, [B, chunks], places in `looks.ALL`.
        begin: the look of the very first frame, [B]; chunk 0 changes from it to its own.
        seed: of the worlds, [B].
        rows: `table()`, on the device that the result shall be on.
        chunk: latent frames of a chunk.
    """
    looks, begin = looks.to(rows.device), begin.to(rows.device)
    frames = 4 * chunk
    before = rows[torch.cat([begin[:, None], looks[:, :-1]], 1)][:, :, None]
    after = rows[looks][:, :, None]
    numbers = before + (after - before) * weights(frames, frames - 2).to(rows.device)[:, None]
    first = before[:, 0] + (after - before)[:, 0] * _first_weights(frames - 3).to(rows.device)
    numbers = torch.cat([first, numbers[:, 1:].flatten(1, 2)], 1)
    numbers[..., HILLS : HILLS + 4] = hills(seed).to(rows.device)[:, None]
    return numbers


def weights(frames: int, over: int) -> Tensor:
    """How much of the new look each frame of a chunk has: smoothstep over the first `over`."""
    return _smooth((torch.arange(frames) + 1) / over)


def _first_weights(frames: int) -> Tensor:
    return _smooth(torch.arange(frames) / (frames - 1))[:, None]


def _smooth(x: Tensor) -> Tensor:
    x = x.clamp(0, 1)
    return x * x * (3 - 2 * x)


def names(indices: Sequence[int]) -> list[Look]:
    """Looks by their places."""
    return [ALL[index] for index in indices]
