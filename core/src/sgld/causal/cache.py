"""The contract of a causal cache: opaque per-layer history of one generation.

The engine only ever calls what stands here; what a layer writes and reads is a matter between the
cache and the model family (a ring of keys and values, recurrent matrices, convolution tails).

    cache.begin(3)                      # a chunk of three latent frames: the policy evicts now
    for step in steps:                  # every forward of the chunk overwrites the last one's rows
        for layer in layers: cache.write(layer, ...); attend(q, cache.read(layer))
    cache.clean()
    for layer in layers: cache.write(layer, ...)    # the pass over clean latents
    state.advance(chunk)                # freeze: commits every part of the state
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Self

import torch


class Part(ABC):
    """Something that lives across chunks and can be taken back, split and written down.

    All parts of one `CausalState` move together: one `commit` each per chunk.
    """

    @abstractmethod
    def commit(self) -> None:
        """The open chunk is final: what `rollback(1)` goes back behind."""

    @abstractmethod
    def rollback(self, chunks: int) -> None:
        """Be as before the last `chunks` commits; an open chunk is dropped first.

        Raises ValueError when that many are not remembered; nothing has changed then.
        """

    @abstractmethod
    def fork(self) -> Self:
        """An independent continuation. Memory is shared until one of the two writes."""

    @abstractmethod
    def dump(self) -> tuple[Mapping[str, Any], Mapping[str, torch.Tensor]]:
        """JSON values and named tensors from which `load` makes an equal part; committed state
        only, without what `rollback` remembers."""

    @abstractmethod
    def load(self, values: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
        """Become what `dump` wrote; the part was made with the same arguments.

        Raises ValueError when the dump does not fit; nothing has changed then.
        """

    @abstractmethod
    def reset(self) -> None:
        """Be as new."""

    @abstractmethod
    def nbytes(self) -> int:
        """Bytes held on the device, exactly."""

    def host_nbytes(self) -> int:
        """Bytes of host memory that `rollback` holds."""
        return 0

    @abstractmethod
    def free(self) -> None:
        """Drop every tensor; safe to call again. Nothing else may be called afterwards."""


class CausalCache(Part):
    """Per-layer history of a causal model."""

    @abstractmethod
    def begin(self, frames: int, *, shot: int = 0) -> None:
        """Open a chunk of `frames` latent frames and make room for it.

        `shot` is the number of the scene that the chunk belongs to, for policies that pin or shift
        by shot. Raises ValueError while a chunk is open, or when it can never fit.
        """

    def clean(self) -> None:
        """The pass over the clean chunk comes next; a policy may cut the history before it."""
