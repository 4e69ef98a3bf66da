"""The ring of keys and values of one generation.

Committed frames never move: each has a slot, a chunk takes the lowest free ones, and so the slots
of the frames that were dropped for it. Where a frame lies follows from the history alone, so that
a chunk which is generated again after a rollback, a fork or a restart meets the same storage and
gives the same bits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from sgld.causal.asking import gone
from sgld.causal.books import Books, Run, runs
from sgld.causal.cache import CausalCache
from sgld.causal.errors import SnapshotError, StateError
from sgld.causal.host import synchronize
from sgld.causal.kv_shape import KvShape, kv_bytes, kv_host_bytes
from sgld.causal.policies import Frame, Policy
from sgld.causal.positions import Absolute, Positions
from sgld.causal.slabs import Slabs
from sgld.causal.undo import Step
from sgld.causal.view import Segment, View, attend

__all__ = ["KvCache", "KvShape", "attend", "kv_bytes", "kv_host_bytes"]


class _Open(NamedTuple):
    """The open chunk: its frames, where they lie, and the layers that have been written."""

    frames: tuple[Frame, ...]
    runs: tuple[Run, ...]
    new: bool
    """False: frames that were there already are written anew."""
    over: set[int]
    """Slots that it takes and whose content a rollback would miss."""
    written: set[int]


class KvCache(CausalCache):
    """Keys and values of every layer, for the frames that a policy keeps.

    Args:
        shape: sizes, dtype and device.
        policy: which frames stay and which are seen.
        undo: commits that `rollback` can take back.
        positions: the family's rule of temporal positions; `Absolute` when None.

    All of `kv_bytes(shape, policy)` is allocated at once. Wrong use raises `StateError`.
    """

    def __init__(
        self, shape: KvShape, policy: Policy, undo: int = 0, *, positions: Positions | None = None
    ) -> None:
        self.shape, self.policy, self.undo = shape, policy, undo
        self.position_rule = positions or Absolute()
        self._slabs = Slabs(shape, policy.capacity)
        self._books = Books()
        self._open: _Open | None = None
        self._step: Step | None = None
        self._log: deque[Step] = deque()
        self._look()

    # -- one chunk ------------------------------------------------------------------------------

    def begin(self, frames: int, *, shot: int = 0) -> None:
        """Open a chunk of `frames` new frames of scene `shot`; the policy drops what must go."""
        books = self._settled("begin")
        if frames < 1 or shot < 0:
            raise StateError(f"frames={frames}, shot={shot}: a chunk has 1 frame or more.")
        chunk = books.coming(frames, shot, self.position_rule)
        left = books.without(gone(self.policy, "drop", books.kept, chunk))
        if len(left.kept) + frames > self.policy.capacity:
            raise StateError(
                f"frames={frames}: {len(left.kept)} frames stay, and {self.policy!r} has room for "
                f"{self.policy.capacity}.",
                code="history_full",
                remedy="Take smaller chunks, a larger window or a smaller sink.",
            )
        self._start(left.extended(chunk, self.policy.capacity), chunk, True)

    def reopen(self, frames: Sequence[int]) -> None:
        """Open frames that are kept, to write them anew where they lie: the history before them is
        seen, what came after them is not. For filling a cache again after a change of prompt, from
        the oldest chunk to the newest; close each with `seal`."""
        books = self._settled("reopen")
        wanted = set(frames)
        chunk = tuple(frame for frame in books.kept if frame.index in wanted)
        if not chunk or [frame.index for frame in chunk] != list(frames):
            raise StateError(f"frames={list(frames)}: not kept, or not in order.")
        self._start(books, chunk, False)

    def clean(self) -> None:
        """The clean pass over the open chunk comes next; the policy may forget before it."""
        opened, books = self._opened("clean"), self._books
        if opened.new:
            kept = books.kept[: -len(opened.frames)]
            forgotten = gone(self.policy, "drop_for_clean", kept, opened.frames)
            self._books = books.without(forgotten)
            self._look()

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        """The open chunk's keys and values of one layer, both [B, frames x frame_tokens, heads,
        head_dim]; takes the place of what an earlier forward of this chunk wrote."""
        opened, shape = self._opened("write"), self.shape
        tokens = len(opened.frames) * shape.frame_tokens
        size = (shape.batch, tokens, shape.heads, shape.head_dim)
        if k.shape != size or v.shape != size:
            given = f"k {tuple(k.shape)} and v {tuple(v.shape)}"
            raise StateError(f"layer {layer}: got {given}, the open chunk takes {size}.")
        if opened.over and layer not in opened.written:
            self._save(layer, opened.over)
        for nth, slot, count in opened.runs:
            part = slice(nth * shape.frame_tokens, (nth + count) * shape.frame_tokens)
            rows = self._slabs.own_rows(layer, slot, count)
            rows[0].copy_(k[:, part])
            rows[1].copy_(v[:, part])
        opened.written.add(layer)

    def read(self, layer: int) -> View:
        """What one layer sees: the history that the policy shows and the open chunk, as written.
        Slices of the storage, good until the next `write` or `begin`."""
        if self._open is not None and layer not in self._open.written:
            raise StateError(f"layer {layer} of the open chunk is read before it is written.")
        stretches = (self._slabs.rows(layer, slot, count) for _, slot, count in self._sight.runs)
        segments = tuple(Segment(both[0], both[1]) for both in stretches)
        return View(segments, self._sight.positions, self._sight.query)

    def seal(self) -> None:
        """Freeze the open chunk without an end of the step: one `commit` may cover several chunks,
        which a later rollback takes back together."""
        opened = self._opened("seal")
        missing = self.shape.layers - len(opened.written)
        if missing:
            raise StateError(f"{missing} of {self.shape.layers} layers of the chunk are unwritten.")
        self._open = None
        self._look()

    def commit(self) -> None:
        """Freeze the open chunk, if there is one, and end the step."""
        if self._open is not None:
            self.seal()
        self._log.append(self._step or Step(self._books))
        self._step = None
        while len(self._log) > self.undo:
            self._log.popleft()

    # -- what is there --------------------------------------------------------------------------

    @property
    def frames(self) -> tuple[int, ...]:
        """Absolute indices of the open chunk's frames; empty when none is open."""
        return tuple(frame.index for frame in self._open.frames) if self._open else ()

    @property
    def positions(self) -> tuple[float, ...]:
        """Temporal positions of the open chunk's frames."""
        return self._sight.query

    @property
    def kept(self) -> tuple[Frame, ...]:
        """Records of all kept frames in order of time, the open chunk's included."""
        return self._books.kept

    @property
    def next_frame(self) -> int:
        """Absolute index that the next chunk begins with."""
        return self._books.next_frame

    def ordered(self, layer: int) -> Segment:
        """A copy of one layer's kept keys and values in order of time."""
        both = self._slabs.gather(layer, self._places())
        return Segment(both[0], both[1])

    # -- a part of the state ----------------------------------------------------------------------

    def rollback(self, chunks: int) -> None:
        """As `Part.rollback`; 0 only drops what has happened since the last commit."""
        if not 0 <= chunks <= len(self._log):
            raise StateError(
                f"chunks={chunks}: {len(self._log)} are remembered.",
                code="not_remembered",
                remedy="Open with a larger number of chunks to rewind.",
            )
        if self._step is not None and self._step.lossy:
            raise StateError(
                "the open chunk has overwritten frames that were not saved.", code="not_remembered"
            )
        back = [] if self._step is None else [self._step]
        back += [self._log.pop() for _ in range(chunks)]
        synchronize(self.shape.device)
        for step in back:
            step.restore(self._slabs)
            self._books = step.before
        self._step = self._open = None
        self._look()

    def fork(self) -> KvCache:
        other = object.__new__(KvCache)
        vars(other).update(vars(self))
        other._slabs = self._slabs.fork()
        other._log = deque(step.fork() for step in self._log)
        other._step = self._step.fork() if self._step else None
        if self._open is not None:
            other._open = self._open._replace(written=set(self._open.written))
        return other

    def dump(self) -> tuple[Mapping[str, Any], Mapping[str, Tensor]]:
        if self._step is not None:
            raise StateError("a chunk is open; only what is committed can be written down.")
        places = self._places()
        layers = range(self.shape.layers)
        tensors = {f"kv.{layer}": self._slabs.gather(layer, places) for layer in layers}
        return self._books.write(self._made()), tensors

    def load(self, values: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        shape, step = self.shape, self.shape.frame_tokens
        books = Books.read(values, self._made(), self.policy.capacity)
        size = (2, shape.batch, len(books.kept) * step, shape.heads, shape.head_dim)
        names = {f"kv.{layer}": layer for layer in range(shape.layers)}
        if tensors.keys() != names.keys():
            raise SnapshotError(f"the cache has {len(tensors)} tensors for {shape.layers} layers.")
        for name, given in tensors.items():
            if given.shape != size or given.dtype != shape.dtype:
                raise SnapshotError(f"{name} is not of shape {size} and {shape.dtype}.")
        self.reset()
        self._books = books
        for name, layer in names.items():
            for nth, slot, count in runs(self._places()):
                part = tensors[name][:, :, nth * step : (nth + count) * step]
                self._slabs.own_rows(layer, slot, count).copy_(part)
        self._look()

    def reset(self) -> None:
        self._books, self._open, self._step = Books(), None, None
        self._log.clear()
        self._look()

    def nbytes(self) -> int:
        """Bytes on the device; storage that is shared with a fork counts for both."""
        return self._slabs.nbytes()

    def host_nbytes(self) -> int:
        return sum(step.nbytes() for step in (*self._log, self._step) if step is not None)

    def free(self) -> None:
        self._slabs.free()
        self.reset()

    # -- inside -----------------------------------------------------------------------------------

    def _settled(self, what: str) -> Books:
        if self._open is not None:
            raise StateError(f"{what}: a chunk is open already.")
        if not len(self._slabs):
            raise StateError(f"{what}: the cache was freed.")
        return self._books

    def _opened(self, what: str) -> _Open:
        if self._open is None:
            raise StateError(f"{what}: no chunk is open.")
        return self._open

    def _start(self, books: Books, chunk: tuple[Frame, ...], new: bool) -> None:
        self._step = self._step or Step(self._books)
        self._books = books
        taken = [books.slots[frame.index] for frame in chunk]
        missed = {slot for past in (*self._log, self._step) for slot in past.before.slots.values()}
        self._open = _Open(chunk, runs(taken), new, missed.intersection(taken), set())
        self._look()

    def _look(self) -> None:
        """Work out once per chunk what every layer sees."""
        chunk = self._open.frames if self._open else ()
        self._sight = self._books.sight(chunk, self.policy, self.position_rule)

    def _places(self) -> list[int]:
        return [self._books.slots[frame.index] for frame in self._books.kept]

    def _save(self, layer: int, slots: set[int]) -> None:
        """Before a chunk first writes a layer: keep what a rollback would miss."""
        step = self._step
        assert step is not None  # there is one while a chunk is open
        if self.undo:
            step.save(self._slabs, layer, slots)
        else:
            step.lossy = True

    def _made(self) -> dict[str, Any]:
        """What a dump must agree on, as JSON values."""
        sizes = self.shape._asdict()
        del sizes["device"]
        rules = {"policy": repr(self.policy), "positions": repr(self.position_rule)}
        return {**sizes, "dtype": str(self.shape.dtype), **rules}
