"""The option `cache_policy` reaches the caches of a model, or is refused before it is loaded."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from sgld.api import CacheSpec, Plugin, hookimpl
from sgld.api.errors import FeatureError, PluginError
from sgld.causal.policies import Frame, Rolling
from sgld.engine.build import build_engine
from sgld.messages import LAST, Request
from sgld.params.merge import Layer
from sgld.params.serving import ServingOptions
from sgld.plan import ModelPlan, make_plan
from sgld.testing.toy_world import ToyWorldPipeline


@dataclass(frozen=True)
class Forgetful(Rolling):
    """Keeps nothing but the sink."""

    def drop(self, kept: Sequence[Frame], chunk: Sequence[Frame]) -> Collection[int]:
        return [frame.index for frame in kept[self.sink :]]


class Hollow:
    """No policy."""


@pytest.fixture(autouse=True)
def plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    module = ModuleType("acme_forgetful")

    @hookimpl
    def sgld_plugin() -> Plugin:
        return Plugin("acme", {"cache": 1})

    @hookimpl
    def sgld_caches() -> Iterator[CacheSpec]:
        yield CacheSpec("forgetful", "acme_forgetful:Forgetful", bounded=True)
        yield CacheSpec("hollow", "acme_forgetful:Hollow", bounded=True)

    vars(module).update(sgld_plugin=sgld_plugin, sgld_caches=sgld_caches)
    vars(module).update(Forgetful=Forgetful, Hollow=Hollow)
    monkeypatch.setitem(sys.modules, "acme_forgetful", module)
    return


def plan(model: str, policy: str | None) -> ModelPlan:
    options = ServingOptions.model_validate(
        {"model_path": f"tiny:{model}", "device": "cpu", "cache_policy": policy}
    )
    names = "sgld.testing.toy_plugin,acme_forgetful"
    return make_plan(options, environ={"SGLD_EXTERNAL_MODEL_PACKAGE": names})


def frames(policy: str | None) -> Any:
    """The whole clip of a tiny world; its prompt and seed are always the same."""
    made: list[Any] = []
    decided = plan("toy-world", policy)
    try:
        built = decided.build([Layer("call", {"prompt": "hills", "num_frames": 15})])
        engine = build_engine(decided, made.append)
        try:
            engine.submit(Request("r", built.params.model_dump(mode="json"), (7,)))
            while not made or made[-1].kind not in LAST:
                engine.turn()
        finally:
            engine.close()
    finally:
        decided.close()
    (output,) = [event for event in made if event.kind == "output"]
    return output.output.frames


def test_a_policy_of_a_plugin_decides_what_a_chunk_sees() -> None:
    own, named, forgetful = (frames(policy) for policy in (None, "rolling", "forgetful"))
    assert np.array_equal(own, named)
    assert np.array_equal(own[:3], forgetful[:3])  # the first chunk has nothing to forget
    assert not np.array_equal(own[3:7], forgetful[3:7])


@pytest.mark.parametrize(
    ("model", "policy", "told"),
    [
        ("toy-world", "nonsense", "It takes: forgetful, global-sink"),
        ("toy-image", "rolling", "none, for it keeps no history"),
    ],
)
def test_what_a_model_does_not_take_is_refused(model: str, policy: str, told: str) -> None:
    with pytest.raises(FeatureError, match=f"--cache-policy {policy}.*{told}"):
        plan(model, policy)


def test_what_is_no_policy_is_refused_before_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server then ends with failed readiness, as with any engine that cannot be built."""
    monkeypatch.setattr(ToyWorldPipeline, "load", lambda loader: pytest.fail("loads"))
    decided = plan("toy-world", "hollow")
    try:
        with pytest.raises(
            PluginError, match=r"SGLD-P007.*class Hollow.*not derived from .*Policy"
        ):
            build_engine(decided, lambda _: None)
    finally:
        decided.close()
