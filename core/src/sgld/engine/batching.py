"""Several calls as one forward: which may share it, how rows are joined and parted again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from sgld.engine.call import Call


@dataclass(frozen=True, slots=True)
class BatchLimit:
    """How large a shared forward may become.

    `off`: every call alone. `auto`: while the sum of tokens stays within the family's declared
    threshold, the size from which one forward fills the device. A number: at most so many rows.
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


def gather(first: Call, others: Iterable[Call], limit: BatchLimit) -> list[Call]:
    """`first` and those of `others` that may share its forward within the limit, in order."""
    chosen = [first]
    key = first.merge_key()
    if key is None:
        return chosen
    rows, tokens = first.rows, first.rows * first.tokens
    for call in others:
        if call.merge_key() != key:
            continue
        grown_rows, grown_tokens = rows + call.rows, tokens + call.rows * call.tokens
        if not limit.admits(grown_rows, grown_tokens):
            break
        chosen.append(call)
        rows, tokens = grown_rows, grown_tokens
    return chosen


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

    Tensors are cut in dimension 0; tuples, lists and mappings are cut member by member.
    """
    if len(calls) == 1:
        return [result]
    sizes = [call.rows for call in calls]
    if isinstance(result, torch.Tensor):
        return list(result.split(sizes))
    if isinstance(result, dict):
        members = {name: part(value, calls) for name, value in result.items()}
        return [{name: rows[i] for name, rows in members.items()} for i in range(len(calls))]
    if isinstance(result, (tuple, list)):
        columns = [part(value, calls) for value in result]
        return [type(result)(column[i] for column in columns) for i in range(len(calls))]
    raise TypeError(
        f"{calls[0].component}.{calls[0].method} returned {type(result).__name__}, which cannot be "
        "parted by rows; leave the call's batch_key unset"
    )
