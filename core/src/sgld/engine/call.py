"""A stage's wish to run a component. The engine decides when, where and together with what."""

from __future__ import annotations

from collections.abc import Generator, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Call:
    """One forward of one component, as a wish.

    Tensor inputs carry *rows* in dimension 0, all with the same number of rows (a call where they
    differ, or with a tensor without dimensions, is never shared); every other input is shared by
    all rows. Two calls may run as one forward when component, method and `batch_key`
    are equal, their shared inputs are equal and their tensors differ only in dimension 0.

    Args:
        component: name of a loaded component, as in model_index.json.
        inputs: keyword arguments of the method.
        method: attribute of the component to call.
        batch_key: what else must be equal for calls to share a forward; None: never shared.
        tokens: cost of one row in tokens, for the automatic batch limit; 0: not known, so the
            automatic limit leaves it alone.
        memo: a key under which the engine may keep the result and give it to other calls of the
            same method of the same component; only for results that depend on the key and the
            component alone, such as a prompt's embedding.
    """

    component: str
    inputs: Mapping[str, Any]
    method: str = "forward"
    batch_key: Hashable | None = None
    tokens: int = 0
    memo: Hashable | None = None

    @property
    def rows(self) -> int:
        """Rows in dimension 0 of the tensor inputs; 1 when there is no tensor input."""
        return max(self._row_counts(), default=1)

    def merge_key(self) -> Hashable | None:
        """Equal for calls that may share a forward; None when this call stands alone."""
        if self.batch_key is None or len(self._row_counts()) > 1:
            return None
        inputs: list[Hashable] = []
        for name in sorted(self.inputs):
            value = self.inputs[name]
            if isinstance(value, torch.Tensor):
                inputs.append((name, "rows", value.dtype, value.device, tuple(value.shape[1:])))
            else:
                inputs.append((name, "shared", value))
        return (self.component, self.method, self.batch_key, tuple(inputs))

    def memo_key(self) -> Hashable | None:
        """Equal for calls that may be given each other's result; None when this one may not."""
        return None if self.memo is None else (self.component, self.method, self.memo)

    def _row_counts(self) -> set[int]:
        """The different numbers of rows of the tensor inputs; a tensor without dimensions has 1 and
        also -1, because it cannot be joined."""
        counts: set[int] = set()
        for value in self.inputs.values():
            if isinstance(value, torch.Tensor):
                counts |= {value.shape[0]} if value.ndim else {1, -1}
        return counts


Wish = Call | Sequence[Call]
"""What a stage yields: one call (its result comes back) or several (a list of results does)."""

StageRun = Generator[Wish, Any, None]
"""A running stage. Write results into the job's slots; yield calls, never run components."""
