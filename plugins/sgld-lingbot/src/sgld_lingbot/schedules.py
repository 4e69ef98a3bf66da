"""How LingBot World is sampled: steps, noise levels, chunks and what of the past is seen.

Public sources disagree here, so all of it is configuration. In falling order: what a request says;
a recipe that it names; the checkpoint's own files; `FALLBACK`. No torch here.

    tables    `self-forcing`: noise levels of step D from the warped table 1, 0.999, …, 0.001;
              its time is 1000 times the level.
              `unipc`: the table of the published script, 0.999, 0.998001, …, with times cut to
              whole numbers. Levels are looked up by time there, and neighbours share a time: a
              prediction is read at the first of them, noise is added at the second.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple, get_args

TRAIN_STEPS: Final = 1000
FIRST_LEVEL: Final = 0.999
"""Where the published script's table begins."""

Table = Literal["self-forcing", "unipc"]
TABLES: Final[tuple[str, ...]] = get_args(Table)

V1_STEPS: Final = (1000, 821, 642, 321)
V2_STEPS: Final = (1000, 750, 500, 250)


class Recipe(NamedTuple):
    """One public way to run a model.

    Args:
        steps: the training steps that it was distilled for, falling.
        shift: of the table.
        table: which one.
        chunk: latent frames of a chunk.
        window: latent frames that attention sees at most, sink and chunk included.
        sink: first latent frames that are always seen.
    """

    steps: tuple[int, ...]
    shift: float
    table: Table
    chunk: int
    window: int
    sink: int


V1: Final = Recipe(V1_STEPS, 10.0, "self-forcing", 3, 18, 9)
V2: Final = Recipe(V2_STEPS, 5.0, "self-forcing", 3, 18, 9)
RECIPES: Final[Mapping[str, Recipe]] = {
    "v1": V1,
    "v1-long": V1._replace(window=45, sink=3),
    "v1-script": V1._replace(table="unipc"),
    "v2": V2,
    "v2-long": V2._replace(window=45, sink=3),
    "v2-script": Recipe(V2_STEPS, 10.0, "unipc", 4, 18, 6),
}
"""`-script` is what the publisher's script runs, `-long` sees more of the past for more memory."""
FALLBACK: Final = V2


class Schedule(NamedTuple):
    """The numbers of each step.

    Args:
        times: what the network is told.
        clean: noise level by which a prediction becomes clean latents.
        noisy: noise level that latents are brought to before the step.
    """

    times: tuple[float, ...]
    clean: tuple[float, ...]
    noisy: tuple[float, ...]


def make_schedule(steps: Sequence[int], shift: float, table: Table) -> Schedule:
    """The numbers for a falling list of training steps, 1000 (pure noise) to 1."""
    if table == "self-forcing":
        levels = tuple(_warp(step / TRAIN_STEPS, shift) for step in steps)
        return Schedule(tuple(TRAIN_STEPS * level for level in levels), levels, levels)
    warped = [_warp(FIRST_LEVEL * (1 - k / TRAIN_STEPS), shift) for k in range(TRAIN_STEPS)]
    whole = [math.floor(TRAIN_STEPS * level) for level in warped]
    times = [whole[TRAIN_STEPS - step] for step in steps]
    firsts = [whole.index(time) for time in times]
    seconds = [
        first + 1 if whole[first + 1 : first + 2] == [time] else first
        for first, time in zip(firsts, times, strict=True)
    ]
    return Schedule(
        tuple(map(float, times)),
        tuple(warped[index] for index in firsts),
        tuple(warped[index] for index in seconds),
    )


def _warp(level: float, shift: float) -> float:
    # Rounding may lead past pure noise.
    return min(1.0, shift * level / (1 + (shift - 1) * level))
