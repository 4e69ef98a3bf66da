"""Everything that outlives a chunk, as one thing: taken back, split, written down and freed
together.

    state = CausalState({"kv": ..., "text": ..., "decoder": ...}, generator, undo=8)
    ...                     # the open stages may fill caches and values
    state.opened()          # what a rollback goes back to at most
    for each chunk:
        ...                 # the chunk stages, and the pass over the clean chunk
        state.advance(chunk)
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from threading import Lock
from typing import Any, Final, NamedTuple

import torch

from sgld.causal.blocks import Chunk
from sgld.causal.books import whole
from sgld.causal.cache import Part
from sgld.causal.errors import SnapshotError, StateError
from sgld.causal.snapshot import pack, unpack

NOISE: Final = "generator"
"""Name of the generator's state among a snapshot's tensors."""
SEPARATOR: Final = "/"


class _Mark(NamedTuple):
    """Where the generation stands between two chunks."""

    index: int
    frame: int
    noise: torch.Tensor
    """State of the generator; never written to."""


class CausalState:
    """Named parts, the generator of noise, and where the generation stands.

    Args:
        parts: name → part: caches, the decoder's history, conditions. Each remembers at least
            `undo` commits. Names have no slash.
        generator: draws the noise of every chunk, on the CPU.
        undo: how many chunks `rollback` can take back.

    Wrong use raises `StateError`, and nothing has changed then.
    """

    def __init__(
        self, parts: Mapping[str, Part], generator: torch.Generator, *, undo: int = 0
    ) -> None:
        for name in parts:
            if not name or SEPARATOR in name:
                raise StateError(f"{name!r} cannot name a part: it has a slash or is empty.")
        self.parts = dict(parts)
        self.generator = generator
        self.undo = undo
        self._begun = False
        self._freed = False
        self._here = self._origin = _Mark(0, 0, generator.get_state())
        self._marks: deque[_Mark] = deque()
        self._late: Counter[str] = Counter()
        """Part → chunks that it is behind of `advance`; negative: it is ahead."""
        self._lock = Lock()

    def __getitem__(self, name: str) -> Part:
        return self.parts[name]

    @property
    def next_index(self) -> int:
        """Index of the chunk that comes next."""
        return self._here.index

    @property
    def next_frame(self) -> int:
        """Absolute latent frame that it begins with. The open stages set it when they have put
        frames before chunk 0 into the caches."""
        return self._here.frame

    @next_frame.setter
    def next_frame(self, frame: int) -> None:
        if self._begun:
            raise StateError(f"next_frame={frame}: the generation is under way.")
        self._here = self._here._replace(frame=frame)

    @property
    def remembered(self) -> int:
        """Chunks that `rollback` could take back now."""
        return len(self._marks)

    def opened(self) -> None:
        """The open stages are done: what they left in the parts and drew from the generator is
        where chunk 0 begins, and a rollback never goes behind it. Does nothing when a generation
        is under way, so a restored state may be opened as well."""
        if self._begun:
            return
        for part in self.parts.values():
            part.commit()
        self._here = self._here._replace(noise=self.generator.get_state())
        self._begun = True

    def advance(self, chunk: Chunk, *, later: Collection[str] = ()) -> None:
        """`chunk` is committed; the next one follows it.

        Commits every part but those named in `later`, whose work at this chunk runs beside it, on
        another thread: they are committed once `settle` was called for them too, before or after.
        """
        if self._freed:
            raise StateError("the state was freed.")
        if not self._begun and self.undo:
            raise StateError("a chunk is committed before `opened` was called.")
        if (chunk.index, chunk.first) != (self.next_index, self.next_frame):
            raise StateError(
                f"chunk {chunk.index} at frame {chunk.first} does not follow: chunk "
                f"{self.next_index} at frame {self.next_frame} does."
            )
        for name, part in self.parts.items():
            if name not in later:
                part.commit()
        with self._lock:
            for name in later:
                self._late[name] += 1
                if self._late[name] <= 0:
                    self.parts[name].commit()
        self._marks.append(self._here)
        while len(self._marks) > self.undo:
            self._marks.popleft()
        following = chunk.first + chunk.frames
        self._here = _Mark(chunk.index + 1, following, self.generator.get_state())
        self._begun = True

    def settle(self, names: Collection[str]) -> None:
        """The work of these parts at one chunk is done; may be called on the thread that did it,
        and before `advance`. A state that was freed meanwhile stays so."""
        with self._lock:
            if self._freed:
                return
            for name in names:
                self._late[name] -= 1
                if self._late[name] >= 0:
                    self.parts[name].commit()

    def rollback(self, chunks: int) -> None:
        """Be as before the last `chunks` chunks; a chunk that has begun is dropped first (0: only
        that). The noise of the next chunk is what it was then.

        Raises `StateError` (`not_remembered`) when that many are not remembered.
        """
        self._still("taken back")
        if not 0 <= chunks <= len(self._marks):
            raise StateError(
                f"chunks={chunks}: {len(self._marks)} can be taken back.",
                code="not_remembered",
                remedy=f"This generation remembers up to {self.undo}.",
            )
        for part in self.parts.values():
            part.rollback(chunks)
        self._late.clear()
        for _ in range(chunks):
            self._here = self._marks.pop()
        self.generator.set_state(self._here.noise)

    def fork(self) -> CausalState:
        """An independent continuation with the same past and the same noise to come. Memory is
        shared until one of the two writes, so its budget is that of a whole state."""
        self._still("split", settled=True)
        other = object.__new__(CausalState)
        vars(other).update(vars(self))
        other.parts = {name: part.fork() for name, part in self.parts.items()}
        other.generator = torch.Generator("cpu")
        other.generator.set_state(self.generator.get_state())
        other._marks, other._late, other._lock = deque(self._marks), Counter(), Lock()
        return other

    def snapshot(self) -> bytes:
        """Everything that the next chunks depend on, as bytes: same model, same settings, same
        bits. What `rollback` remembers is not in it."""
        self._still("written down", settled=True)
        values: dict[str, Any] = {"index": self.next_index, "frame": self.next_frame}
        tensors = {NOISE: self._here.noise}
        parts: dict[str, Any] = {}
        for name, part in self.parts.items():
            parts[name], held = part.dump()
            tensors |= {f"{name}{SEPARATOR}{key}": tensor for key, tensor in held.items()}
        return pack({**values, "parts": parts}, tensors)

    def restore(self, data: bytes) -> None:
        """Become what `snapshot` wrote; the parts were made with the same arguments.

        Raises `SnapshotError` for bytes that are damaged or belong to something else; the state is
        as new then.
        """
        self._still("restored")
        values, tensors = unpack(data)
        self.reset()
        try:
            self._restore(values, tensors)
        except BaseException:
            self.reset()
            raise

    def reset(self) -> None:
        """Be as new: what the open stages put in is gone too, and the noise begins anew."""
        self._still("reset")
        for part in self.parts.values():
            part.reset()
        self._late.clear()
        self._here = self._origin
        self._marks.clear()
        self._begun = False
        self.generator.set_state(self._here.noise)

    def nbytes(self) -> int:
        """Bytes held on the device by all parts, exactly."""
        return sum(part.nbytes() for part in self.parts.values())

    def host_nbytes(self) -> int:
        """Bytes of host memory that `rollback` holds."""
        return sum(part.host_nbytes() for part in self.parts.values())

    def free(self) -> None:
        """Drop every tensor; safe to call again. One part's failure does not keep the others."""
        with self._lock:
            self._freed = True
        self._marks.clear()
        with ExitStack() as stack:
            for part in self.parts.values():
                stack.callback(part.free)

    def _still(self, verb: str, *, settled: bool = False) -> None:
        """Raise StateError while a part is behind, or with `settled` while one is ahead."""
        if self._freed:
            raise StateError(f"a state that was freed cannot be {verb}.")
        moving = sorted(name for name, n in self._late.items() if n > 0 or (n and settled))
        if moving:
            raise StateError(f"it cannot be {verb}: {', '.join(moving)} is at another chunk.")

    def _restore(self, values: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
        parts = values.get("parts")
        if not isinstance(parts, dict) or parts.keys() != self.parts.keys():
            given = sorted(parts) if isinstance(parts, dict) else parts
            raise SnapshotError(
                f"the snapshot has the parts {given}, this state {sorted(self.parts)}.",
                code="snapshot_mismatch",
            )
        own: dict[str, dict[str, torch.Tensor]] = {name: {} for name in parts}
        for key, tensor in tensors.items():
            name, slash, rest = key.partition(SEPARATOR)
            if slash and name in own:
                own[name][rest] = tensor
            elif key != NOISE:
                raise SnapshotError(f"tensor {key!r} belongs to no part.")
        try:
            here = _Mark(whole(values["index"]), whole(values["frame"]), tensors[NOISE])
            self.generator.set_state(here.noise)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise SnapshotError(f"where the generation stood cannot be read: {error}.") from error
        for name, part in self.parts.items():
            part.load(parts[name], own[name])
        self._here, self._begun = here, True
