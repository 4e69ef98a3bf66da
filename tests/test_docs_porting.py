"""docs/porting.md: the package before and the one after, in this process and in an engine's.

The page's commands and its conformance test are run by test_docs_plugins.py.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from guide import ROOT, blocks, files

import sgld
from sgld.engine.executors.child import ChildExecutor
from sgld.messages import Event, Output, Request
from sgld.params.serving import ServingOptions
from sgld.plan import make_plan
from sgld.plugins.catalog import load_catalog, load_target
from sgld.plugins.lock import make_lock
from sgld.testing.isolated import catalog_of

PORTING = ROOT / "docs" / "porting.md"


def _stand_in(monkeypatch: pytest.MonkeyPatch, calls: list[Any]) -> None:
    """Modules with the two functions that such a package calls."""

    def register_pipeline(
        pipeline_cls: Any,
        *,
        sampling_param_cls: Any,
        pipeline_config_cls: Any,
        hf_model_paths: Any = None,
        model_detectors: Any = None,
        overwrite: bool = False,
    ) -> None:
        calls.append((pipeline_cls.__name__, tuple(hf_model_paths), model_detectors, overwrite))

    class ModelRegistry:
        @staticmethod
        def register_model(arch: str, target: str) -> None:
            calls.append((arch, target))

    there: dict[str, dict[str, Any]] = {
        "sglang.multimodal_gen.registry": {"register_pipeline": register_pipeline},
        "sglang.multimodal_gen.runtime.models.registry": {"ModelRegistry": ModelRegistry},
        "acme_paint.config": dict.fromkeys(("PaintConfig", "PaintSamplingParams"), object),
        "acme_paint.pipeline": {"PaintPipeline": type("PaintPipeline", (), {})},
    }
    for module, contents in there.items():
        parts = module.split(".")
        for end in range(1, len(parts) + 1):
            path = ".".join(parts[:end])
            made = sys.modules.get(path) or ModuleType(path)
            monkeypatch.setitem(sys.modules, path, made)
        vars(sys.modules[module]).update(contents)


def test_the_package_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """It registers what the package after it announces."""
    calls: list[Any] = []
    (before,) = (block for block in blocks(PORTING) if block.head.startswith("before: "))
    with monkeypatch.context() as patch:
        _stand_in(patch, calls)
        exec(compile(before.text, before.where, "exec"), {"__name__": "acme_paint"})
    (_, network), (pipeline, repos, detectors, overwrite) = calls
    after = _records(files(PORTING)["acme_paint/__init__.py"])
    assert after.target.endswith(f":{pipeline}")
    assert after.claims.repos == repos
    assert detectors[0]("acme-paint-2")
    assert after.claims.patterns == ("*acme-paint*",)
    assert overwrite
    assert after.replaces == "*"
    file = f"{network.partition(':')[0].replace('.', '/')}.py"
    assert f"class {network.partition(':')[2]}" in files(PORTING)[file]


def _records(source: str) -> Any:
    space: dict[str, Any] = {"__name__": "acme_paint"}
    exec(compile(source, "after", "exec"), space)
    (record,) = space["sgld_pipelines"]()
    return record


@pytest.fixture
def ported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The package after, on the path and named by SGLang's variable."""
    for path, text in files(PORTING).items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("SGLANG_EXTERNAL_MODEL_PACKAGE", "acme_paint")
    monkeypatch.delenv("SGLD_EXTERNAL_MODEL_PACKAGE", raising=False)
    yield tmp_path
    for module in [module for module in sys.modules if module.startswith("acme_paint")]:
        del sys.modules[module]


def test_the_package_after_in_this_process(ported: Path) -> None:
    catalog = load_catalog()
    (row,) = (row for row in catalog.plugins if row.name == "acme-paint")
    assert (row.state, row.version, row.source) == ("ok", "2.0", "local")
    entry = catalog.pipelines["acme-paint"]
    assert load_target(entry.spec.target, entry).__name__ == "PaintPipeline"
    with_plan = make_plan(ServingOptions(model_path="tiny:acme-paint"))
    try:
        assert with_plan.spec.id == "acme-paint"
    finally:
        with_plan.close()
    assert catalog_of("acme_paint").pipelines["acme-paint"].spec == entry.spec


@pytest.mark.multi_process
def test_the_package_after_in_the_engine_s_process(ported: Path) -> None:
    """A supervised engine is a process of its own: it makes the same picture there."""
    wish = {"prompt": "a red fox", "num_inference_steps": 2}
    with sgld.load("tiny:acme-paint", device="cpu") as here:
        expected: Any = here.generate(prompt="a red fox", seed=3, num_inference_steps=2)
    lock = make_lock(load_catalog(), pipeline="acme-paint", platform="cpu")
    options = ServingOptions.model_validate({"model_path": "tiny:acme-paint", "device": "cpu"})
    executor = ChildExecutor(options, lock_json=lock.to_json(), environ=os.environ)
    try:
        executor.submit([Request("r", wish, (3,))])
        found = list(_outputs(executor))
    finally:
        executor.close()
    assert [output.seed for output in found] == [3]
    assert np.array_equal(expected.frames, found[0].frames)
    assert expected.frames.shape == (1, 64, 64, 3)


def _outputs(executor: ChildExecutor) -> Iterator[Output]:
    """What the request gives, until it is done."""
    until = time.monotonic() + 120
    while time.monotonic() < until:
        event = executor.next_event(0.1)
        if not isinstance(event, Event):
            continue
        if event.output is not None:
            yield event.output
        if event.kind in ("done", "failed", "cancelled"):
            assert event.kind == "done", event
            return
    raise TimeoutError(executor.state)
