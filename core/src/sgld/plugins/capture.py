"""A bounded place for what foreign code prints: `Head` keeps the beginning and counts the rest."""

from __future__ import annotations

from io import StringIO
from typing import Final

MOST: Final = 4096


class Head(StringIO):
    """Text that remembers its first `MOST` characters, so that a flood costs no memory."""

    def write(self, text: str, /) -> int:
        """Keep what there is room for; says that all was written, as a terminal would."""
        room = MOST - self.tell()
        if room > 0:
            super().write(text[:room])
        return len(text)

    def close(self) -> None:
        """Stays open: what was printed is read when foreign code has closed it as its output."""
