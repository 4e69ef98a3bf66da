"""The bookkeeping of a ring: which frame lies in which slot, and what a chunk sees of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sgld.causal.asking import seen
from sgld.causal.errors import SnapshotError, StateError
from sgld.causal.policies import Frame, Policy
from sgld.causal.positions import Positions


class Run(NamedTuple):
    """Neighbouring slots that hold neighbouring frames of a list."""

    nth: int
    """Place of its first frame in the list."""
    slot: int
    count: int


def runs(slots: Iterable[int]) -> tuple[Run, ...]:
    """A list of slots as stretches that ascend by one."""
    found: list[Run] = []
    for nth, slot in enumerate(slots):
        if found and slot == found[-1].slot + found[-1].count:
            found[-1] = found[-1]._replace(count=found[-1].count + 1)
        else:
            found.append(Run(nth, slot, 1))
    return tuple(found)


class Sight(NamedTuple):
    """What every layer sees.

    Args:
        runs: stretches of slots, ascending.
        positions: temporal position per frame, in the order of the slots.
        query: temporal positions of the open chunk.
    """

    runs: tuple[Run, ...]
    positions: tuple[float, ...]
    query: tuple[float, ...]


class Books(NamedTuple):
    """Which frames are kept; a value, replaced as a whole.

    Args:
        kept: in order of time.
        slots: frame index → slot.
        next_frame: absolute index that the next chunk begins with.
        shot: scene of the newest chunk; None before the first.
    """

    kept: tuple[Frame, ...] = ()
    slots: Mapping[int, int] = {}
    next_frame: int = 0
    shot: int | None = None

    def without(self, gone: Collection[int]) -> Books:
        """Some frames forgotten."""
        if not set(gone) <= self.slots.keys():
            raise StateError("the policy drops frames that are not kept.")
        kept = tuple(frame for frame in self.kept if frame.index not in gone)
        return self._replace(kept=kept, slots={f.index: self.slots[f.index] for f in kept})

    def coming(self, frames: int, shot: int, rule: Positions) -> tuple[Frame, ...]:
        """Records of the next `frames` frames, of scene `shot`."""
        opens = self.shot is not None and self.shot != shot
        indices = range(self.next_frame, self.next_frame + frames)
        return tuple(
            Frame(index, shot, nth, opens, rule.place(index, shot))
            for nth, index in enumerate(indices)
        )

    def extended(self, chunk: Sequence[Frame], capacity: int) -> Books:
        """With `chunk` in the lowest free slots; they are there."""
        free = sorted(set(range(capacity)) - set(self.slots.values()))
        slots = {**self.slots, **{f.index: slot for f, slot in zip(chunk, free, strict=False)}}
        following = self.next_frame + len(chunk)
        return Books((*self.kept, *chunk), slots, following, chunk[0].shot)

    def sight(self, chunk: Sequence[Frame], policy: Policy, rule: Positions) -> Sight:
        """What `chunk`, which is kept, sees; without a chunk: everything."""
        before: Sequence[Frame] = self.kept
        if chunk:
            before = [frame for frame in self.kept if frame.index < chunk[0].index]
            before = seen(policy, before, chunk)
        sighted = (*before, *chunk)
        places = rule.seen(sighted)
        rows = sorted(zip((self.slots[f.index] for f in sighted), places, strict=True))
        stretches = runs(slot for slot, _ in rows)
        query = places[len(places) - len(chunk) :]
        return Sight(stretches, tuple(place for _, place in rows), query)

    def write(self, made: Mapping[str, Any]) -> dict[str, Any]:
        """As JSON values, with what the cache was made with."""
        frames = [[*frame, self.slots[frame.index]] for frame in self.kept]
        place = {"next_frame": self.next_frame, "shot": self.shot}
        return {"made": dict(made), "frames": frames, **place}

    @classmethod
    def read(cls, values: Mapping[str, Any], made: Mapping[str, Any], capacity: int) -> Books:
        """Read what `write` gave, for a cache made with `made`.

        Raises `SnapshotError` when the cache is another one, or a value cannot be.
        """
        check_made("the cache", values.get("made"), made)
        try:
            rows = [_row(row) for row in values["frames"]]
            following, shot = whole(values["next_frame"]), values["shot"]
            shot = None if shot is None else whole(shot)
        except (KeyError, TypeError, ValueError) as error:
            raise SnapshotError(f"the cache's list of frames cannot be read: {error}.") from error
        kept = tuple(frame for frame, _ in rows)
        slots = {frame.index: slot for frame, slot in rows}
        order = [frame.index for frame in kept]
        apart = len(set(slots.values())) == len(rows) and all(s < capacity for s in slots.values())
        if order != sorted(set(order)) or not apart or (order and order[-1] >= following):
            raise SnapshotError("the cache's list of frames contradicts itself.")
        return cls(kept, slots, following, shot)


def check_made(what: str, given: Any, made: Mapping[str, Any]) -> None:
    """Raise `SnapshotError` naming every setting in which a dump differs."""
    if given == made:
        return
    given = given if isinstance(given, Mapping) else {}
    rows = [
        f"{name} is {given.get(name)!r} there and {value!r} here"
        for name, value in made.items()
        if given.get(name) != value
    ]
    raise SnapshotError(
        f"{what} was made otherwise: {'; '.join(rows) or 'unknown settings'}.",
        code="snapshot_mismatch",
        remedy="Restore it with the model and settings that wrote it.",
    )


def whole(value: Any) -> int:
    """A count from a dump; raises ValueError for anything else."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is no count")
    return value


def _row(row: Any) -> tuple[Frame, int]:
    index, shot, nth, opens, position, slot = row
    if not isinstance(opens, bool) or not isinstance(position, int | float):
        raise ValueError(f"{row!r} is no frame")
    frame = Frame(whole(index), whole(shot), whole(nth), opens, float(position))
    return frame, whole(slot)
