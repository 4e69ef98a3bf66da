"""`sgld plugins why` decides as `sgld generate` does, for every tiny and every carried model."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import Any

import pytest

from sgld import blueprints
from sgld.cli.why_model import why_model
from sgld.params.serving import ServingOptions
from sgld.plan import make_plan
from sgld.plugins.catalog import load_catalog

CATALOG = load_catalog({})
PLAIN = [name for name, entry in CATALOG.pipelines.items() if "tiny" in entry.spec.blueprints]
FAMILIES = [
    f"{name}:{blueprint}"
    for name, entry in CATALOG.pipelines.items()
    if entry.spec.inspect  # its blueprints are families; those of others are real sizes
    for blueprint in entry.spec.blueprints
    if blueprint != "tiny"
]
MODELS = [f"tiny:{name}" for name in (*PLAIN, *FAMILIES)] + list(CATALOG.models)


@pytest.mark.parametrize("model", MODELS)
def test_both_take_the_same_pipeline(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # A process for each would spend its time on importing torch.
    here: Any = partial(_written, blueprints.write)
    monkeypatch.setattr(blueprints, "write", here)
    answer = why_model(CATALOG, model)
    options = ServingOptions.model_validate({"model_path": model, "device": "cpu"})
    with closing(make_plan(options, environ={}, catalog=CATALOG)) as plan:
        assert answer.taken == plan.spec.id
        assert answer.error is None
        assert answer.facts["distribution"] == plan.recognition.entry.dist


def _written(write: Any, *given: Any, isolate: bool) -> Any:
    assert isolate, "this process is not to load torch"
    return write(*given, isolate=False)


def test_there_is_something_to_ask() -> None:
    assert {"tiny:wan-t2v", "tiny:diffusers:sd3", "demo:world"} <= set(MODELS)
