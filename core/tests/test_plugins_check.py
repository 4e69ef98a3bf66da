"""Records are well formed before they are stored: one wrong value of each kind."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgld.api import specs
from sgld.api.specs import (
    AttentionSpec,
    CacheSpec,
    Claims,
    CommandSpec,
    KernelSpec,
    PipelineSpec,
    Plugin,
    Preset,
    RealtimeSpec,
    Requires,
    RouteSpec,
    Where,
)
from sgld.plugins.check import CHECKS, problems
from sgld.plugins.describe import HOOKS

RULE = (Where("model_index.json", "_class_name", "==", "X"),)
PIPELINE = PipelineSpec("a-b", "m:P", "m:Q", ("text-to-video",), Claims())


def test_every_field_of_every_record_has_a_check() -> None:
    records = [kind for _, kind in HOOKS.values()]
    records += [Plugin, Requires, Claims, Where, Preset]
    fields = {field for record in records for field in record._fields}
    assert fields == set(CHECKS)


GOOD: list[Any] = [
    PIPELINE,
    PIPELINE._replace(claims=Claims(rules=(RULE, RULE)), presets=(Preset("p", {"steps": 4}),)),
    PIPELINE._replace(target="", params="", tasks=(), retired="0.4"),
    PIPELINE._replace(blueprints={"tiny": "m.x:f"}),
    AttentionSpec("flash-3.1", "a.b:C.d", Requires("cuda", (90, 90), packages=("flash",))),
    KernelSpec("k", "norm.rms", "a:b", numerics="atol=1e-3"),
    CommandSpec("bench", "a:b", "Measure."),
    RouteSpec("/v1/x", ("GET", "POST"), "a:b"),
    Plugin("acme", {"pipeline": 1, "later": 2}, needs=("wan",)),
]


@pytest.mark.parametrize("record", GOOD)
def test_good(record: Any) -> None:
    assert problems(record) == []


BAD: list[tuple[Any, str]] = [
    (PIPELINE._replace(id="Wan_T2V"), "id="),
    (PIPELINE._replace(id=""), "id="),
    (PIPELINE._replace(id=3), "id="),
    (PIPELINE._replace(target="m.P"), "target="),
    (PIPELINE._replace(target="m:P:Q"), "target="),
    (PIPELINE._replace(target="m-x:P"), "target="),
    (PIPELINE._replace(params=""), "params="),
    (PIPELINE._replace(tasks=()), "tasks="),
    (PIPELINE._replace(tasks="t2v"), "tasks="),
    (PIPELINE._replace(tasks=("text-to-imag",)), "Did you mean 'text-to-image'? Known: text-to-"),
    (PIPELINE._replace(tasks=("text-to-image", "dance")), "unknown task 'dance'. Known: "),
    (PIPELINE._replace(tasks=["t2v"]), "tasks="),
    (PIPELINE._replace(claims=None), "claims="),
    (PIPELINE._replace(claims=Claims(repos="a/b")), "repos="),  # type: ignore[arg-type]
    (PIPELINE._replace(claims=Claims(rules=RULE)), "alternatives"),  # type: ignore[arg-type]
    (PIPELINE._replace(claims=Claims(rules=((),))), "alternatives"),
    (PIPELINE._replace(claims=Claims(rules=((Where("f", "k", "~"),),))), "test="),
    (PIPELINE._replace(claims=Claims(rules=((Where("f", "k", "in", "ab"),),))), "'in'"),
    (PIPELINE._replace(claims=Claims(detect="nope")), "detect="),
    (PIPELINE._replace(features={"cfg"}), "features="),
    (PIPELINE._replace(presets={"*": {}}), "presets="),
    (PIPELINE._replace(presets=(Preset("p", {}), Preset("p", {}))), "two presets"),
    (PIPELINE._replace(presets=(Preset("p", {"two words": 1}),)), "two words"),
    (PIPELINE._replace(blueprints={"tiny": "m"}), "blueprints="),
    (AttentionSpec("a", "a:b", Requires(arch=(90, 80))), "arch="),
    (AttentionSpec("a", "a:b", Requires(arch=(-1, 80))), "arch="),
    (AttentionSpec("a", "a:b", Requires(arch=90)), "arch="),  # type: ignore[arg-type]
    (AttentionSpec("a", "a:b", Requires(arch=(True, 80))), "arch="),
    (AttentionSpec("a", "a:b", Requires(device="")), "device="),
    (AttentionSpec("a", "a:b", Requires(packages="x")), "packages="),  # type: ignore[arg-type]
    (AttentionSpec("a", "a:b", Requires(programs="x")), "programs="),  # type: ignore[arg-type]
    (AttentionSpec("a", "a:b", priority=True), "priority="),
    (AttentionSpec("a", "a:b", priority="1"), "priority="),  # type: ignore[arg-type]
    (AttentionSpec("a", "a:b", exact=1), "exact="),  # type: ignore[arg-type]
    (KernelSpec("k", "rms", "a:b"), "op="),
    (KernelSpec("k", "norm.rms", "a:b", contract=0), "contract="),
    (KernelSpec("k", "norm.rms", "a:b", numerics="nearly"), "numerics="),
    (CacheSpec("c", "a:b", bounded="yes"), "bounded="),  # type: ignore[arg-type]
    (CacheSpec("c", "a:b", True, quant=("int4", 4)), "quant="),  # type: ignore[arg-type]
    (CommandSpec("Bench", "a:b", "x"), "name="),
    (CommandSpec("bench", "a:b", " "), "help="),
    (RouteSpec("v1/x", ("GET",), "a:b"), "path="),
    (RouteSpec("/v1/x", ("get",), "a:b"), "methods="),
    (RouteSpec("/v1/x", (), "a:b"), "methods="),
    (RealtimeSpec("r", "Wan T2V", "a:b"), "pipeline="),
    (Plugin("acme", ["pipeline"]), "contracts="),  # type: ignore[arg-type]
    (Plugin("acme", {"pipeline": 0}), "contracts="),
    (Plugin("acme", {"pipeline": True}), "contracts="),
    (Plugin("acme", {}, needs="wan"), "needs="),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("record", "part"), BAD)
def test_bad(record: Any, part: str) -> None:
    rows = problems(record)
    assert len(rows) == 1, rows
    assert part in rows[0]


def test_all_problems_are_given_at_once() -> None:
    rows = problems(PIPELINE._replace(id="X", target="y", tasks=()))
    assert [row.partition("=")[0] for row in rows] == ["id", "target", "tasks"]


@given(st.lists(st.from_regex(r"[a-z][a-z0-9]{0,5}", fullmatch=True), min_size=1, max_size=4))
def test_joined_words_are_ids(words: list[str]) -> None:
    assert problems(PIPELINE._replace(id="-".join(words))) == []
    assert problems(PIPELINE._replace(id="-".join(words) + "-")) != []


@given(
    st.one_of(st.none(), st.integers(), st.text(), st.lists(st.text()), st.binary(), st.floats())
)
def test_no_value_makes_a_check_raise(value: Any) -> None:
    for field in specs.PipelineSpec._fields:
        problems(PIPELINE._replace(**{field: value}))
    for field in Requires._fields:
        problems(Requires()._replace(**{field: value}))
