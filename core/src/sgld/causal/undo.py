"""What a ring must remember to go back: the books of a step, and what it has overwritten."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from sgld.causal.books import Books
from sgld.causal.host import to_host
from sgld.causal.slabs import Slabs


@dataclass
class Step:
    """From one commit to the next.

    Args:
        before: the books when it began.
        saved: layer → slot → what lay there before, [2, B, frame tokens, heads, head_dim], on the
            host; never written to again, so forks share it.
        lossy: whether something was overwritten that was not saved.
    """

    before: Books
    saved: dict[int, dict[int, Tensor]] = field(default_factory=dict)
    lossy: bool = False

    def save(self, slabs: Slabs, layer: int, slots: set[int]) -> None:
        """Keep what lies in these slots, unless it is kept already."""
        saved = self.saved.get(layer, {})
        fresh = slots - saved.keys()
        if fresh:
            rows = {slot: to_host(slabs.rows(layer, slot)) for slot in sorted(fresh)}
            self.saved[layer] = {**saved, **rows}

    def restore(self, slabs: Slabs) -> None:
        """Put everything back where it lay."""
        for layer, rows in self.saved.items():
            for slot, row in rows.items():
                slabs.own_rows(layer, slot).copy_(row, non_blocking=True)

    def fork(self) -> Step:
        """A step that later saves of the other do not touch."""
        return Step(self.before, dict(self.saved), self.lossy)

    def nbytes(self) -> int:
        """Host memory held."""
        rows = (row for layer in self.saved.values() for row in layer.values())
        return sum(row.untyped_storage().nbytes() for row in rows)
