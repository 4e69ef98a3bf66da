"""Plugin modules, each with one fault, and the conformance tests that must find it: pieces that are
put into the text of a plugin that has none."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

GOOD_MODULE = """
from sgld.api import Claims, PipelineSpec, Plugin, Where, hookimpl
{top}

@hookimpl
def sgld_plugin():
    return Plugin("{name}", contracts={contracts}, summary={summary}, needs={needs})


@hookimpl
def sgld_pipelines():
    yield PipelineSpec(
        id="acme-image",
        target="{target}",
        params="{params}",
        tasks=("text-to-image",),
        claims=Claims(rules=((Where("model_index.json", "_class_name", "==", {value}),),)),
        features=frozenset({features}),
        summary="Acme's pictures",
    )
"""
USUAL = {
    "top": "",
    "contracts": '{"pipeline": 1}',
    "summary": '"Acme"',
    "needs": "()",
    "target": "sgld.testing.toy_pipelines:ToyImagePipeline",
    "params": "sgld.testing.toy_params:ToyImageParams",
    "value": '"AcmePipeline"',
    "features": '{"cfg"}',
}


class Bad(NamedTuple):
    """What finds a fault, and the pieces of its module."""

    found_by: set[str]
    pieces: dict[str, str] = {}  # noqa: RUF012

    def source(self, name: str) -> str:
        """The module's text."""
        return GOOD_MODULE.format(name=name, **{**USUAL, **self.pieces})


BAD: dict[str, Bad] = {
    "lonely": Bad({"test_loads_alone"}, {"needs": '("no-such-plugin",)'}),
    "heavy": Bad({"test_describing_is_cheap"}, {"top": "import numpy"}),
    "many": Bad(
        {"test_describing_is_cheap"},
        {"top": "import asyncio, email.mime.text, http.client, multiprocessing.pool, unittest"},
    ),
    "talks": Bad({"test_describing_is_quiet"}, {"top": 'print("hello")'}),
    "complains": Bad(
        {"test_describing_is_quiet"}, {"top": "import sys\nprint('hm', file=sys.stderr)"}
    ),
    "restless": Bad(
        {"test_describes_itself_equally_each_time"},
        {"top": "import time", "summary": "str(time.perf_counter_ns())"},
    ),
    "objects": Bad(
        {"test_records_are_plain"},
        {"top": "from pathlib import PurePath", "value": 'PurePath("AcmePipeline")'},
    ),
    "boasts": Bad(
        {"test_states_the_contracts_of_what_it_brings"},
        {"contracts": '{"pipeline": 1, "attention": 1}'},
    ),
    "misspelled": Bad({"test_names_are_not_misspelled"}, {"features": '{"step_batching"}'}),
    "almost": Bad({"test_names_are_not_misspelled"}, {"features": '{"layer-wise-offload"}'}),
    "silent": Bad({"test_says_what_it_is"}, {"summary": '""'}),
    "nowhere": Bad({"test_targets_are_found"}, {"target": "sgld.testing.toy_pipelines:Acme"}),
    "torch": Bad({"test_light_targets_need_no_torch"}, {"params": "bad_heavy:HeavyParams"}),
}
GOOD = {"good": Bad(set())}


def write(folder: Path) -> dict[str, Any]:
    """Write the modules; name → the attributes of its test class."""
    everything = {**BAD, **GOOD}
    for name, bad in everything.items():
        (folder / f"acme_{name}.py").write_text(bad.source(name))
    return {name: {"plugin": f"acme_{name}"} for name in everything}
