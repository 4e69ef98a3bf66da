"""A VAE stream's history as a part of causal state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch

from sgld.causal.cache import Part
from sgld.causal.errors import SnapshotError, StateError
from sgld.causal.host import host_bytes
from sgld.platforms.streams import keep, torch_of
from sgld_wan.models.vae_slots import Slot, decoder_slots
from sgld_wan.models.vae_stream import FIRST_ONLY, History, Remembered

NOTHING = "nothing"
"""In a dump: a slot of a stream that has not begun."""
FRAMES = "frames"
"""In a dump: a slot whose tensor stands under its number."""


class VaeHistory(Part):
    """History of one stream of a decoder or encoder.

    `take` lends the history to the call that works on the next chunk, `put` gives back what that
    returned. The call replaces it slot by slot (`sgld_wan.models.vae_stream`), so there is never
    much more than one history on the device. A version that `rollback` may need is copied to host
    memory when it is lent; each costs as many bytes there as `nbytes` says.

    One thread at a time works on it, on the device's stream that the VAE runs on; `nbytes`,
    `host_nbytes` and `free` may be called beside it.

    Args:
        slots: from `decoder_slots` or `encoder_slots`.
        dtype: precision of the VAE.
        device: where the VAE runs.
        undo: how many chunks `rollback` can take back.
    """

    def __init__(
        self,
        slots: Sequence[Slot],
        *,
        dtype: torch.dtype,
        device: torch.device,
        undo: int = 0,
    ) -> None:
        self._layout = tuple(slots)
        self._dtype = dtype
        self._device = device
        self._undo = undo
        self._slots: History = [None] * len(self._layout)
        self._kept: list[tuple[Remembered, ...]] = []
        self._lent = False
        self._freed = False

    def take(self) -> History:
        """The history, for the call that works on the next chunk; after it, `put` and `commit`.

        Raises StateError while a chunk is open: the call before failed, or was not committed.
        """
        if self._freed:
            raise StateError("the history of this stream was freed")
        if self._lent:
            raise StateError(
                "a chunk of this stream is open: its work failed, or it was not committed",
                remedy="Take it back with rollback(0), for which undo must be 1 or more.",
            )
        self._remember()
        self._lent = True
        return self._slots

    def put(self, history: History) -> None:
        """Take the history after the open chunk. Does nothing when the stream was freed or reset
        while the call ran."""
        if self._lent and not self._freed:
            self._slots = history

    def commit(self) -> None:
        if not self._lent:
            self._remember()  # a chunk that was not decoded counts as well
        self._lent = False
        del self._kept[: max(0, len(self._kept) - self._undo)]

    def rollback(self, chunks: int) -> None:
        back = chunks + self._lent
        if chunks < 0 or back > len(self._kept):
            raise StateError(
                f"{chunks} chunks cannot be taken back: {len(self._kept) - self._lent} of this "
                f"stream are remembered (undo={self._undo})",
                code="not_remembered",
            )
        if back:
            self._slots = self._upload(self._kept[-back])
            del self._kept[-back:]
        self._lent = False

    def fork(self) -> Self:
        self._check_closed("split")
        twin = type(self)(self._layout, dtype=self._dtype, device=self._device, undo=self._undo)
        twin._slots, twin._kept = list(self._slots), list(self._kept)
        return twin

    def dump(self) -> tuple[Mapping[str, Any], Mapping[str, torch.Tensor]]:
        self._check_closed("written down")
        kinds: list[str] = []
        tensors: dict[str, torch.Tensor] = {}
        for number, held in enumerate(self._slots):
            if isinstance(held, torch.Tensor):
                tensors[f"{number:02d}"] = held
            kinds.append(FRAMES if isinstance(held, torch.Tensor) else held or NOTHING)
        return {"slots": kinds}, tensors

    def load(self, values: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
        kinds = values.get("slots")
        if not isinstance(kinds, list) or len(kinds) != len(self._layout):
            raise _mismatch(f"it must describe {len(self._layout)} slots")
        read = [
            self._read(kind, tensors.get(f"{number:02d}"), number)
            for number, kind in enumerate(kinds)
        ]
        empty = [held is None for held in read]
        if any(empty) and not all(empty):
            raise _mismatch("some slots are empty and some are not")
        begun = sum(isinstance(held, torch.Tensor) for held in read)
        if len(tensors) != begun:
            raise _mismatch(f"it has {len(tensors)} tensors for {begun} slots")
        self._slots = [
            held.to(self._device, copy=True) if isinstance(held, torch.Tensor) else held
            for held in read
        ]
        self._kept, self._lent, self._freed = [], False, False

    def reset(self) -> None:
        self._slots = [None] * len(self._layout)
        self._kept, self._lent = [], False

    def nbytes(self) -> int:
        """Bytes on the device, exactly. Older versions are in host memory and do not count."""
        held = tuple(self._slots)
        return sum(t.untyped_storage().nbytes() for t in held if isinstance(t, torch.Tensor))

    def host_nbytes(self) -> int:
        """Bytes of the older versions: up to `undo` times those of a history; on the CPU what a
        version shares with the current one counts there alone."""
        now = {id(held) for held in tuple(self._slots)}
        past = {
            id(held): held.untyped_storage().nbytes()
            for version in tuple(self._kept)
            for held in version
            if isinstance(held, torch.Tensor) and id(held) not in now
        }
        return sum(past.values())

    def free(self) -> None:
        # The call that has the history on loan keeps its list until it ends.
        self._slots, self._kept, self._freed = [], [], True

    def _remember(self) -> None:
        if self._undo:
            self._kept.append(tuple(_on_host(held) for held in self._slots))

    def _upload(self, kept: tuple[Remembered, ...]) -> History:
        if torch_of(self._device) is not None:
            torch.accelerator.synchronize(self._device)  # the copy may still be on its way
        return [held.to(self._device) if isinstance(held, torch.Tensor) else held for held in kept]

    def _check_closed(self, verb: str) -> None:
        if self._freed or self._lent:
            why = "was freed" if self._freed else "has an open chunk"
            raise StateError(f"a stream that {why} cannot be {verb}")

    def _read(self, kind: Any, tensor: torch.Tensor | None, number: int) -> Remembered:
        slot = self._layout[number]
        if kind == NOTHING:
            return None
        if kind == FIRST_ONLY and slot.doubles:
            return FIRST_ONLY
        if kind != FRAMES or tensor is None:
            raise _mismatch(f"slot {number} is {kind!r} with {'a' if kind == FRAMES else 'no'}")
        sizes = [(1, slot.channels, frames, slot.height, slot.width) for frames in (1, slot.frames)]
        if slot.doubles:
            del sizes[0]
        if tuple(tensor.shape) not in sizes or tensor.dtype != self._dtype:
            raise _mismatch(
                f"slot {number} is {tensor.dtype} {list(tensor.shape)} and should be "
                f"{self._dtype} {list(sizes[-1])}"
            )
        return tensor


class DecoderHistory(VaeHistory):
    """History of the decoder of one stream of frames; the part `decoder` of a causal state.

    `decoder_history_bytes` is what `nbytes` says from the second latent frame on.
    """

    @classmethod
    def of(
        cls,
        config: Mapping[str, Any],
        height: int,
        width: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
        undo: int = 0,
    ) -> Self:
        """A stream that has not begun.

        Args:
            config: `vae/config.json`.
            height: of the frames, in pixels.
            width: likewise.
            dtype: precision of the VAE.
            device: where it runs.
            undo: how many chunks `rollback` can take back.

        Raises ValueError when the size is no multiple of the VAE's spatial stride.
        """
        slots = decoder_slots(config, height, width)
        return cls(slots, dtype=dtype, device=device, undo=undo)


def decoder_undo_bytes(
    config: Mapping[str, Any],
    height: int,
    width: int,
    *,
    dtype: torch.dtype,
    device: torch.device,
    undo: int,
) -> int:
    """Bytes of host memory that a `DecoderHistory` holds at most; arguments as those of `of`."""
    if not undo:
        return 0
    sizes = (slot.values * dtype.itemsize for slot in decoder_slots(config, height, width))
    # While a chunk is decoded the version before it is one more.
    return (undo + 1) * sum(host_bytes(size, device) for size in sizes)


def _on_host(held: Remembered) -> Remembered:
    """A copy in host memory, made beside the host's own work where the device can. On the CPU the
    tensor itself: nobody writes into it."""
    if not isinstance(held, torch.Tensor):
        return held
    # Its memory must not be given out again before this stream has read it.
    keep(held)
    return held.to("cpu", non_blocking=torch_of(held.device) is not None)


def _mismatch(message: str) -> SnapshotError:
    return SnapshotError(
        f"this history of a video stream does not fit: {message}.",
        code="snapshot_mismatch",
        remedy="Load it into a session of the same model, size and precision.",
    )
