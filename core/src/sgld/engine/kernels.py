"""Binds the named ops to what was chosen for this device: once, when a model is built."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from sgld.api.errors import ParameterError, Problem
from sgld.api.ops import ATTENTION
from sgld.ops.table import Op, Ops
from sgld.platforms.platform import Platform
from sgld.plugins.binding import choose_ops
from sgld.plugins.catalog import load_target

if TYPE_CHECKING:
    from sgld.plan import ModelPlan

log = structlog.get_logger("sgld.kernels")


def bind_ops(plan: ModelPlan, platform: Platform) -> Ops:
    """The op table for a model: a plugin's kernel where one fits, else the torch reference.

    What the plan's lock says is taken, or refused where it does not fit the device. `--attention`
    names a backend for every role that it is able to play (`all`), or for one (`self`, `cross`,
    `masked`); the role beats `all`.

    Raises:
        FeatureError: something that was named does not fit this device, with all reasons.
        ParameterError: a role that no op has.
    """
    table = Ops.torch()
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
    catalog = plan.catalog
    family = catalog.platforms.get(platform.id)
    choices = choose_ops(
        catalog.attention,
        catalog.kernels.values(),
        platform.facts(),
        platform=family.spec.attention if family is not None else (),
        wanted=wanted,
        locked=plan.lock.choices,
    )
    bound: dict[str, Op] = {}
    for name, choice in choices.items():
        log.debug("kernel chosen", choice=choice.explain())
        if choice.entry is not None:
            bound[name] = load_target(choice.target, choice.entry)
    return table.replace(bound)
