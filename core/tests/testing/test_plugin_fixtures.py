"""The fixtures and options of `sgld.testing.plugin`."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from sgld.api import CacheSpec, PlatformSpec
from sgld.api.errors import UserError
from sgld.causal.policies import Rolling
from sgld.engine.cache_policy import make_policy
from sgld.params.serving import ServingOptions
from sgld.plan import make_plan
from sgld.plugins.catalog import load_catalog, load_target
from sgld.testing.golden import Golden

pytest_plugins = ["pytester"]

TOY = "sgld.testing.toy_plugin"


def test_catalog_of_holds_just_these(catalog_of: Any) -> None:
    assert [row.name for row in catalog_of().plugins] == ["builtin"]
    catalog = catalog_of(TOY, "sgld-wan")
    assert {row.name for row in catalog.plugins} == {"builtin", "toy", "wan"}
    assert "wan-t2v" in catalog.pipelines
    assert not any(name.startswith("flux") for name in catalog.pipelines)


def test_catalog_of_refuses_discovery_elsewhere(catalog_of: Any) -> None:
    catalog_of("wan")
    with pytest.raises(UserError, match="throw-away catalogue") as caught:
        load_catalog({})
    assert caught.value.code == "discovery_refused"
    catalog_of("wan")  # it may itself look again


def test_discovery_is_back_afterwards() -> None:
    assert "wan" in {row.name for row in load_catalog({}).plugins}


def test_catalog_of_names_what_is_not_there(catalog_of: Any) -> None:
    with pytest.raises(UserError, match="Did you mean 'wan'"):
        catalog_of("wann")


def test_a_plan_takes_the_catalogue(catalog_of: Any, tiny: Any) -> None:
    folder = tiny("toy-image", TOY)
    catalog = catalog_of(TOY)
    options = ServingOptions.model_validate({"model_path": str(folder), "device": "cpu"})
    assert make_plan(options, catalog=catalog).spec.id == "toy-image"


class Mine(Rolling):
    """A policy of a throw-away plugin."""


def test_local_plugin_lives_for_one_test(local_plugin: Any, catalog_of: Any) -> None:
    record = CacheSpec("mine", "local_my_own:Mine", bounded=True)
    module = local_plugin("my-own", record, Mine=Mine)
    catalog = catalog_of(module)
    assert not catalog.failures
    assert isinstance(make_policy(catalog.caches["mine"], window=4), Mine)
    assert sys.modules["local_my_own"] is module


def test_local_plugin_is_gone_afterwards() -> None:
    assert "local_my_own" not in sys.modules


def test_local_plugin_states_its_contracts(local_plugin: Any, catalog_of: Any) -> None:
    spec = PlatformSpec("odd", "local_odd:Odd", "local_odd:probe")
    assert not catalog_of(local_plugin("odd", spec)).failures
    old = local_plugin("old", CacheSpec("mine", "a:b", bounded=True), contracts={"cache": 99})
    assert [row.code for row in catalog_of(old).failures] == ["SGLD-P004"]
    with pytest.raises(TypeError, match="no record"):
        local_plugin("wrong", "text")


def test_tiny_is_built_once(tiny: Any) -> None:
    folder = tiny("toy-video", TOY)
    assert (folder / "model_index.json").is_file()
    before = (folder / "model_index.json").stat().st_mtime_ns
    assert tiny("toy-video", TOY) == folder
    assert (folder / "model_index.json").stat().st_mtime_ns == before
    with pytest.raises(UserError, match="no pipeline 'toy-vid"):
        tiny("toy-vid", TOY)


def test_run_pipeline(run_pipeline: Any) -> None:
    small = run_pipeline("toy-image", plugin=TOY, seed=3, width=64, height=32)
    assert small.frames.shape == (1, 32, 64, 3)
    assert small.parameters["seed"] == 3
    again = run_pipeline("toy-image", plugin=TOY, seed=3, width=64, height=32)
    other = run_pipeline("toy-image", plugin=TOY, seed=4, width=64, height=32)
    assert np.array_equal(small.frames, again.frames)
    assert not np.array_equal(small.frames, other.frames)
    dummy = run_pipeline("toy-image", plugin=TOY, options={"load_format": "dummy"}, seed=3)
    assert dummy.frames.shape[0] == 1


def test_run_pipeline_says_why_it_failed(run_pipeline: Any) -> None:
    with pytest.raises(AssertionError, match=r"failed in stage denoise: .*told to fail at step 1"):
        run_pipeline("toy-image", plugin=TOY, fail_at_step=1)


def test_golden_files(tmp_path: Any) -> None:
    values = {"a": torch.arange(6.0).view(2, 3), "b": np.array([1, 2], dtype=np.int32)}
    for name in ("plain", "step.safetensors"):
        with pytest.raises(AssertionError, match="--sgld-golden=write"):
            Golden(tmp_path)(name, values)
        Golden(tmp_path, write=True)(name, values)
        Golden(tmp_path)(name, values)
        near = {**values, "a": values["a"] + 1e-4}
        Golden(tmp_path)(name, near, atol=1e-3)
        with pytest.raises(AssertionError, match=r"a: off by 0.0001.*atol=1e-05"):
            Golden(tmp_path)(name, near, atol=1e-5)
    Golden(tmp_path, write=True)("one", np.array([np.nan, 1.0]))
    Golden(tmp_path)("one", np.array([np.nan, 1.0]))
    with pytest.raises(AssertionError, match="off by"):
        Golden(tmp_path)("one", np.array([0.0, 1.0]))


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"a": np.zeros(2)}, "b: is not there any more"),
        ({"a": np.zeros(2), "b": np.zeros(2), "c": np.zeros(2)}, "c: is not in the file"),
        ({"a": np.zeros(3), "b": np.zeros(2)}, r"a: is float64 \[3\], the file has float64 \[2\]"),
        ({"a": np.zeros(2, np.float32), "b": np.zeros(2)}, "a: is float32"),
    ],
)
def test_golden_names_what_differs(tmp_path: Any, values: Any, text: str) -> None:
    Golden(tmp_path, write=True)("it", {"a": np.zeros(2), "b": np.zeros(2)})
    with pytest.raises(AssertionError, match=text):
        Golden(tmp_path)("it", values)


def test_golden_is_written_by_the_option(pytester: pytest.Pytester) -> None:
    pytester.makeconftest('pytest_plugins = ["sgld.testing.plugin"]')
    case = pytester.makepyfile(
        test_it="def test_it(golden):\n    import numpy\n    golden('x', numpy.ones(2))"
    )
    flags = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist")
    pytester.inline_run(case, *flags).assertoutcome(failed=1)
    pytester.inline_run(case, *flags, "--sgld-golden=write").assertoutcome(passed=1)
    assert (pytester.path / "golden" / "x.npz").is_file()
    pytester.inline_run(case, *flags).assertoutcome(passed=1)


def test_device_is_an_option(pytester: pytest.Pytester) -> None:
    pytester.makeconftest('pytest_plugins = ["sgld.testing.plugin"]')
    case = pytester.makepyfile(
        test_it="def test_it(sgld_bench):\n    assert sgld_bench.device == 'cuda'"
    )
    flags = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--sgld-device=cuda")
    pytester.inline_run(case, *flags).assertoutcome(passed=1)


def test_the_plugin_is_cheap_and_asked_for() -> None:
    """It is no entry point of pytest, and importing it imports nothing heavy."""
    code = (
        "import sys; from importlib.metadata import distribution;"
        "import sgld.testing.plugin, sgld.testing.conformance;"
        "print([m for m in ('torch', 'numpy', 'pydantic') if m in sys.modules],"
        " [e.group for e in distribution('sgld-core').entry_points if 'pytest' in e.group])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]", "[]"]


def test_records_of_one_test_do_not_leak(local_plugin: Any, catalog_of: Any) -> None:
    record = CacheSpec("mine", "local_my_own:Mine", bounded=True)
    entry = catalog_of(local_plugin("my-own", record, Mine=Mine)).caches["mine"]
    assert load_target(entry.spec.target, entry) is Mine
