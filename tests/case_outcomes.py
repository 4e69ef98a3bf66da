"""What a run of `sgld generate` gave, and what is in the files that it wrote."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av


class Outcome:
    """What one run of `sgld generate` gave."""

    def __init__(self, code: int, out: str, err: str, seconds: float) -> None:
        self.code, self.out, self.err, self.seconds = code, out, err, seconds

    @property
    def events(self) -> list[dict[str, Any]]:
        """The JSON lines on standard output."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def first(self) -> dict[str, Any]:
        """The only event."""
        assert self.code == 0, self.err
        (event,) = self.events
        return event

    def refuses(self, *words: str) -> None:
        """Exit 2 with the words in readable lines, and nothing written."""
        assert self.code == 2, (self.out, self.err)
        assert all(line.startswith("error: ") for line in self.err.splitlines()), self.err
        for word in words:
            assert word in self.err
        assert not Path("outputs").exists()


Generate = Callable[..., Outcome]


def decoded(path: str | Path) -> tuple[int, int, int]:
    """Width, height and number of the frames that a file decodes to."""
    with av.open(str(path)) as container:
        frames = list(container.decode(video=0))
    return frames[0].width, frames[0].height, len(frames)
