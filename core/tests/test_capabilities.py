"""Capabilities are data: what a pipeline did not declare is refused at the start, all reasons at
once, before a weight is read or a tiny checkpoint is written."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sgld.api import (
    AttentionSpec,
    FeatureError,
    ParameterError,
    PipelineSpec,
    Plugin,
    Requires,
    features,
    hookimpl,
)
from sgld.engine.engine import EngineSettings
from sgld.params.serving import ServingOptions
from sgld.plan import ModelPlan, make_plan, sketch
from sgld.testing.toy_plugin import sgld_pipelines

ROOT = Path(__file__).resolve().parents[2]
EXTERNAL = {"SGLD_EXTERNAL_MODEL_PACKAGE": "acme_bare", "SGLD_PLUGINS": ""}
EVERY = frozenset(
    value for name, value in vars(features).items() if name.isupper() and isinstance(value, str)
)
TOY = {spec.id: spec for spec in sgld_pipelines()}


@pytest.fixture
def declare(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Install a plugin whose pipeline `bare` is the toy family with just these declarations."""

    def install(**declared: Any) -> None:
        module = ModuleType("acme_bare")

        @hookimpl
        def sgld_plugin() -> Plugin:
            return Plugin("acme", {"pipeline": 1, "attention": 1})

        @hookimpl
        def sgld_pipelines() -> list[PipelineSpec]:
            bare = TOY["toy-image"]._replace(id="bare", features=frozenset(), caches=())
            return [bare._replace(**declared)]

        @hookimpl
        def sgld_attention() -> list[AttentionSpec]:
            return [AttentionSpec("far", "m:far", Requires(device="far"))]

        vars(module).update(
            sgld_plugin=sgld_plugin,
            sgld_pipelines=sgld_pipelines,
            sgld_attention=sgld_attention,
        )
        monkeypatch.setitem(sys.modules, "acme_bare", module)

    install()
    return install


@pytest.fixture
def nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing or opening a checkpoint is an error from now on."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a checkpoint was touched")

    monkeypatch.setattr("sgld.testing.toy_checkpoint.write_image", refuse)
    monkeypatch.setattr("sgld.weights.checkpoint.Checkpoint.open", refuse)


def plan(**options: Any) -> ModelPlan:
    values = {"model_path": "tiny:bare", "device": "cpu", **options}
    return make_plan(ServingOptions.model_validate(values), environ=EXTERNAL)


CASES: list[tuple[dict[str, Any], str, str]] = [
    ({"residency": {"all": "component-offload"}}, "component-offload",
     "--residency transformer=component-offload: pipeline bare does not list 'component-offload'"),
    ({"residency": {"dit": "layerwise-offload"}}, "layerwise-offload",
     "--residency transformer=layerwise-offload: pipeline bare does not list 'layerwise-offload'"),
    ({"load_format": "dummy"}, "dummy-weights",
     "--load-format dummy: pipeline bare does not list 'dummy-weights'"),
    ({"batching": 8}, "step-batching",
     "--batching 8: pipeline bare does not list 'step-batching'"),
    ({"vae_tiling": True}, "vae-tiling",
     "--vae-tiling: pipeline bare does not list 'vae-tiling'"),
    ({"trust_remote_code": True}, "remote-code",
     "--trust-remote-code: pipeline bare does not list 'remote-code'"),
    ({}, "cfg",
     "guidance_scale: pipeline bare does not list 'cfg', though its parameters offer it"),
]  # fmt: skip
"""Options → the feature that they need → what is said without it."""

OTHERS: list[tuple[dict[str, Any], str]] = [
    ({"cache_policy": "rolling"}, "--cache-policy rolling: this model does not take it"),
    ({"max_sessions": 3}, "--max-sessions 3: no plugin brings a realtime adapter for pipeline"),
    ({"session_memory": 2.5}, "--session-memory 2.5: pipeline bare has neither"),
    ({"attention": {"self": "far"}}, "far cannot be used for attention: needs far; this device"),
]
"""What depends on other declarations than features."""


