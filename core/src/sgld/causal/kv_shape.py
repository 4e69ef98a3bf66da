"""Size of a ring of keys and values, before there is one."""

from __future__ import annotations

from typing import NamedTuple

import torch

from sgld.causal.host import host_bytes
from sgld.causal.policies import Policy


class KvShape(NamedTuple):
    """What one frame needs in a cache.

    Args:
        layers: of the model.
        heads: of keys and values.
        head_dim: numbers per head.
        frame_tokens: tokens of one latent frame.
        dtype: of keys and values.
        device: where they live.
        batch: rows that are generated together.
    """

    layers: int
    heads: int
    head_dim: int
    frame_tokens: int
    dtype: torch.dtype
    device: torch.device | str
    batch: int = 1

    @property
    def frame_bytes(self) -> int:
        """Keys and values of one frame in all layers."""
        numbers = 2 * self.batch * self.frame_tokens * self.heads * self.head_dim
        return self.layers * numbers * self.dtype.itemsize


def kv_bytes(shape: KvShape, policy: Policy, undo: int = 0) -> int:
    """Bytes that `KvCache(shape, policy, undo)` holds on its device, from construction on.

    `undo` costs nothing there: what `rollback` needs lies in host memory, see `kv_host_bytes`.
    """
    return policy.capacity * shape.frame_bytes


def kv_host_bytes(shape: KvShape, chunk: int, undo: int) -> int:
    """Bytes of host memory that `rollback` needs at most, for chunks of `chunk` frames.

    The open chunk may have overwritten as much as each committed one. A chunk that rewrites kept
    frames (`KvCache.reopen`) may overwrite all that the policy has room for.
    """
    row = host_bytes(shape.frame_bytes // shape.layers, shape.device)
    return (undo + 1) * chunk * shape.layers * row if undo else 0
