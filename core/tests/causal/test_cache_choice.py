"""A policy is found by its id, also one that a plugin brings."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import ModuleType

import pytest

from sgld.api import CacheSpec, Plugin, hookimpl
from sgld.api.errors import FeatureError, ParameterError, PluginError
from sgld.causal.policies import GlobalSink, Growing, PinnedSink, Policy, Rolling
from sgld.engine.cache_policy import make_policy, remake
from sgld.plugins.catalog import Catalog, collect
from sgld.plugins.choose import choose_cache
from sgld.plugins.failures import failure
from sgld.plugins.resolve import Entry


@dataclass(frozen=True)
class EveryOther(Rolling):
    """A policy of a plugin."""


class Plain(Policy):
    """No dataclass."""

    capacity = protected = 1

    def drop(self, kept: object, chunk: object) -> tuple[int, ...]:
        return ()


@pytest.fixture
def catalog(monkeypatch: pytest.MonkeyPatch) -> Catalog:
    module = ModuleType("acme_caches")

    @hookimpl
    def sgld_plugin() -> Plugin:
        return Plugin("acme", {"cache": 1})

    @hookimpl
    def sgld_caches() -> list[CacheSpec]:
        return [CacheSpec("every-other", "acme_caches:EveryOther", bounded=True)]

    vars(module).update(sgld_plugin=sgld_plugin, sgld_caches=sgld_caches, EveryOther=EveryOther)
    monkeypatch.setitem(sys.modules, "acme_caches", module)
    return collect({"SGLD_PLUGINS": "acme", "SGLD_EXTERNAL_MODEL_PACKAGE": "acme_caches"})


def test_ours_are_announced(catalog: Catalog) -> None:
    ours = {name: entry for name, entry in catalog.caches.items() if entry.plugin == "builtin"}
    assert list(ours) == ["global-sink", "growing", "pinned-sink", "rolling"]
    assert make_policy(ours["rolling"], window=9, sink=3) == Rolling(9, 3)
    assert make_policy(ours["growing"], limit=9) == Growing(9)
    assert make_policy(ours["global-sink"], window=9) == GlobalSink(9)
    made = make_policy(ours["pinned-sink"], window=9, sink=2, clean_recache=True)
    assert made == PinnedSink(9, 2, True)
    assert [name for name, entry in ours.items() if not entry.spec.bounded] == ["growing"]


def test_a_plugin_brings_another(catalog: Catalog) -> None:
    entry = choose_cache(catalog.caches, ("rolling", "every-other"), "every-other")
    assert entry.plugin == "acme"
    assert make_policy(entry, window=4) == EveryOther(4)
    assert choose_cache(catalog.caches, ("rolling", "*"), "every-other") is entry


def test_what_a_pipeline_does_not_support_is_refused(catalog: Catalog) -> None:
    assert choose_cache(catalog.caches, ("rolling", "growing"), "growing").spec.id == "growing"
    with pytest.raises(FeatureError, match=r"--cache-policy growing.*It takes: rolling\."):
        choose_cache(catalog.caches, ("rolling",), "growing")
    with pytest.raises(FeatureError, match="none, for it keeps no history"):
        choose_cache(catalog.caches, (), "rolling")
    with pytest.raises(FeatureError, match="no usable plugin brings it"):
        choose_cache(catalog.caches, ("rolling", "gone"), "gone")
    taken = "nonsense: no usable plugin brings it. It takes: every-other, global-sink, growing"
    with pytest.raises(FeatureError, match=taken):
        choose_cache(catalog.caches, ("rolling", "*"), "nonsense")
    with pytest.raises(FeatureError, match="Did you mean 'rolling'"):
        choose_cache(catalog.caches, ("*",), "roling")


def test_a_policy_whose_plugin_failed_is_told_with_its_reason(catalog: Catalog) -> None:
    rows = [
        failure("SGLD-P001", name, "import failed.", dist=f"{name}-dist", version="1")
        for name in ("my-scenes", "other")
    ]
    for supported in (("*",), ("rolling", "my-scenes")):
        with pytest.raises(FeatureError) as caught:
            choose_cache(catalog.caches, supported, "my-scenes", rows)
        text = str(caught.value)
        assert "no usable plugin brings it" in text
        assert "Plugin my-scenes failed: SGLD-P001 my-scenes-dist 1: import failed." in text
        assert "other-dist" not in text
    with pytest.raises(FeatureError, match="Plugin other failed: SGLD-P001"):
        choose_cache(catalog.caches, ("*",), "elsewhere", rows)


def test_the_users_policy_gets_the_settings_of_the_familys_own(catalog: Catalog) -> None:
    own = Rolling(9, 3)
    assert remake(None, own) is own
    assert remake(catalog.caches["global-sink"], own) == GlobalSink(9, 3)
    assert remake(catalog.caches["every-other"], own) == EveryOther(9, 3)
    assert remake(catalog.caches["rolling"], PinnedSink(9, 3)) == Rolling(9, 3)
    with pytest.raises(FeatureError, match="'global-sink' has no recent"):
        remake(catalog.caches["global-sink"], Rolling(9, 3, recent=2))
    with pytest.raises(
        FeatureError, match="'growing' has no sink and has no window and needs limit"
    ):
        remake(catalog.caches["growing"], own)
    with pytest.raises(TypeError, match="no dataclass"):
        remake(catalog.caches["rolling"], Plain())


def test_wrong_settings_are_named() -> None:
    target = "sgld.causal.policies:Rolling"
    with pytest.raises(FeatureError, match=r"has no colour.*Its settings: window, sink"):
        make_policy(target, window=4, colour=1)
    with pytest.raises(FeatureError, match="needs window"):
        make_policy(target, sink=1)
    with pytest.raises(ParameterError, match="sink=4"):
        make_policy(target, window=4, sink=4)
    assert make_policy(target, window=4, recent=None) == Rolling(4)
    broken = Entry(CacheSpec("x", "sgld.nowhere:X", True), "acme", "acme", "1")
    with pytest.raises(PluginError, match="SGLD-P007"):
        make_policy(broken)
