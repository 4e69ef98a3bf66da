"""A policy of a plugin that cannot be one, or answers what it must not, is told so by name."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from sgld.api import CacheSpec
from sgld.api.errors import PluginError
from sgld.causal.errors import StateError
from sgld.causal.kv import KvCache, KvShape
from sgld.causal.policies import Frame, Policy, Rolling
from sgld.engine.cache_policy import check_policy, make_policy
from sgld.plugins.resolve import Entry
from sgld.testing.conformance.cache_list import ListModel, write_chunk

HERE = __name__
SHAPE = KvShape(1, 1, 1, 1, torch.float32, "cpu")


@dataclass(frozen=True)
class Tide:
    """Looks like a policy, and is none."""

    window: int
    capacity = 9

    def drop(self, kept: object, chunk: object) -> tuple[int, ...]:
        return ()


class Half(Policy):
    """Implements one of three."""

    capacity = 9


def function(window: int) -> Rolling:
    return Rolling(window)


def wrong_function(window: int) -> Tide:
    return Tide(window)


NUMBER = 7


def entry(attribute: str, module: str = HERE) -> Entry[CacheSpec]:
    return Entry(CacheSpec("mine", f"{module}:{attribute}", True), "acme", "acme-dist", "1")


@pytest.mark.parametrize(
    ("attribute", "words"),
    [
        ("Tide", "is class Tide, which is not derived from sgld.causal.policies.Policy and lacks "
                 "drop_for_clean, protected, visible"),
        ("Half", "is class Half, which does not implement drop, protected"),
        ("NUMBER", "is 7, which cannot be called"),
        ("Absent", "'Absent'"),
    ],
)  # fmt: skip
def test_a_target_that_can_be_no_policy(attribute: str, words: str) -> None:
    with pytest.raises(PluginError, match=r"SGLD-P007 acme.*target") as caught:
        check_policy(entry(attribute))
    assert words in str(caught.value)
    assert [row.code for row in caught.value.failures] == ["SGLD-P007"]


def test_a_target_that_does_not_import() -> None:
    with pytest.raises(PluginError, match=r"SGLD-P007.*'acme_absent' is not there"):
        check_policy(entry("Tide", "acme_absent"))


def test_functions_are_judged_by_what_they_make() -> None:
    check_policy(entry("function"))
    check_policy(None)
    assert make_policy(entry("function"), window=4) == Rolling(4)
    check_policy(entry("wrong_function"))
    with pytest.raises(
        PluginError, match=r"SGLD-P007.*makes an object of class Tide, which is not"
    ):
        make_policy(entry("wrong_function"), window=4)


def answering(method: str, answer: Callable[[Any], Any]) -> Policy:
    """A rolling policy, one method of which answers otherwise."""
    body = {method: lambda _, kept, __: answer(kept), "__repr__": lambda _: "Odd()"}
    return type("Odd", (Rolling,), body)(window=4, sink=1)


INDICES = "a collection of indices"
ANSWERS = [
    ("drop", lambda _: None, "drop() returned None", INDICES),
    ("drop", lambda _: 3, "drop() returned 3", INDICES),
    ("drop", lambda _: "01", "drop() returned '01'", INDICES),
    ("drop", lambda kept: kept[:1], "drop() returned (Frame(index=0", INDICES),
    ("drop", lambda _: [True], "drop() returned [True]", INDICES),
    ("drop", lambda kept: (f.index for f in kept), "drop() returned <generator", INDICES),
    ("drop", lambda kept: kept and [77, 0], "drop() returned [77, 0]: [77] are not kept", INDICES),
    ("drop_for_clean", lambda _: None, "drop_for_clean() returned None", INDICES),
    ("visible", lambda _: None, "visible() returned None", "a sequence of frames"),
    ("visible", lambda _: [0], "visible() returned [0]", "a sequence of frames"),
    (
        "visible",
        lambda kept: [f._replace(index=77) for f in kept],
        "frames [77]",
        "a sequence of frames",
    ),
]


@pytest.mark.parametrize(("method", "answer", "what", "wanted"), ANSWERS)
def test_a_wrong_answer_names_method_answer_and_what_is_wanted(
    method: str, answer: Callable[[Any], Any], what: str, wanted: str
) -> None:
    cache = KvCache(SHAPE, answering(method, answer))

    def two_chunks() -> None:
        for _ in range(2):
            write_chunk(cache, 1)
            cache.clean()
            cache.commit()

    with pytest.raises(StateError) as caught:
        two_chunks()
    assert caught.value.code == "policy_answer"
    assert caught.value.message.startswith("cache policy Odd(): ")
    assert what in caught.value.message
    assert f"It must return {wanted}" in caught.value.remedy


@pytest.mark.parametrize(("method", "answer", "what", "wanted"), ANSWERS)
def test_the_kit_says_the_same(
    method: str, answer: Callable[[Any], Any], what: str, wanted: str
) -> None:
    model = ListModel(answering(method, answer))

    def two_chunks() -> None:
        for _ in range(2):
            model.begin(1)
            list(model.seen())
            model.clean()

    with pytest.raises(pytest.fail.Exception) as caught:
        two_chunks()
    assert what in str(caught.value)
    assert f"remedy: It must return {wanted}" in str(caught.value)


def test_what_counts_as_an_index() -> None:
    """Numbers of other libraries do; a dropped frame is gone whatever type named it."""
    cache = KvCache(SHAPE, answering("drop", lambda kept: {np.int64(f.index) for f in kept}))
    for number in itertools.islice(itertools.count(), 3):
        write_chunk(cache, 1)
        assert cache.kept == (Frame(number, 0, 0, False, float(number)),)
        cache.commit()
