"""Named values that a chunk hands to the next: text, conditions, clean latents."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from math import prod
from typing import Any, Self

import torch
from torch import Tensor

from sgld.causal.cache import Part
from sgld.causal.errors import SnapshotError, StateError
from sgld.causal.host import host_bytes, synchronize, to_host
from sgld.platforms.streams import keep

Shapes = Mapping[str, tuple[tuple[int, ...], torch.dtype]]
"""Name → sizes and dtype of a tensor."""


def kept_bytes(shapes: Shapes) -> int:
    """Bytes that a `Kept` holds on its device once these tensors are in it."""
    return sum(prod(size) * dtype.itemsize for size, dtype in shapes.values())


def kept_host_bytes(shapes: Shapes, undo: int, device: torch.device | str) -> int:
    """Bytes of host memory that `rollback` needs at most where each of these tensors is replaced in
    every chunk. One that is never replaced needs none."""
    sizes = (prod(size) * dtype.itemsize for size, dtype in shapes.values())
    return (undo + 1) * sum(host_bytes(size, device) for size in sizes) if undo else 0


class Held:
    """A tensor that was put in, on the device or retired to the host; identity tells versions
    apart."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


class Kept(Part):
    """Values by name, replaced as a whole: tensors live on `device`, everything else is JSON.

    What `set` takes must not be written to afterwards. A version that `rollback` may need goes to
    host memory when it is replaced. One thread at a time works on it; `nbytes` and `free` may be
    called beside it.

    Args:
        device: where tensors are kept.
        undo: commits that `rollback` can take back.
        shapes: the tensors that may be put in, for an exact budget (`kept_bytes`); None: any.
    """

    def __init__(
        self, device: torch.device | str, undo: int = 0, *, shapes: Shapes | None = None
    ) -> None:
        self.device, self.undo, self.shapes = torch.device(device), undo, shapes
        self._now: dict[str, Any] = {}
        self._base: dict[str, Any] = {}
        """As of the last commit."""
        self._log: deque[dict[str, Any]] = deque()
        self._lossy = False

    def get(self, name: str, default: Any = None) -> Any:
        """The value, or `default` when there is none."""
        value = self._now.get(name, default)
        return value.tensor if isinstance(value, Held) else value

    def set(self, name: str, value: Any) -> None:
        """Put a tensor or a JSON value in the place of what was there. A tensor that is a piece of
        a larger one is copied, so that it does not keep that one alive."""
        if isinstance(value, Tensor):
            self._check(name, value, StateError)
            value = Held(_whole(value.detach().to(self.device)))
        else:
            value = _json(name, value)
        self._leave(name)
        self._now[name] = value

    def drop(self, name: str) -> None:
        """Forget a value; nothing happens when there is none."""
        self._leave(name)
        self._now.pop(name, None)

    def __contains__(self, name: str) -> bool:
        return name in self._now

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._now))

    def commit(self) -> None:
        self._log.append(self._base)
        self._base, self._lossy = dict(self._now), False
        while len(self._log) > self.undo:
            self._log.popleft()

    def rollback(self, chunks: int) -> None:
        """As `Part.rollback`; 0 only drops what was set since the last commit."""
        if not 0 <= chunks <= len(self._log) or self._lossy:
            raise StateError(
                f"chunks={chunks}: {len(self._log)} are remembered (undo={self.undo}).",
                code="not_remembered",
            )
        for _ in range(chunks):
            self._base = self._log.pop()
        self._now = dict(self._base)
        synchronize(self.device)
        for held in _tensors(self._now):
            held.tensor = held.tensor.to(self.device)

    def fork(self) -> Self:
        other = object.__new__(type(self))
        vars(other).update(vars(self))
        twins: dict[int, Held] = {}
        other._now = _twin(self._now, twins)
        other._base = _twin(self._base, twins)
        other._log = deque(_twin(past, twins) for past in self._log)
        return other

    def dump(self) -> tuple[Mapping[str, Any], Mapping[str, Tensor]]:
        tensors = {name: v.tensor for name, v in self._base.items() if isinstance(v, Held)}
        if self._now != self._base:
            raise StateError("values were set since the last commit; only committed ones count.")
        plain = {name: v for name, v in self._base.items() if not isinstance(v, Held)}
        return {"values": plain, "tensors": sorted(tensors)}, tensors

    def load(self, values: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        plain, names = values.get("values"), values.get("tensors")
        if not isinstance(plain, dict) or names != sorted(tensors) or plain.keys() & tensors.keys():
            raise SnapshotError("the kept values and the list of their names differ.")
        for name, tensor in tensors.items():
            self._check(name, tensor, SnapshotError)
        now: dict[str, Any] = {name: _json(name, value) for name, value in plain.items()}
        for name, tensor in tensors.items():
            now[name] = Held(_whole(tensor.to(self.device, copy=True)))
        self.reset()
        self._now, self._base = now, dict(now)

    def reset(self) -> None:
        self._now, self._base, self._lossy = {}, {}, False
        self._log.clear()

    def nbytes(self) -> int:
        return _bytes(_tensors(dict(self._now)))

    def host_nbytes(self) -> int:
        now = {id(held) for held in _tensors(self._now)}
        past = (held for values in (self._base, *self._log) for held in _tensors(values))
        return _bytes(held for held in past if id(held) not in now)

    def free(self) -> None:
        self.reset()

    def _leave(self, name: str) -> None:
        """What stands under `name` is about to go: to the host if a rollback may ask for it."""
        if name not in self._now or name not in self._base:
            return
        if self._base[name] is not self._now[name]:
            return
        if not self.undo:
            self._lossy = True
            self._base = {key: value for key, value in self._base.items() if key != name}
            return
        held = self._now[name]
        if isinstance(held, Held) and held.tensor.device.type != "cpu":
            # Its memory must not be given out again before this stream has read it.
            keep(held.tensor)
            held.tensor = to_host(held.tensor)

    def _check(self, name: str, tensor: Tensor, error: type[StateError | SnapshotError]) -> None:
        if self.shapes is None:
            return
        wanted = self.shapes.get(name)
        if wanted is None:
            names = ", ".join(sorted(self.shapes)) or "none"
            raise error(f"{name} is no tensor that is kept here; there are: {names}.")
        if (tuple(tensor.shape), tensor.dtype) != (tuple(wanted[0]), wanted[1]):
            given = f"{list(tensor.shape)} {tensor.dtype}"
            raise error(f"{name} is {given}, and should be {list(wanted[0])} {wanted[1]}.")


def _json(name: str, value: Any) -> Any:
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise StateError(f"{name} is neither a tensor nor a JSON value: {error}.") from error


def _whole(tensor: Tensor) -> Tensor:
    """The tensor itself if it is all of its storage, else a copy."""
    exact = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    return tensor if exact and tensor.is_contiguous() else tensor.contiguous().clone()


def _tensors(values: Mapping[str, Any]) -> Iterator[Held]:
    return (value for value in values.values() if isinstance(value, Held))


def _bytes(rows: Iterable[Held]) -> int:
    storages = {held.tensor.data_ptr(): held.tensor.untyped_storage().nbytes() for held in rows}
    return sum(storages.values())


def _twin(values: Mapping[str, Any], twins: dict[int, Held]) -> dict[str, Any]:
    """The same values with version objects of their own, which share the tensors."""
    return {
        name: twins.setdefault(id(value), Held(value.tensor)) if isinstance(value, Held) else value
        for name, value in values.items()
    }
