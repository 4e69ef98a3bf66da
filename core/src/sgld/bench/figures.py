"""From the times at which chunks arrived to rates and latencies. Pure arithmetic.

Times are seconds of one clock that only goes forward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np


class Arrival(NamedTuple):
    """One chunk as it came.

    Args:
        index: of the chunk, as the server counts.
        event_id: newest event that the chunk has seen; None: none with an id.
        frames: how many it has.
        first: when the last byte of its first frame had come.
        last: when the last byte of its last frame had come.
        payload_bytes: of all its frames, as sent.
        stats: its `chunk_stats`.
    """

    index: int
    event_id: int | None
    frames: int
    first: float
    last: float
    payload_bytes: int
    stats: Mapping[str, Any]


class Key(NamedTuple):
    """An event that was sent, and when."""

    event_id: int
    sent: float


class Spread(NamedTuple):
    """A row of values in a few numbers, in the unit of the values."""

    count: int
    median: float
    p90: float
    least: float
    most: float


def spread(values: Sequence[float]) -> Spread | None:
    """Median, 90th percentile (between ranks: linear) and extremes; None of nothing."""
    if not values:
        return None
    median, p90 = np.quantile(np.asarray(values, np.float64), [0.5, 0.9])
    return Spread(len(values), float(median), float(p90), min(values), max(values))


def answer(key: Key, chunks: Sequence[Arrival]) -> Arrival | None:
    """The first chunk that has seen an event: its `event_id` is that of the event or of a later
    one. None: no such chunk came. Chunks that arrived before the event was sent cannot have seen
    it, whatever they carry."""
    for chunk in chunks:
        if chunk.event_id is not None and chunk.event_id >= key.event_id and chunk.first > key.sent:
            return chunk
    return None


def latencies(keys: Sequence[Key], chunks: Sequence[Arrival]) -> list[float]:
    """Seconds from sending each event to the first frame that shows it; unanswered ones are left
    out."""
    found = ((key, answer(key, chunks)) for key in keys)
    return [chunk.first - key.sent for key, chunk in found if chunk is not None]


def gaps(begin: float, chunks: Sequence[Arrival]) -> list[float]:
    """Seconds from one chunk's end to the next one's; the first counts from `begin`."""
    ends = [begin, *(chunk.last for chunk in chunks)]
    return [after - before for before, after in pairwise(ends)]


def rate(begin: float, chunks: Sequence[Arrival]) -> float:
    """Frames per second from `begin`, the end of the chunk before, to the end of the last one.

    Raises ValueError without a chunk or where no time has passed.
    """
    if not chunks or chunks[-1].last <= begin:
        raise ValueError("a rate needs a chunk that took time")
    return sum(chunk.frames for chunk in chunks) / (chunks[-1].last - begin)


def press_times(turn: int, chunk_seconds: float) -> float:
    """How long after a chunk's end the next key is pressed, in seconds.

    Keys fall evenly on all moments of a chunk, in an order that repeats with no period (multiples
    of the golden ratio), since how long a key waits depends on when in a chunk it comes.
    """
    golden = (5**0.5 - 1) / 2
    return (turn * golden % 1.0) * chunk_seconds
