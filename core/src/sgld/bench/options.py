"""`BenchOptions`: what `sgld bench realtime` measures, and how much of it."""

from __future__ import annotations

from typing import Any, Literal

from sgld.params.options import Finding, Options, Settled, option
from sgld.params.size import parse_size


class BenchOptions(Options):
    """How a measurement runs; every field has a flag."""

    url: str | None = option(
        None,
        "Measure the server that runs at this address, such as ws://127.0.0.1:30000, instead of "
        "one of its own.",
    )
    output: str | None = option(None, "Also write the figures to this file, as JSON.", min_length=1)
    format: Literal["raw", "webp", "jpeg", "h264"] = option("raw", "How frames are sent.")
    sessions: int = option(1, "Sessions that run at once.", unit="sessions", ge=1, le=256)
    chunks: int | None = option(
        None,
        "Chunks of each session that are measured while running free; about 20 seconds' worth "
        "if not given.",
        unit="chunks",
        ge=1,
        le=100_000,
    )
    warm_chunks: int = option(
        4, "Chunks of each session before those.", unit="chunks", ge=1, le=10_000
    )
    step_chunks: int = option(
        8, "Chunks of one session that are made one by one, each for a key; 0 leaves them out.",
        unit="chunks", ge=0, le=100_000,
    )  # fmt: skip
    size: str | None = option(None, "Size of the frames, such as 832x480; the model's own if not "
                              "given.")  # fmt: skip
    first_frame: str | None = option(
        None, "Picture that the world begins with; grey noise if the model needs one and has none."
    )
    patience: float = option(
        600.0, "Give up when the server says nothing for so long.", unit="seconds", ge=1, le=86400
    )

    @classmethod
    def settle(cls, values: dict[str, Any], given: frozenset[str]) -> Settled:
        """A size must be one."""
        size = values.get("size")
        if isinstance(size, str):
            try:
                parse_size(size)
            except ValueError as error:
                return Settled(values, (), (Finding("size", f"{error}."),))
        return Settled(values)
