"""`--deep`: every target is imported and compared with its contract, also when targets kill."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sgld.plugins.doctor.check import check
from sgld.plugins.doctor.rows import Report, Row

HOOKS = """
def _spec(id, **more):
    fields = dict(target="wrong_dist.nets:Good", params="wrong_dist.params:Good")
    tasks = ("text-to-video",)
    return PipelineSpec(id=id, claims=Claims(), **{**fields, "tasks": tasks, **more})

@hookimpl
def sgld_pipelines():
    yield _spec("good")
    yield _spec("function", target="wrong_dist.nets:function")
    yield _spec("alien", target="wrong_dist.nets:Alien")
    yield _spec("abstract", target="wrong_dist.nets:Abstract")
    yield _spec("no-such", target="wrong_dist.nets:Gone")
    yield _spec("misspelled", target="wrong_dist.nets:Goood")
    yield _spec("lacks", target="wrong_dist.lacks:Net")
    yield _spec("heavy", params="wrong_dist.heavy:Params")
    yield _spec("alien-params", params="wrong_dist.params:Alien")
    yield _spec("presets", presets=(Preset("base", {"prompt": "x", "colour": 3}),))
    yield _spec("layout", layout="wrong_dist.params:one")
    yield _spec("plan", blueprints={"tiny": "wrong_dist.params:none"})
    yield _spec("fine-plan", blueprints={"big": "wrong_dist.params:one"})
    yield _spec("text", blueprints={"tiny": "wrong_dist.params:TEXT"})
    yield _spec("gone", target="", params="", tasks=(), retired="0.1")

@hookimpl
def sgld_attention():
    yield AttentionSpec("short", "wrong_dist.params:one")
    yield AttentionSpec("plain", "wrong_dist.params:attend")
    yield AttentionSpec("maskless", "wrong_dist.params:attend", can=frozenset({"mask"}))

@hookimpl
def sgld_kernels():
    yield KernelSpec("rms", "norm.rms", "wrong_dist.params:rms")
    yield KernelSpec("rms-short", "norm.rms", "wrong_dist.params:one")

@hookimpl
def sgld_caches():
    yield CacheSpec("alien-cache", "wrong_dist.nets:Alien", bounded=True)

@hookimpl
def sgld_realtime():
    yield RealtimeSpec("alien-adapter", "good", "wrong_dist.params:Alien")

@hookimpl
def sgld_stages():
    yield StageSpec("alien-stage", "wrong_dist.params:Alien")
"""
NETS = """
from sgld.engine.pipeline import Pipeline
class Abstract(Pipeline):
    pass
class Good(Pipeline):
    load = stages = media = None
class Alien:
    pass
def function():
    pass
"""
PARAMS = """
from sgld.params.sampling import SamplingParams
class Good(SamplingParams):
    pass
class Alien:
    pass
TEXT = "text"
def none(): pass
def one(x): pass
def rms(x, weight, eps): pass
def attend(q, k, v, *, scale=None): pass
"""
HEAVY = "import torch\nfrom wrong_dist.params import Good as Params\n"
DEADLY = """
@hookimpl
def sgld_stages():
    yield StageSpec("crash", "deadly_dist.crash:S")
    yield StageSpec("leave", "deadly_dist.leave:S")
    yield StageSpec("leave-politely", "deadly_dist.polite:S")
    yield StageSpec("after", "deadly_dist.after:S")
"""
CRASH = "import ctypes\nctypes.string_at(0)"


@pytest.fixture(scope="module")
def report(new_site: Callable[[], Any]) -> Report:
    site = new_site()
    modules = {"nets": NETS, "params": PARAMS, "heavy": HEAVY, "lacks": "import no_such_library_x"}
    site.add("wrong", HOOKS, **modules)
    modules = {
        "crash": CRASH,
        "leave": "import os; os._exit(4)",
        "polite": "import sys; sys.exit(5)",
    }
    site.add("deadly", DEADLY, after="class S: pass", **modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site.folder)
        return check({"SGLD_PLUGINS": "wrong,deadly"}, deep=True, timeout=120)


def _rows(report: Report, name: str) -> list[Row]:
    (plugin,) = [row for row in report.plugins if row.found.name == name]
    return [row for row in plugin.rows if row.check == "deep"]


WRONG = [
    ("pipeline 'function':", "function <function function", "not a subclass"),
    ("pipeline 'alien':", "class Alien", "no subclass of sgld.engine.pipeline.Pipeline"),
    ("pipeline 'abstract':", "does not implement load, media, stages", ""),
    ("pipeline 'no-such':", "module 'wrong_dist.nets' has no 'Gone'", "Correct the target."),
    ("pipeline 'misspelled':", "has no 'Goood'; did you mean 'Good'?", "Correct the target."),
    ("pipeline 'lacks':", "No module named 'no_such_library_x'", "Install or mend"),
    ("pipeline 'heavy', params:", "imports torch (at ", "heavy.py:1), but"),
    ("pipeline 'alien-params', params:", "no subclass of sgld.params.sampling", ""),
    ("pipeline 'presets', params:", "has no field 'colour', which preset 'base' sets", ""),
    ("pipeline 'layout', layout:", "cannot be called as (files, overrides)", ""),
    ("pipeline 'plan', blueprints.tiny:", "cannot be called as (folder)", ""),
    ("pipeline 'text', blueprints.tiny:", "str 'text', which cannot be called", ""),
    ("attention 'short':", "cannot be called as (q, k, v, scale=...)", ""),
    ("attention 'maskless':", "cannot be called as (q, k, v, scale=..., mask=...)", ""),
    ("kernel 'rms-short':", "cannot be called as (x, weight, eps)", ""),
    ("cache 'alien-cache':", "no subclass of sgld.causal.policies.Policy", ""),
    ("realtime 'alien-adapter':", "no subclass of sgld.realtime.adapter.RealtimeAdapter", ""),
    ("stage 'alien-stage':", "no subclass of sgld.engine.stage.Stage", ""),
]


@pytest.mark.parametrize(("begins", "part", "more"), WRONG)
def test_each_wrong_target_is_told(report: Report, begins: str, part: str, more: str) -> None:
    (row,) = [row for row in _rows(report, "wrong") if row.message.startswith(begins)]
    assert (row.code, row.level) == ("SGLD-P007", "bad")
    assert part in row.message
    assert more in f"{row.message} {row.remedy}"


def test_and_nothing_else(report: Report) -> None:
    assert len(_rows(report, "wrong")) == len(WRONG)


def test_targets_that_kill_do_not_hide_the_others(report: Report) -> None:
    texts = [row.message for row in _rows(report, "deadly")]
    assert len(texts) == 4
    for part in (
        "target of stage crash target was killed by SIGSEGV (at ",
        "target of stage leave target left the process with exit code 4",
        "stage 'leave-politely'",
        "stage 'after'",
    ):
        assert any(part in text for text in texts), part


def test_the_core_is_what_its_contracts_say(report: Report) -> None:
    (row,) = _rows(report, "builtin")
    assert row.level == "ok"


def test_the_device_is_opened(report: Report) -> None:
    assert report.machine is not None
    assert report.machine.facts["device"] == report.machine.platform
    assert "float32" in report.machine.facts["dtypes"]
