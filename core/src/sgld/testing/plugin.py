"""A pytest plugin for whoever writes sgld plugins. It is never loaded by itself; ask for it in the
`conftest.py` of the root folder:

    pytest_plugins = ["sgld.testing.plugin"]

Fixtures:

    catalog_of("acme", module)      a catalogue of just these plugins; looking for others is refused
    local_plugin("mine", records)   a plugin that lives for one test
    tiny("acme-t2v")                folder of a pipeline's tiny checkpoint, built once a session
    run_pipeline("acme-t2v", seed=7, num_inference_steps=2)    one request, in this process
    golden("name", values)          compare arrays with golden/name.npz beside the test
    fake_platform                   a device family that computes on the CPU

Options: `--sgld-device=cuda` runs the conformance classes on another device, `--sgld-golden=write`
writes golden files in place of comparing with them. The conformance classes are in
`sgld.testing.conformance`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from sgld.testing import rules
from sgld.testing.conformance.base import Contract, conformance_tests

if TYPE_CHECKING:
    from sgld.messages import Output
    from sgld.plugins.catalog import Catalog
    from sgld.testing.bench import Bench
    from sgld.testing.fake_platform import FakePlatform
    from sgld.testing.golden import Golden


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--sgld-device` and `--sgld-golden`."""
    group = parser.getgroup("sgld", "sgld plugins")
    group.addoption(
        "--sgld-device",
        default=os.environ.get("SGLD_TEST_DEVICE", "cpu"),
        help="device of the conformance tests: cpu, cuda, or another platform's (default: cpu)",
    )
    group.addoption(
        "--sgld-golden",
        choices=("compare", "write"),
        default="compare",
        help="compare with golden files, or write them",
    )


@pytest.fixture(scope="session")
def sgld_device(pytestconfig: pytest.Config) -> str:
    """The device that `--sgld-device` names."""
    return str(pytestconfig.getoption("--sgld-device"))


@pytest.fixture
def catalog_of() -> Iterator[Callable[..., Catalog]]:
    """`(*plugins) -> Catalog` of the core's own plugin and just these: names of installed ones,
    importable modules, or modules. While a test holds this, looking for installed plugins is an
    error with the code `discovery_refused`."""
    from sgld.testing import isolated  # noqa: PLC0415

    with isolated.refused_discovery():
        yield isolated.catalog_of


@pytest.fixture
def local_plugin() -> Iterator[Callable[..., ModuleType]]:
    """`(name, *records, **attributes) -> module` of a plugin that lives until the end of the test;
    a target in it is `"local_<name>:attribute"`."""
    from sgld.testing import isolated  # noqa: PLC0415

    with ExitStack() as stack:

        def make(name: str, *records: Any, **attributes: Any) -> ModuleType:
            return stack.enter_context(isolated.local_plugin(name, *records, **attributes))

        yield make


@pytest.fixture(scope="session")
def sgld_bench(tmp_path_factory: pytest.TempPathFactory, sgld_device: str) -> Bench:
    """Tiny checkpoints, and engines of them on the device under test."""
    from sgld.testing.bench import Bench  # noqa: PLC0415

    return Bench(tmp_path_factory.mktemp("sgld-tiny"), sgld_device)


@pytest.fixture(scope="session")
def tiny(sgld_bench: Bench) -> Callable[..., Path]:
    """`(pipeline, plugin="") -> Path` of the tiny checkpoint that the pipeline's record names. The
    folders are shared: copy one before changing it."""
    return sgld_bench.tiny


@pytest.fixture(scope="class")
def bench(request: pytest.FixtureRequest, sgld_bench: Bench) -> Iterator[Any]:
    """Engines of the pipeline that a conformance class names; closed after its last test."""
    from sgld.testing.bench import Engines  # noqa: PLC0415

    with Engines(sgld_bench, request.cls) as engines:
        yield engines


@pytest.fixture(scope="class")
def live(request: pytest.FixtureRequest, sgld_bench: Bench) -> Iterator[Any]:
    """Sessions of the adapter that a conformance class names, in this process."""
    from sgld.testing.live import Live  # noqa: PLC0415

    with Live(sgld_bench, request.cls) as sessions:
        yield sessions


@pytest.fixture(scope="module")
def run_pipeline(sgld_bench: Bench) -> Iterator[Callable[..., Output]]:
    """`(pipeline, plugin="", options={}, images=None, **params) -> Output` of one request to a tiny
    checkpoint, in this process. `options` are those of `sgld.load`; models stay loaded until the
    end of the module."""
    with sgld_bench.running() as run:
        yield run


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """`golden(name, values, atol=0, rtol=0)`: compare an array, or a mapping of arrays, with the
    file `golden/<name>.npz` beside the test; a name that ends with `.safetensors` is one."""
    from sgld.testing.golden import Golden  # noqa: PLC0415

    write = request.config.getoption("--sgld-golden") == "write"
    return Golden(request.path.parent / "golden", write=write)


@pytest.fixture
def fake_platform() -> Callable[..., FakePlatform]:
    """`(device="cuda", arch=90, dtypes=..., abilities=(), total=...) -> FakePlatform`: a device
    that claims to be one and computes on the CPU, so that choices can be tested without it."""
    from sgld.testing.fake_platform import FakePlatform  # noqa: PLC0415

    return FakePlatform


def _conformance(item: pytest.Item) -> type[Contract] | None:
    """The class of a conformance test; None for every other test."""
    cls = getattr(item, "cls", None)
    if cls is None or not issubclass(cls, Contract):
        return None
    name = getattr(item, "originalname", item.name)
    return cls if name in conformance_tests(cls) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A conformance test is not skipped by its author: the only way out is xfail, with a reason."""
    for item in items:
        if _conformance(item) is None:
            continue
        rules.remember_marks(item)
        for mark in item.iter_markers():
            if mark.name == "skip" or (mark.name == "xfail" and not mark.kwargs.get("reason")):
                item.add_marker(pytest.mark.sgld_not_kept(mark.name))


def pytest_configure(config: pytest.Config) -> None:
    """The marker of the rule below."""
    config.addinivalue_line("markers", "sgld_not_kept: set by sgld's conformance kit itself")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fails a conformance test that its author left out, before pytest skips it."""
    mark = item.get_closest_marker("sgld_not_kept")
    if mark is not None:
        pytest.fail(
            f"a conformance test is marked {mark.args[0]!r}; the only way to leave one out is "
            '@pytest.mark.xfail(reason="...").',
            pytrace=False,
        )
    others = rules.shadowed(item) if _conformance(item) is not None else []
    if others:
        pytest.fail(
            f"a conformance test does not get the kit's own fixtures: {', '.join(others)}. Give "
            "yours other names; sgld.testing.plugin says which names are the kit's.",
            pytrace=False,
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """An xfail mark on a conformance test that passes is out of date, whatever the settings say; a
    skip that is not the kit's own is a failure."""
    report = yield
    if _conformance(item) is None:
        return report
    why = rules.unasked_skip(item, call, report)
    if why:
        report.outcome, report.longrepr = "failed", why
        vars(report).pop("wasxfail", None)
    kept = report.when == "call" and report.passed and hasattr(report, "wasxfail")
    if kept:
        report.outcome = "failed"
        report.longrepr = f"the contract is kept now: take the xfail mark ({report.wasxfail}) away"
        del report.wasxfail
    return report
