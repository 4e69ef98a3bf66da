"""How a metric is declared, before there is a registry to hold it."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

REQUEST_BUCKETS: Final = (
    0.01, 0.05, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0,
)  # fmt: skip
"""Seconds; the upper bounds that other servers of this kind use, so that dashboards carry over."""
STAGE_BUCKETS: Final = (0.001, 0.005, *REQUEST_BUCKETS)
HTTP_BUCKETS: Final = (0.001, 0.0025, 0.005, *REQUEST_BUCKETS)

Type = Literal["counter", "gauge", "histogram"]


class Declared(NamedTuple):
    """One metric: its name, type, what it says, its labels, and a histogram's upper bounds."""

    name: str
    type: Type
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
