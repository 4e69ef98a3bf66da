"""A kit that cannot fail is worthless: for every conformance test of platforms, attention backends
and kernels there is a bad one that it finds, and it finds nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from sgld.testing.conformance import AttentionContract, KernelContract, PlatformContract
from sgld.testing.conformance.base import META, conformance_tests

pytest_plugins = ["pytester"]

HERE = Path(__file__).parent / "bad_hardware"
CASE = """
from {module} import {tables}
from sgld.testing.conformance import {contract} as Contract

for table in ({tables},):
    for name, bad in table.items():
        said = {{"plugin": "{module}", "{named_by}": name, "__module__": __name__}}
        said |= getattr(bad, "attributes", {{}})
        globals()["Test_" + name.replace("-", "_")] = type("Test_" + name, (Contract,), said)
del Contract
"""


def outcome(pytester: pytest.Pytester, contract: type[Any], module: str, tables: str, *flags: str):
    """Class → names of the tests that failed; and the text of every failure."""
    for path in HERE.glob("*.py"):
        shutil.copy(path, pytester.path)
    text = CASE.format(
        module=module, tables=tables, contract=contract.__name__, named_by=contract.named_by
    )
    pytester.makeconftest('pytest_plugins = ["sgld.testing.plugin"]')
    case = pytester.makepyfile(test_case=text)
    run = pytester.inline_run(
        case, "-q", "--tb=short", "-p", "no:cacheprovider", "-p", "no:xdist", *flags
    )
    failed: dict[str, set[str]] = {}
    texts: list[str] = []
    for report in run.getreports("pytest_runtest_logreport"):
        if report.when != "call" and not report.failed:
            continue
        _, cls, test = report.nodeid.split("::")
        rows = failed.setdefault(cls.removeprefix("Test_").replace("_", "-"), set())
        if report.failed:
            rows.add(test.partition("[")[0])
            texts.append(report.longreprtext)
    return failed, texts


def expected(tables: list[dict[str, Any]]) -> dict[str, set[str]]:
    return {name: set(bad.found_by) for table in tables for name, bad in table.items()}


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    from importlib import import_module

    monkeypatch.syspath_prepend(HERE)
    return import_module(name)


def only_found_on_cuda(name: str) -> bool:
    return name == "test_host_does_not_wait"


ALL = [
    (AttentionContract, "bad_attention", ["BAD"]),
    (KernelContract, "bad_kernels", ["BAD", "GOOD"]),
    (PlatformContract, "bad_platforms", ["BAD"]),
]


@pytest.mark.parametrize(
    ("contract", "module", "tables"), ALL, ids=["attention", "kernel", "platform"]
)
def test_every_fault_is_found(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    contract: type[Any],
    module: str,
    tables: list[str],
) -> None:
    # One of the probes hangs, and the others take no time.
    monkeypatch.setattr("sgld.testing.conformance.probed.LIMIT_S", 3.0)
    failed, texts = outcome(pytester, contract, module, ", ".join(tables))
    wanted = expected([getattr(load(module, monkeypatch), table) for table in tables])
    assert failed == wanted
    found = set().union(*wanted.values())
    tests = {name for name in conformance_tests(contract) if not only_found_on_cuda(name)}
    assert tests - {META} <= found, "a test that nothing fails"
    # What an author reads says what to do; errors of the plugin itself speak for themselves.
    assert sum("remedy: " in text for text in texts) >= len(wanted) / 2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize(("contract", "module", "tables"), ALL[:2], ids=["attention", "kernel"])
def test_waiting_is_found_on_cuda(
    pytester: pytest.Pytester, contract: type[Any], module: str, tables: list[str]
) -> None:
    failed, _ = outcome(pytester, contract, module, "ON_CUDA", "--sgld-device=cuda")
    assert failed == {"waits": {"test_host_does_not_wait"}}
