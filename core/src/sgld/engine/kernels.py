"""Binds the named ops to what was chosen for this device: once, when a model is built."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import structlog

from sgld.api.contracts import DeviceFacts
from sgld.api.errors import ParameterError, Problem
from sgld.ops.table import Op, Ops
from sgld.platforms.platform import Platform
from sgld.plugins.catalog import load_target
from sgld.plugins.choose import AUTO, Choice, choose_attention, choose_kernel

if TYPE_CHECKING:
    from sgld.plan import ModelPlan

log = structlog.get_logger("sgld.kernels")

ATTENTION = "attention."
NEEDS: Mapping[str, frozenset[str]] = {"masked": frozenset({"mask"})}
"""Role of attention → abilities its backend must have; the others need none."""


def bind_ops(plan: ModelPlan, platform: Platform) -> Ops:
    """The op table for a model: a plugin's kernel where one fits, else the torch reference.

    `--attention` names a backend for every role that it is able to play (`all`), or for one
    (`self`, `cross`, `masked`); the role beats `all`.

    Raises:
        FeatureError: a named backend does not fit this device, with the reasons.
        ParameterError: a role that no op has.
    """
    table = Ops.torch()
    facts = platform.facts()
    wanted = dict(plan.options.attention)
    roles = [name.removeprefix(ATTENTION) for name in table if name.startswith(ATTENTION)]
    unknown = sorted(set(wanted) - {*roles, "all"})
    if unknown:
        raise ParameterError(
            [
                Problem("attention", name, "no such role.", f"Roles: all, {', '.join(roles)}.")
                for name in unknown
            ]
        )
    bound: dict[str, Op] = {}
    for name in table:
        if name.startswith(ATTENTION):
            role = name.removeprefix(ATTENTION)
            choice = _attention(plan, facts, role, wanted)
        else:
            choice = choose_kernel(plan.catalog.kernels.values(), name, facts)
        log.debug("kernel chosen", choice=choice.explain())
        if choice.entry is not None:
            bound[name] = load_target(choice.target, choice.entry)
    return table.replace(bound)


def _attention(plan: ModelPlan, facts: DeviceFacts, role: str, wanted: Mapping[str, str]) -> Choice:
    need = NEEDS.get(role, frozenset())
    prefer = wanted.get(role)
    if prefer is None:
        prefer = wanted.get("all", AUTO)
        named = plan.catalog.attention.get(prefer)
        if named is not None and not need <= named.spec.can:
            prefer = AUTO
    return choose_attention(plan.catalog.attention.values(), facts, need=need, prefer=prefer)
