"""Rules for every test: what a skip means, and logs that do not slow failures down."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator
from typing import Any

import hypothesis
import pytest

# Tiny tensors gain nothing from threads and lose much to their meeting each other on few cores; for
# this process before torch is imported, and for those that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A busy machine is no fault of the code: tests assert no wall-clock times.
hypothesis.settings.register_profile("sgld", deadline=None)
hypothesis.settings.load_profile("sgld")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Shells start background jobs so, and every process that a test starts would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["sgld.testing.plugin"]

REQUIRE_ALL = os.environ.get("SGLD_TEST_REQUIRE_ALL") == "1"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With `SGLD_TEST_REQUIRE_ALL=1` a skip is a failure, unless it is for want of a GPU: CI starts
    every service that the tests need, so a skip there hides a missing one."""
    report = yield
    excused = item.get_closest_marker("gpu") is not None or hasattr(report, "wasxfail")
    if REQUIRE_ALL and report.skipped and not excused:
        report.outcome = "failed"
        report.longrepr = f"skipped although everything is required: {report.longrepr}"
    return report
