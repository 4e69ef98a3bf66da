"""Native pipelines first, fallbacks after them, and what the user may ask for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgld.api.errors import ModelError, ParameterError, PluginError
from sgld.api.specs import NATIVE, Claims, Failure, PipelineSpec, Plugin, Where
from sgld.plugins.backends import AUTO, groups
from sgld.plugins.catalog import Catalog
from sgld.plugins.check import problems
from sgld.plugins.describe import Described
from sgld.plugins.find import Found
from sgld.plugins.match import Evidence
from sgld.plugins.recognise import recognise
from sgld.plugins.resolve import Entry, resolve
from sgld.weights.resolve import resolve as resolve_model

INDEX = "model_index.json"


def spec(id: str, backend: str = NATIVE, **more: Any) -> PipelineSpec:
    claims = more.pop("claims", Claims(rules=((Where(INDEX, "_class_name", "==", id),),)))
    return PipelineSpec(id, "m:T", "m:P", ("text-to-image",), claims, backend=backend, **more)


FALLBACK = spec("any", "other", claims=Claims(files=(INDEX,)), inspect="m:inspect")


def catalog(*specs: PipelineSpec, failures: Any = ()) -> Catalog:
    rows = [
        Described(Found(row.id, "m", row.id, "1.0", "installed"), Plugin(row.id, {}),
                  {"pipeline": (row,)})
        for row in specs
    ]  # fmt: skip
    return Catalog(resolve(rows, {}), (), failures)


def folder(tmp_path: Path, class_name: Any) -> Evidence:
    (tmp_path / INDEX).write_text(json.dumps({"_class_name": class_name}))
    return Evidence(resolve_model(str(tmp_path)))


def test_a_native_pipeline_that_claims_it_wins(tmp_path: Path) -> None:
    # Also with evidence that is weaker than the fallback's own.
    weak = spec("weak", claims=Claims(patterns=(f"{tmp_path.name}*",)))
    for native in (spec("mine"), weak):
        plugins = catalog(native, FALLBACK)
        evidence = folder(tmp_path, "mine")
        assert recognise(plugins, evidence).entry.spec.id == native.id
        assert recognise(plugins, evidence, "", "native").entry.spec.id == native.id
        assert recognise(plugins, evidence, "", "other").entry.spec.id == "any"


@pytest.mark.parametrize("class_name", ["Else", ["pipeline", "Mine"]])
def test_a_fallback_serves_the_rest(tmp_path: Path, class_name: Any) -> None:
    plugins, evidence = catalog(spec("mine"), FALLBACK), folder(tmp_path, class_name)
    found = recognise(plugins, evidence)
    assert (found.entry.spec.id, [row.pipeline for row in found.tried]) == ("any", ["mine", "any"])
    with pytest.raises(ModelError, match="no plugin serves"):
        recognise(plugins, evidence, "", "native")


def test_a_pin_that_no_native_pipeline_knows_is_the_fallbacks(tmp_path: Path) -> None:
    plugins, evidence = catalog(spec("mine"), FALLBACK), folder(tmp_path, "mine")
    assert recognise(plugins, evidence, "mine").entry.spec.id == "mine"
    assert recognise(plugins, evidence, "Else").entry.spec.id == "any"
    with pytest.raises(ModelError, match="no usable plugin has a pipeline 'Else'"):
        recognise(plugins, evidence, "Else", "native")
    with pytest.raises(ModelError, match="no usable plugin has a pipeline 'Else'"):
        recognise(catalog(spec("mine")), evidence, "Else")


def test_a_backend_that_nobody_brings_is_named(tmp_path: Path) -> None:
    evidence = folder(tmp_path, "mine")
    with pytest.raises(ParameterError, match="There are: auto, native, other"):
        recognise(catalog(spec("mine"), FALLBACK), evidence, "", "else")
    with pytest.raises(ParameterError, match="pip install sgld-diffusers"):
        recognise(catalog(spec("mine")), evidence, "", "diffusers")


def test_a_fallback_does_not_hide_a_broken_native_plugin(tmp_path: Path) -> None:
    broken = Failure("SGLD-P001", "wan", "sgld-wan", "1.0", "import", "it does not import.")
    evidence = folder(tmp_path, "WanPipeline")
    with pytest.raises(PluginError, match="does not import"):
        recognise(catalog(FALLBACK, failures=[broken]), evidence)
    assert recognise(catalog(FALLBACK, failures=[broken]), evidence, "", "other").score
    # A broken plugin of another family changes nothing.
    other = folder(tmp_path, "ElsePipeline")
    assert recognise(catalog(FALLBACK, failures=[broken]), other).entry.spec.id == "any"


def test_a_broken_detector_hinders_no_fallback(tmp_path: Path) -> None:
    bad = spec("bad", claims=Claims(detect="nowhere.at_all:detect"))
    evidence = folder(tmp_path, "Else")
    found = recognise(catalog(bad, FALLBACK), evidence)
    assert found.entry.spec.id == "any"
    assert found.tried[0].failure is not None
    with pytest.raises(PluginError, match="nowhere"):
        recognise(catalog(bad), evidence)


def test_two_fallbacks_that_fit_equally_are_ambiguous(tmp_path: Path) -> None:
    second = FALLBACK._replace(id="second", backend="second")
    plugins, evidence = catalog(FALLBACK, second), folder(tmp_path, "Else")
    with pytest.raises(ModelError, match="equally well by any"):
        recognise(plugins, evidence)
    assert recognise(plugins, evidence, "", "second").entry.spec.id == "second"


@given(st.lists(st.sampled_from([NATIVE, "one", "two"]), max_size=6))
def test_groups_are_a_partition_with_the_native_ones_first(backends: list[str]) -> None:
    entries = {
        f"p{index}": Entry(spec(f"p{index}", name), "p", "p", "1")
        for index, name in enumerate(backends)
    }
    made = groups(entries, AUTO)
    assert sorted(name for group in made for name in group) == sorted(entries)
    assert all(entry.spec.backend == NATIVE for entry in made[0].values())
    assert all(entry.spec.backend != NATIVE for group in made[1:] for entry in group.values())
    for name in {NATIVE, *backends}:
        [only] = groups(entries, name)
        assert set(only) == {key for key, row in entries.items() if row.spec.backend == name}


@pytest.mark.parametrize(
    ("change", "field"),
    [({"backend": "Two Words"}, "backend"), ({"max_running": -1}, "max_running"),
     ({"max_running": True}, "max_running"), ({"inspect": "no target"}, "inspect")],
)  # fmt: skip
def test_a_wrong_record_is_named(change: dict[str, Any], field: str) -> None:
    assert problems(FALLBACK) == []
    assert any(row.startswith(f"{field}=") for row in problems(FALLBACK._replace(**change)))
