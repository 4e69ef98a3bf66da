"""Several calls as one forward: which may share it, how rows are joined and parted again."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from sgld.engine.call import Call
from sgld.engine.memo import mapped


class NotPartableError(TypeError):
    """A result of a shared forward that cannot be given back row by row."""


@dataclass(frozen=True, slots=True)
class BatchLimit:
    """How large a shared forward may become.

    `off`: every call alone. `auto`: while the sum of tokens stays within the family's declared
    threshold, the size from which one forward fills the device; calls that declare no tokens stay
    alone, for their cost is not known. A number: at most so many rows.
    """

    mode: Literal["off", "auto"] | int
    token_threshold: int

    def admits(self, rows: int, tokens: int) -> bool:
        """Whether a forward of so many rows and tokens in all is allowed."""
        if self.mode == "off":
            return False
        if self.mode == "auto":
            return tokens <= self.token_threshold
        return rows <= self.mode

    def considers(self, call: Call) -> bool:
        """Whether this call may be shared at all."""
        return self.mode != "off" and (self.mode != "auto" or call.tokens > 0)


def gather(first: Call, others: Sequence[Call], limit: BatchLimit) -> list[int]:
    """Which of `others` may share the forward of `first` within the limit: their positions."""
    chosen: list[int] = []
    key = first.merge_key() if limit.considers(first) else None
    if key is None:
        return chosen
    rows, tokens = first.rows, first.rows * first.tokens
    for position, call in enumerate(others):
        if not limit.considers(call) or not _equal(call.merge_key(), key):
            continue
        grown_rows, grown_tokens = rows + call.rows, tokens + call.rows * call.tokens
        if not limit.admits(grown_rows, grown_tokens):
            break
        chosen.append(position)
        rows, tokens = grown_rows, grown_tokens
    return chosen


def _equal(one: Hashable, other: Hashable) -> bool:
    try:
        return one == other
    except Exception:  # a shared input that cannot be compared, such as an array, is not equal
        return False


def join(calls: Sequence[Call]) -> dict[str, Any]:
    """Keyword arguments of one forward for calls with equal merge keys."""
    if len(calls) == 1:
        return dict(calls[0].inputs)
    joined: dict[str, Any] = {}
    for name, value in calls[0].inputs.items():
        if isinstance(value, torch.Tensor):
            joined[name] = torch.cat([call.inputs[name] for call in calls])
        else:
            joined[name] = value
    return joined


def part(result: Any, calls: Sequence[Call]) -> list[Any]:
    """Part the result of a shared forward by rows, in the order of `calls`.

    Tensors are cut in dimension 0; tuples, lists and mappings are cut member by member; None, text
    and numbers go to every call.

    Raises NotPartableError for any other type, and for tensors with another number of rows.
    """
    if len(calls) == 1:
        return [result]
    ends: list[tuple[int, int]] = []
    for call in calls:
        begin = ends[-1][1] if ends else 0
        ends.append((begin, begin + call.rows))
    total = ends[-1][1]
    if not _has_rows(result, total):
        raise NotPartableError(
            f"{calls[0].component}.{calls[0].method} returned {_shape(result)} for {total} rows, "
            "which cannot be parted by rows; leave the call's batch_key unset"
        )
    return [mapped(result, lambda t, b=begin, e=end: t[b:e]) for begin, end in ends]


def _has_rows(value: Any, rows: int) -> bool:
    fits: list[bool] = []
    try:
        mapped(value, lambda tensor: fits.append(tensor.ndim > 0 and tensor.shape[0] == rows))
    except TypeError:
        return False
    return bool(fits) and all(fits)


def _shape(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor {list(value.shape)}"
    return type(value).__name__
