"""What `auto` takes here: device, ops, and what is told when it takes none."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from sgld.api.specs import KernelSpec, PlatformSpec, Plugin, Requires
from sgld.plugins.catalog import Catalog, assemble
from sgld.plugins.describe import KINDS, Described, Outcome
from sgld.plugins.doctor.examine import Settings
from sgld.plugins.doctor.findings import DeviceAnswer, ProbeAnswer
from sgld.plugins.doctor.machine import look
from sgld.plugins.doctor.rows import MachineReport
from sgld.plugins.find import Discovery, Found

SETTINGS = Settings(60.0, threading.Event())
FOUND = Found("acme", "acme.plugin", "acme-dist", "1.0", "installed")
DEVICE = DeviceAnswer("Alpha", 90, frozenset({"float32"}), frozenset({"streams"}))
THERE = ProbeAnswer(True, "", (DEVICE,))
SILENT = ProbeAnswer(True, "", (DEVICE._replace(dtypes=frozenset(), abilities=frozenset()),))
GONE = ProbeAnswer(False, "nobody is at home")
DEAD = ProbeAnswer(False, "", error="was killed by SIGSEGV")


def _catalog(platforms: tuple[PlatformSpec, ...], kernels: tuple[KernelSpec, ...] = ()) -> Catalog:
    records: dict[str, tuple[Any, ...]] = dict.fromkeys(KINDS, ())
    records |= {"platform": platforms, "kernel": kernels}
    described = Described(FOUND, Plugin("acme", {"platform": 1, "kernel": 1}), records)
    return assemble(Discovery((FOUND,), (), ()), [Outcome(FOUND, described, None, 0.0, ())], {})


def _platform(name: str, priority: int = 0, target: str = "os:sep") -> PlatformSpec:
    return PlatformSpec(name, target, "os:sep", priority=priority)


def _look(*platforms: PlatformSpec, deep: bool = False, **probes: ProbeAnswer) -> MachineReport:
    return look(_catalog(platforms), probes, SETTINGS, deep=deep)


LOW, HIGH, TWIN = _platform("low"), _platform("high", 10), _platform("twin", 10)


def test_the_device_of_the_highest_priority_is_taken_and_the_others_named() -> None:
    told = _look(LOW, HIGH, TWIN, low=THERE, high=THERE, twin=GONE)
    assert told.platform == "high"
    assert told.facts == {
        "device": "high",
        "arch": 90,
        "dtypes": ["float32"],
        "abilities": ["streams"],
    }
    assert told.rows[0].level == "ok"
    assert "device = high (float32, arch 90); not twin: nobody is at home" in told.rows[0].message


@pytest.mark.parametrize(
    ("probes", "code", "part"),
    [
        ({"high": DEAD, "twin": GONE}, "SGLD-P010", "'high' was killed by SIGSEGV"),
        ({"high": THERE, "twin": THERE}, "SGLD-P021", "high and twin are equally good"),
        ({"low": GONE, "high": GONE, "twin": GONE}, "SGLD-P021", "no device can be used"),
    ],
)
def test_no_device_is_taken(probes: dict[str, ProbeAnswer], code: str, part: str) -> None:
    told = _look(LOW, HIGH, TWIN, **{"low": THERE, **probes})
    assert (told.platform, told.facts, told.decisions) == ("", {}, ())
    (row,) = told.rows
    assert (row.level, row.code) == ("bad", code)
    assert part in row.message
    assert row.remedy or code == "SGLD-P021"


KNOWS = """
from sgld.api import DeviceFacts
class Mine:
    def facts(self):
        return DeviceFacts("mine", 7, frozenset({"float16"}), frozenset({"streams"}))
"""


def test_a_device_that_its_probe_does_not_know_is_opened(
    new_site: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    site = new_site()
    site.package("knows_dist", mine=KNOWS)
    monkeypatch.syspath_prepend(site.folder)
    told = _look(_platform("mine", target="knows_dist.mine:Mine"), mine=SILENT)
    assert told.rows[0].level == "ok"
    assert told.facts == {
        "device": "mine",
        "arch": 7,
        "dtypes": ["float16"],
        "abilities": ["streams"],
    }


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("import no_such_library_x", "No module named 'no_such_library_x'"),
        ("class Mine:\n    def facts(self): raise OSError('no such bus')", "no such bus"),
        ("class Mine:\n    def facts(self): return 3", "AttributeError"),
        ("import ctypes; ctypes.string_at(0)", "signal SIGSEGV"),
    ],
)
def test_a_device_that_cannot_be_opened_is_told(
    new_site: Callable[[], Any], monkeypatch: pytest.MonkeyPatch, text: str, part: str
) -> None:
    site = new_site()
    site.package("opened_dist", mine=text)
    monkeypatch.syspath_prepend(site.folder)
    told = _look(_platform("mine", target="opened_dist.mine:Mine"), deep=True, mine=THERE)
    (row,) = told.rows
    assert (row.level, row.code) == ("bad", "SGLD-P007")
    assert part in row.message
    assert told.facts == {}


def test_a_kernel_that_fits_is_taken_and_the_losers_have_reasons() -> None:
    fits = KernelSpec("fits", "norm.rms", "os:getcwd", Requires("high", (90, 99)))
    wide = KernelSpec("wide", "norm.rms", "os:getcwd", Requires("high"))
    far = KernelSpec("far", "norm.rms", "os:getcwd", Requires("moon"))
    told = look(_catalog((HIGH,), (fits, wide, far)), {"high": THERE}, SETTINGS, deep=False)
    (decision,) = [row for row in told.decisions if row.op == "norm.rms"]
    assert decision.choice is not None
    assert decision.choice.id == "fits"
    assert dict(decision.choice.losers) == {
        "wide": "fits less narrowly",
        "far": "needs moon; this device is high",
    }
    assert any("op norm.rms = fits (narrowest fit)" in row.message for row in told.rows)
    nothing = next(row for row in told.decisions if row.op == "attention.self")
    assert nothing.choice is None
    assert "no plugin brings one" in nothing.refusal
