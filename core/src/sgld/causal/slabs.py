"""Storage of a ring: per layer one tensor with a row of tokens for every slot."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from sgld.causal.errors import StateError
from sgld.causal.kv_shape import KvShape


class _Slab:
    """One layer, [2, B, slots x frame tokens, heads, head_dim]: keys, then values."""

    __slots__ = ("owners", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.owners = 1


class Slabs:
    """All layers of one ring. Forks share a layer until one of them writes to it.

    Args:
        shape: sizes, dtype and device.
        slots: frames that there is room for.
    """

    def __init__(self, shape: KvShape, slots: int) -> None:
        self._step = shape.frame_tokens
        size = (2, shape.batch, slots * shape.frame_tokens, shape.heads, shape.head_dim)
        self._layers = [
            _Slab(torch.empty(size, dtype=shape.dtype, device=shape.device))
            for _ in range(shape.layers)
        ]

    def __len__(self) -> int:
        return len(self._layers)

    def rows(self, layer: int, slot: int, count: int = 1) -> Tensor:
        """[2, B, count x frame tokens, heads, head_dim] of slots from `slot` on; to read."""
        return self._of(layer).tensor[:, :, slot * self._step : (slot + count) * self._step]

    def own_rows(self, layer: int, slot: int, count: int = 1) -> Tensor:
        """As `rows`, to write: the layer is copied first if a fork shares it."""
        slab = self._of(layer)
        if slab.owners > 1:
            copy = _Slab(slab.tensor.clone())
            slab.owners -= 1
            self._layers[layer] = copy
        return self.rows(layer, slot, count)

    def gather(self, layer: int, slots: Iterable[int]) -> Tensor:
        """A copy of these slots, in this order."""
        parts = [self.rows(layer, slot) for slot in slots]
        return torch.cat(parts, dim=2) if parts else self.rows(layer, 0, 0).clone()

    def fork(self) -> Slabs:
        """The same storage for a second owner."""
        other = object.__new__(Slabs)
        other._step, other._layers = self._step, list(self._layers)
        for slab in self._layers:
            slab.owners += 1
        return other

    def nbytes(self) -> int:
        """Bytes of every layer, shared or not."""
        return sum(slab.tensor.untyped_storage().nbytes() for slab in self._layers)

    def free(self) -> None:
        """Give up every layer; safe to call again."""
        for slab in self._layers:
            slab.owners -= 1
        self._layers = []

    def _of(self, layer: int) -> _Slab:
        if not 0 <= layer < len(self._layers):
            raise StateError(f"layer {layer}: there are {len(self._layers)} layers.")
        return self._layers[layer]
