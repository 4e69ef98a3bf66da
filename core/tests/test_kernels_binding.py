"""Which backend each role of attention gets, when some cannot mask."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sgld.api.errors import FeatureError, ParameterError
from sgld.api.specs import AttentionSpec
from sgld.engine.kernels import bind_ops
from sgld.ops import attention
from sgld.platforms.cpu import CpuPlatform
from sgld.plugins.catalog import load_catalog
from sgld.plugins.resolve import Entry

FAST = "sgld.ops.attention:attend"
ROLES = ("attention.self", "attention.cross", "attention.masked")


def bound(wanted: dict[str, str], *, can: frozenset[str], priority: int = 5) -> list[Any]:
    """The three roles' ops beside a backend `fast`, whose target is the written-out reference."""
    catalog = load_catalog({"SGLD_PLUGINS": ""})
    spec = AttentionSpec("fast", FAST, can=can, priority=priority)
    builtin = catalog.attention["sdpa"]
    entries = {"sdpa": builtin, "fast": builtin._replace(spec=spec)}
    plan: Any = SimpleNamespace(
        options=SimpleNamespace(attention=wanted),
        catalog=SimpleNamespace(attention=entries, kernels={}, platforms={}),
        lock=SimpleNamespace(choices={}),
    )
    table = bind_ops(plan, CpuPlatform())
    return [table[role] for role in ROLES]


def test_a_backend_without_masks_leaves_that_role_to_another() -> None:
    fast, torch_own = attention.attend, attention.sdpa_backend
    assert bound({}, can=frozenset()) == [fast, fast, torch_own]
    assert bound({"all": "fast"}, can=frozenset(), priority=0) == [fast, fast, torch_own]
    assert bound({"cross": "fast"}, can=frozenset(), priority=-1) == [torch_own, fast, torch_own]


def test_a_backend_with_masks_plays_every_role() -> None:
    assert bound({}, can=frozenset({"mask"})) == [attention.attend] * 3
    assert bound({"all": "sdpa"}, can=frozenset({"mask"})) == [attention.sdpa_backend] * 3


def test_asking_for_the_impossible_says_why() -> None:
    with pytest.raises(FeatureError, match="cannot do 'mask'"):
        bound({"masked": "fast"}, can=frozenset())
    with pytest.raises(FeatureError, match="there is no such one"):
        bound({"all": "slow"}, can=frozenset())
    with pytest.raises(ParameterError, match="Roles: all, self, cross, masked"):
        bound({"sideways": "sdpa"}, can=frozenset())


def test_entries_are_what_the_catalog_holds() -> None:
    assert isinstance(load_catalog({"SGLD_PLUGINS": ""}).attention["sdpa"], Entry)
