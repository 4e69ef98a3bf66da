"""Results of repeated calls, kept within a budget of bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
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
    """Least recently used results, such as a prompt's embedding asked for by several outputs.

    It keeps and gives copies: a job that writes into what it was given changes nobody else's, and a
    row of a shared forward does not keep all the other rows alive.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._budget = budget_bytes
        self._held: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._bytes = 0

    def __contains__(self, key: Hashable) -> bool:
        return key in self._held

    def get(self, key: Hashable) -> tuple[bool, Any]:
        """Whether the key is known, and a copy of its result."""
        if key not in self._held:
            return False, None
        self._held.move_to_end(key)
        return True, _copied(self._held[key][0])

    def put(self, key: Hashable, value: Any) -> None:
        """Keep a copy of a result; the oldest go when the budget is exceeded.

        Results of other types than tensors and nests of them are not kept.
        """
        size = tensor_bytes(value)
        if size > self._budget or key in self._held:
            return
        try:
            copy = _copied(value)
        except TypeError:
            return
        self._held[key] = (copy, size)
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


def _copied(value: Any) -> Any:
    """The same nest with its own tensors; TypeError for what cannot be copied surely."""
    return mapped(value, torch.Tensor.clone)


def mapped(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """The same nest of tuples, lists and mappings with `change` done to its tensors.

    Raises TypeError for any other type than these, None, text, numbers and booleans.
    """
    if isinstance(value, torch.Tensor):
        return change(value)
    if value is None or isinstance(value, (str, int, float)):
        return value
    if type(value) is dict:
        return {name: mapped(member, change) for name, member in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(mapped(member, change) for member in value))
    if type(value) in (tuple, list):
        return type(value)(mapped(member, change) for member in value)
    raise TypeError(f"{type(value).__name__} is not a nest of tensors")
