"""Which implementation each op gets: what the lock says, what the user named, else `auto`.

Public: `facts_of(probe, platform, index) -> DeviceFacts | None`, `choose_ops(...) -> {op: Choice}`,
`decide_all(...) -> (Decision, ...)`, which tells a refusal where `choose_ops` raises it.
Torch-free, so that a decision can be made, explained and refused before anything heavy is imported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sgld.api.contracts import DeviceFacts
from sgld.api.errors import FeatureError
from sgld.api.ops import ATTENTION, NEEDS, OPS
from sgld.api.specs import AttentionSpec, KernelSpec
from sgld.plugins.choose import AUTO, Choice, choose_attention, choose_kernel
from sgld.plugins.resolve import Entry


def facts_of(probe: Any, platform: str, index: int = 0) -> DeviceFacts | None:
    """What a probe told of one of its devices; None when it does not tell dtypes and abilities, so
    that only the opened device knows."""
    devices = tuple(getattr(probe, "devices", ()))
    if index >= len(devices):
        return None
    device = devices[index]
    dtypes = getattr(device, "dtypes", None)
    abilities = getattr(device, "abilities", None)
    if not dtypes or abilities is None:
        return None
    return DeviceFacts(platform, device.arch, frozenset(dtypes), frozenset(abilities))


def choose_op(
    op: str,
    attention: Mapping[str, Entry[AttentionSpec]],
    kernels: Iterable[Entry[KernelSpec]],
    facts: DeviceFacts,
    *,
    platform: Sequence[str] = (),
    wanted: Mapping[str, str] | None = None,
    locked: str = "",
) -> Choice:
    """The implementation of one op of `sgld.api.ops.OPS`.

    Args:
        op: its name.
        attention: all backends by id.
        kernels: all kernels.
        facts: the device.
        platform: `PlatformSpec.attention`, what the device's family prefers.
        wanted: role of attention, or `all`, → backend id, as `--attention` says it.
        locked: the id that a lock names; it decides.

    Raises:
        FeatureError: nothing fits, what was named does not fit, or two are equal.
    """
    if not op.startswith(ATTENTION):
        return choose_kernel(kernels, op, facts, prefer=locked or AUTO)
    role = op.removeprefix(ATTENTION)
    need = NEEDS.get(role, frozenset())
    prefer = locked or _wish(role, need, attention, wanted or {})
    choice = choose_attention(
        attention.values(), facts, need=need, prefer=prefer, platform=platform
    )
    return choice._replace(subject=f"op {op}")


def _wish(
    role: str,
    need: frozenset[str],
    attention: Mapping[str, Entry[AttentionSpec]],
    wanted: Mapping[str, str],
) -> str:
    """The backend that the user named for a role; one named for all plays the roles it can."""
    if role in wanted:
        return wanted[role]
    prefer = wanted.get("all", AUTO)
    named = attention.get(prefer)
    return AUTO if named is not None and not need <= named.spec.can else prefer


def choose_ops(
    attention: Mapping[str, Entry[AttentionSpec]],
    kernels: Iterable[Entry[KernelSpec]],
    facts: DeviceFacts,
    *,
    platform: Sequence[str] = (),
    wanted: Mapping[str, str] | None = None,
    locked: Mapping[str, str] | None = None,
) -> dict[str, Choice]:
    """The implementation of every op; raises one FeatureError with all reasons."""
    kernels = list(kernels)
    chosen: dict[str, Choice] = {}
    refused: list[FeatureError] = []
    for op in OPS:
        name = (locked or {}).get(op, "")
        try:
            chosen[op] = choose_op(
                op, attention, kernels, facts, platform=platform, wanted=wanted, locked=name
            )
        except FeatureError as error:
            refused.append(error)
    texts = list(dict.fromkeys(error.message for error in refused))
    if texts:
        remedies = dict.fromkeys(error.remedy for error in refused if error.remedy)
        raise FeatureError(" ".join(texts), remedy=" ".join(remedies))
    return chosen


class Decision(NamedTuple):
    """What `auto` does for one op or attention role: a choice, or why there is none."""

    op: str
    choice: Choice | None
    refusal: str = ""

    def explain(self) -> str:
        """One line: what was taken and why, or what keeps `auto` from taking anything."""
        return self.choice.explain() if self.choice else f"op {self.op}: {self.refusal}"


def decide_all(
    attention: Mapping[str, Entry[AttentionSpec]],
    kernels: Iterable[Entry[KernelSpec]],
    facts: DeviceFacts,
    *,
    platform: Sequence[str] = (),
) -> tuple[Decision, ...]:
    """What `auto` takes for every op, in the order of `sgld.api.ops.OPS`; never raises."""
    kernels = list(kernels)
    rows: list[Decision] = []
    for op in OPS:
        try:
            rows.append(Decision(op, choose_op(op, attention, kernels, facts, platform=platform)))
        except FeatureError as error:
            rows.append(Decision(op, None, str(error)))
    return tuple(rows)
