"""Results of repeated calls, kept within a budget of bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

import torch


def tensor_bytes(value: Any) -> int:
    """Bytes of all tensors in a tensor or a nest of tuples, lists and mappings."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, dict):
        return sum(tensor_bytes(member) for member in value.values())
    if isinstance(value, (tuple, list)):
        return sum(tensor_bytes(member) for member in value)
    return 0


class Memo:
    """Least recently used results, such as a prompt's embedding asked for by several outputs."""

    def __init__(self, budget_bytes: int) -> None:
        self._budget = budget_bytes
        self._held: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._bytes = 0

    def get(self, key: Hashable) -> tuple[bool, Any]:
        """Whether the key is known, and its result."""
        if key not in self._held:
            return False, None
        self._held.move_to_end(key)
        return True, self._held[key][0]

    def put(self, key: Hashable, value: Any) -> None:
        """Keep a result; the oldest go when the budget is exceeded."""
        size = tensor_bytes(value)
        if size > self._budget or key in self._held:
            return
        self._held[key] = (value, size)
        self._bytes += size
        while self._bytes > self._budget:
            _, (_, freed) = self._held.popitem(last=False)
            self._bytes -= freed

    def clear(self) -> None:
        """Forget everything."""
        self._held.clear()
        self._bytes = 0

    def nbytes(self) -> int:
        """Bytes held now."""
        return self._bytes
