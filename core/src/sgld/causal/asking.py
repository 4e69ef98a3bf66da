"""Asks a policy, and takes no answer that it could not mean: a policy may be a plugin's."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from numbers import Integral
from typing import Any, Literal

from sgld.causal.errors import StateError
from sgld.causal.policies import Frame, Policy

INDICES = "a collection of indices (int) of kept frames, such as a list; () for none"
FRAMES = "a sequence of frames out of `kept`, such as `kept` itself; () for none"


def gone(
    policy: Policy,
    method: Literal["drop", "drop_for_clean"],
    kept: Sequence[Frame],
    chunk: Sequence[Frame],
) -> list[int]:
    """Indices of kept frames that go.

    Raises StateError (`policy_answer`) for anything that is no collection of indices of `kept`.
    """
    answer: Any = getattr(policy, method)(kept, chunk)
    # A generator would be empty when it is asked a second time.
    fits = isinstance(answer, Collection) and all(_is_index(each) for each in answer)
    if not fits:
        raise _refuse(policy, method, _shown(answer), INDICES)
    strange = sorted({int(each) for each in answer} - {frame.index for frame in kept})
    if strange:
        raise _refuse(policy, method, f"{_shown(answer)}: {strange} are not kept", INDICES)
    return [int(each) for each in answer]


def seen(policy: Policy, kept: Sequence[Frame], chunk: Sequence[Frame]) -> Sequence[Frame]:
    """Kept frames that `chunk` attends to.

    Raises StateError (`policy_answer`) for anything that is no sequence of frames of `kept`.
    """
    answer: Any = policy.visible(kept, chunk)
    if not isinstance(answer, Sequence) or not all(isinstance(each, Frame) for each in answer):
        raise _refuse(policy, "visible", _shown(answer), FRAMES)
    strange = sorted({frame.index for frame in answer} - {frame.index for frame in kept})
    if strange:
        raise _refuse(policy, "visible", f"the frames {strange}, which are not kept", FRAMES)
    return answer


def _is_index(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _shown(answer: Any) -> str:
    text = repr(answer)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _refuse(policy: Policy, method: str, what: str, wanted: str) -> StateError:
    return StateError(
        f"cache policy {policy!r}: {method}() returned {what}.",
        code="policy_answer",
        remedy=f"It must return {wanted}.",
    )
