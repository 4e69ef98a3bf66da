"""Names travel from a checkpoint to a module; every difference is found, nothing is guessed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgld.weights.mapping import Problems, Target, make_plan

QKV = Target("qkv", ("q", "k", "v"), combine=list)


@pytest.mark.parametrize(
    ("expected", "stored", "options", "problems"),
    [
        ("a b", "a b", {}, Problems()),
        ("a b", "a", {}, Problems(missing=("b",))),
        ("a", "a b", {}, Problems(unexpected=("b",))),
        ("a b.x", "a", {"optional": ["b.*"]}, Problems()),
        ("a b.x", "a b.x", {"optional": ["b.*"]}, Problems()),
        ("a", "a b.x.c", {"ignore": ["b.*"]}, Problems()),
        ("a", "a b", {"ignore": ["B"]}, Problems(unexpected=("b",))),
        ("a", "m.a", {"rename": lambda name: name.removeprefix("m.")}, Problems()),
        ("a", "a junk", {"rename": lambda name: None if name == "junk" else name}, Problems()),
        ("a b", "x b", {"rename": {"x": "a"}}, Problems()),
        ("a", "a b", {"rename": {"b": None}}, Problems()),
        ("a", "m.a m.x", {"rename": lambda n: n[2:], "ignore": ["x"]}, Problems()),
        ("a", "a b", {"rename": {"b": "a"}}, Problems(doubled=("a (a, b)",))),
        ("a b", "a", {"same": [("a", "b")]}, Problems()),
        ("a b c", "b c", {"same": [("a", "b"), ("c",)]}, Problems()),
        ("a b", "", {"same": [("a", "b")]}, Problems(missing=("a", "b"))),
        ("qkv", "q k v", {"convert": [QKV]}, Problems()),
        ("qkv", "q v", {"convert": [QKV]}, Problems(missing=("k (for qkv)",))),
        ("other", "q k v", {"convert": [QKV]}, Problems(("other",), ("qkv",))),
        ("qkv", "q k v qkv", {"convert": [QKV]}, Problems(doubled=("qkv (qkv, a conversion)",))),
        ("x", "q k", {"convert": [Target("x", ("q", "k"))]}, Problems(other=("x has 2",))),
        ("b a", "ab", {"convert": [Target(n, ("ab",), list) for n in "ab"]}, Problems()),
        ("a", "b", {"convert": [Target("a", ("b",))] * 2}, Problems(doubled=("a (two con",))),
        ("qkv", "q k v", {"convert": lambda names: [QKV] if "q" in names else []}, Problems()),
        ("qkv", "qkv", {"convert": lambda names: [QKV] if "q" in names else []}, Problems()),
        ("qkv", "m.q m.k m.v", {"rename": lambda n: n[2:], "convert": [QKV]}, Problems()),
    ],
)
def test_plans(expected: str, stored: str, options: dict[str, Any], problems: Problems) -> None:
    shapes = dict.fromkeys(f"{expected} {stored}".split(), (1,))
    plan = make_plan(
        {name: shapes[name] for name in expected.split()},
        {name: shapes[name] for name in stored.split()},
        **options,
    )
    found = plan.problems
    for field in ("missing", "unexpected", "shapes", "doubled", "other"):
        have, want = getattr(found, field), getattr(problems, field)
        assert len(have) == len(want), found
        assert all(a == b or a.startswith(b) for a, b in zip(have, want, strict=True)), found
    assert bool(found) == bool(problems)
    if not found:
        for target in plan.targets:
            assert set(target.sources) <= set(stored.split())


def test_sources_are_given_under_their_stored_names() -> None:
    plan = make_plan(
        {"qkv": (3,)},
        {"m.q": (1,), "m.k": (1,), "m.v": (1,)},
        rename=lambda name: name[2:],
        convert=[QKV],
        shape_of=lambda target, shapes: (sum(shape[0] for shape in shapes),),
    )
    assert not plan.problems
    assert plan.targets[0].sources == ("m.q", "m.k", "m.v")


def test_the_shape_of_a_combination_is_checked() -> None:
    plan = make_plan(
        {"qkv": (4,)},
        {"q": (1,), "k": (1,), "v": (1,)},
        convert=[QKV],
        shape_of=lambda target, shapes: (3,),
    )
    assert plan.problems.shapes == (("qkv", (4,), (3,)),)


NAMES = st.sets(st.text("abcd.", min_size=1, max_size=4), max_size=8)


@given(NAMES, NAMES)
def test_without_options_the_problems_are_the_set_differences(
    expected: set[str], stored: set[str]
) -> None:
    plan = make_plan(dict.fromkeys(expected, (1,)), dict.fromkeys(stored, (1,)))
    assert set(plan.problems.missing) == expected - stored
    assert set(plan.problems.unexpected) == stored - expected
    assert {target.name for target in plan.targets} == expected & stored
