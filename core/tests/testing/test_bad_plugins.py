"""A kit that cannot fail is worthless: for every conformance test of plugins, pipelines, stages,
realtime adapters, cache policies and models there is a bad one that it finds, and nothing else
does."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch._dynamo  # noqa: F401  (else a run inside imports triton, which aborts when another does)

from sgld.testing import bench, live, watching  # noqa: F401
from sgld.testing.conformance import (
    CacheContract,
    ModelContract,
    PipelineContract,
    PluginContract,
    RealtimeContract,
    StageContract,
)
from sgld.testing.conformance.base import META, conformance_tests

pytest_plugins = ["pytester"]

HERE = Path(__file__).parent / "bad"
CASE = """
import {module} as held
from sgld.testing.conformance import {contract} as Contract

for name, bad in {{**held.BAD, **held.GOOD}}.items():
    said = {{"plugin": "{module}", "{named_by}": name, "__module__": __name__}}
    if "{module}" == "bad_describing":
        said["plugin"] = "acme_" + name
    said |= getattr(bad, "attributes", {{}})
    spelled = "Test_" + name.replace("-", "_").replace(":", "__")
    globals()[spelled] = type("Test_" + name, (Contract,), said)
del Contract
"""
ALL = [
    (PluginContract, "bad_describing"),
    (PipelineContract, "bad_pipelines"),
    (StageContract, "bad_stages"),
    (RealtimeContract, "bad_adapters"),
    (CacheContract, "bad_caches"),
    (ModelContract, "bad_models"),
]


@pytest.mark.parametrize(("contract", "module"), ALL, ids=[row[1] for row in ALL])
def test_every_fault_is_found_by_its_test(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, contract: Any, module: str
) -> None:
    failed, texts, bad = outcome(pytester, monkeypatch, contract, module)
    wanted = {name: set(row.found_by) for name, row in bad.items()}
    differs = {name: rows for name, rows in failed.items() if rows != wanted[name]}
    assert not differs
    found = set().union(*failed.values())
    assert set(conformance_tests(contract)) - {META} <= found, "a test that nothing fails"
    # What an author reads says what to do; errors of the plugin itself speak for themselves.
    assert sum("remedy: " in text for text in texts) >= len(texts) / 2


def outcome(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, contract: Any, module: str
) -> tuple[dict[str, set[str]], list[str], dict[str, Any]]:
    """Class → names of the tests that failed; the text of every failure; and the bad ones."""
    from importlib import import_module

    for path in HERE.glob("*.py"):
        shutil.copy(path, pytester.path)
    monkeypatch.syspath_prepend(pytester.path)
    held = import_module(module)
    if hasattr(held, "write"):
        held.write(pytester.path)
    text = CASE.format(module=module, contract=contract.__name__, named_by=contract.named_by)
    pytester.makeconftest('pytest_plugins = ["sgld.testing.plugin"]')
    case = pytester.makepyfile(test_case=text)
    run = pytester.inline_run(
        case, "-q", "--tb=short", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:randomly"
    )
    bad = {**held.BAD, **held.GOOD}
    failed: dict[str, set[str]] = {name: set() for name in bad}
    texts: list[str] = []
    for report in run.getreports("pytest_runtest_logreport"):
        _, cls, test = report.nodeid.split("::")
        if report.failed:
            failed[cls.removeprefix("Test_").replace("__", ":").replace("_", "-")].add(test)
            texts.append(report.longreprtext)
    return failed, texts, bad


@pytest.mark.parametrize(
    "test", ["test_loads_alone", "test_states_the_contracts_of_what_it_brings"]
)
def test_a_hook_that_is_not_marked_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, test: str
) -> None:
    text = (
        "from sgld.api import Plugin, hookimpl\n"
        "@hookimpl\ndef sgld_plugin():\n    return Plugin('unmarked', {'stage': 1})\n"
        "def sgld_stages():\n    return []\n"
    )
    (tmp_path / "acme_unmarked.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    case = type("Unmarked", (PluginContract,), {"plugin": "acme_unmarked"})()
    with pytest.raises(pytest.fail.Exception, match="'acme_unmarked' is not marked"):
        getattr(case, test)()
