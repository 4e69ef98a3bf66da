"""Keys and values of a text for cross-attention: computed once, and again when the text changes."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sgld.causal.errors import StateError
from sgld.causal.host import host_bytes
from sgld.causal.kept import Kept

KEY = "key"


class CrossShape(NamedTuple):
    """What a text needs in a cache.

    Args:
        layers: with cross-attention.
        heads: of keys and values.
        head_dim: numbers per head.
        tokens: of a text, at most.
        dtype: of keys and values.
        device: where they live.
        batch: rows.
    """

    layers: int
    heads: int
    head_dim: int
    tokens: int
    dtype: torch.dtype
    device: torch.device | str
    batch: int = 1


def cross_bytes(shape: CrossShape) -> int:
    """Bytes that a `CrossCache` holds on its device once a text of `tokens` tokens is in it."""
    numbers = 2 * shape.batch * shape.tokens * shape.heads * shape.head_dim
    return shape.layers * numbers * shape.dtype.itemsize


def cross_host_bytes(shape: CrossShape, undo: int) -> int:
    """Bytes of host memory that `rollback` needs at most, with another text in every chunk."""
    row = host_bytes(cross_bytes(shape) // (2 * shape.layers), shape.device)
    return (undo + 1) * 2 * shape.layers * row if undo else 0


class CrossCache(Kept):
    """Keys and values of one text per layer.

        cache.use(prompt)                       # another text: everything is forgotten
        if (kv := cache.read(layer)) is None:   # not computed for this text yet
            cache.write(layer, k, v)

    A rollback behind a change of text brings the older keys and values back.

    Args:
        shape: sizes, dtype and device.
        undo: commits that `rollback` can take back.
    """

    def __init__(self, shape: CrossShape, undo: int = 0) -> None:
        super().__init__(shape.device, undo)
        self.shape = shape

    def use(self, text: str) -> bool:
        """Say which text comes next; whether it is another one than before."""
        if self.get(KEY) == text:
            return False
        for name in self:
            self.drop(name)
        self.set(KEY, text)
        return True

    def read(self, layer: int) -> tuple[Tensor, Tensor] | None:
        """What `write` left for this text, both [B, tokens, heads, head_dim]; None: nothing yet."""
        k, v = self.get(f"k.{layer}"), self.get(f"v.{layer}")
        return None if k is None or v is None else (k, v)

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Keep a layer's keys and values until the text changes."""
        if not 0 <= layer < self.shape.layers:
            raise StateError(f"layer {layer}: there are {self.shape.layers} layers.")
        self.set(f"k.{layer}", k)
        self.set(f"v.{layer}", v)

    def _check(self, name: str, tensor: Tensor, error: type[Exception]) -> None:
        shape = self.shape
        names = {f"{kind}.{layer}" for kind in "kv" for layer in range(shape.layers)}
        batch, heads, head_dim = shape.batch, shape.heads, shape.head_dim
        fits = tensor.dim() == 4 and tensor.shape[1] <= shape.tokens
        if (
            name not in names
            or not fits
            or (tensor.shape[0], *tensor.shape[2:]) != (batch, heads, head_dim)
            or tensor.dtype != shape.dtype
        ):
            wanted = f"[{batch}, at most {shape.tokens}, {heads}, {head_dim}] {shape.dtype}"
            raise error(f"{name} is {list(tensor.shape)} {tensor.dtype}, and should be {wanted}.")