@pytest.mark.usefixtures("nothing_is_read")
@pytest.mark.parametrize(("options", "feature", "message"), CASES)
def test_what_is_not_declared_is_refused(
    options: dict[str, Any], feature: str, message: str, declare: Callable[..., None]
) -> None:
    declare(features=EVERY - {feature})
    with pytest.raises(FeatureError) as caught:
        plan(**options)
    assert message in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(("options", "feature", "message"), CASES)
def test_what_is_declared_is_taken(
    options: dict[str, Any], feature: str, message: str, declare: Callable[..., None]
) -> None:
    declare(features=frozenset({feature, features.CFG}))
    plan(**options).close()


@pytest.mark.usefixtures("declare", "nothing_is_read")
@pytest.mark.parametrize("how", [make_plan, sketch])
def test_a_pipeline_that_declares_nothing_gives_all_reasons_at_once(how: Any) -> None:
    values: dict[str, Any] = {
        "model_path": "tiny:bare",
        "device": "cpu",
        "component_paths": {"transfomer": "x"},
        "residency": {"text_encoder": "component-offload", "dit": "layerwise-offload"},
    }
    for one, *_ in (*CASES[2:], *OTHERS):
        values |= one
    options = ServingOptions.model_validate(values)
    with pytest.raises(FeatureError) as caught:
        how(options, environ=EXTERNAL)
    text = str(caught.value)
    assert "\n" not in text
    assert "component_path.transfomer='x': this model has no component" in text
    assert "--residency text_encoder=component-offload" in text
    for _, _, message in CASES[1:]:
        assert message in text
    for _, message in OTHERS:
        assert message in text
    assert text.endswith("Features of bare: none.")


@pytest.mark.usefixtures("nothing_is_read")
@pytest.mark.parametrize(("options", "message"), OTHERS)
def test_each_of_the_others_alone(
    options: dict[str, Any], message: str, declare: Callable[..., None]
) -> None:
    declare(features=EVERY)
    with pytest.raises(FeatureError, match=re.escape(message)):
        plan(**options)


def test_a_limit_of_requests_at_once(declare: Callable[..., None]) -> None:
    declare(features=EVERY, max_running=1)
    with pytest.raises(FeatureError, match="--max-running 2: pipeline bare runs at most 1"):
        plan(max_running=2)
    plan(max_running=1).close()


def test_wrong_components_alone_are_told_field_by_field(declare: Callable[..., None]) -> None:
    declare(features=EVERY)
    with pytest.raises(ParameterError) as caught:
        plan(component_paths={"vea": "x", "tra": "y"})
    assert [problem.code for problem in caught.value.problems] == ["unknown_component"] * 2


def test_requests_share_forwards_only_where_the_pipeline_says_so(
    declare: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`auto` batching too is a use of the feature."""
    from sgld.engine import build

    seen: list[EngineSettings] = []
    monkeypatch.setattr(build, "Engine", lambda **made: seen.append(made["settings"]))
    for listed in (frozenset({features.CFG}), frozenset({features.CFG, features.STEP_BATCHING})):
        declare(features=listed)
        decided = plan()
        build.build_engine(decided, lambda _: None)
        decided.close()
    assert [settings.together for settings in seen] == [False, True]


def test_the_page_lists_every_feature_with_its_option_and_message() -> None:
    page = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
    table = page.partition("## What a pipeline must declare")[2].partition("\n## ")[0]
    rows = [line.split("|")[1:-1] for line in table.splitlines() if line.startswith("| `")]
    told = {row[0].strip().strip("`"): row for row in rows}
    assert set(told) >= EVERY
    for options, feature, message in CASES:
        said = message.replace("pipeline bare", "pipeline ID")
        said = re.sub(r"transformer=|8", lambda found: {"8": "N"}.get(found[0], "NAME="), said)
        assert said in told[feature][2], (feature, said)
        for name in options:
            assert f"--{name.replace('_', '-')}" in told[feature][1]
