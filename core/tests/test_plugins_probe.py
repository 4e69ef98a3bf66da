"""Probing devices without torch, against a pretended driver library."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from sgld.platforms import probe
from sgld.platforms.generations import GPU_ABILITIES, cuda_dtypes
from sgld.platforms.probe import Device, probe_cpu, probe_cuda


class Driver:
    """Answers as the management library does, for two devices."""

    names = (b"Alpha", b"Beta")

    def __init__(self, init: int = 0, error: int = 0) -> None:
        self.init, self.error, self.closed = init, error, 0

    def nvmlInit_v2(self) -> int:
        return self.init

    def nvmlShutdown(self) -> int:
        self.closed += 1
        return 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = len(self.names)
        return self.error

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, handle: Any) -> int:
        handle._obj.value = index + 1
        return 0

    def nvmlDeviceGetName(self, handle: Any, name: Any, size: int) -> int:
        name.value = self.names[handle.value - 1]
        return 0

    def nvmlDeviceGetCudaComputeCapability(self, handle: Any, major: Any, minor: Any) -> int:
        major._obj.value, minor._obj.value = 9, handle.value - 1
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:
        memory[0] = 80 * handle.value
        return 0


MORE = (cuda_dtypes(90), GPU_ABILITIES)
ALPHA, BETA = Device(0, "Alpha", 90, 80, *MORE), Device(1, "Beta", 91, 160, *MORE)


def with_driver(monkeypatch: pytest.MonkeyPatch, driver: Any) -> None:
    def load(name: str) -> Any:
        if driver is None:
            raise OSError(f"{name}: cannot open")
        return driver

    monkeypatch.setattr(probe.ctypes, "CDLL", load)


def test_the_cpu_is_always_there() -> None:
    answer = probe_cpu()
    assert answer.available
    assert answer.devices[0].memory > 2**28


VISIBLE = [
    (None, (ALPHA, BETA)),
    ("0,1", (ALPHA, BETA)),
    ("1", (BETA,)),
    ("1,0", (BETA, ALPHA)),
    ("0,7,1", (ALPHA,)),
    ("GPU-abc", (ALPHA, BETA)),
]


@pytest.mark.parametrize(("visible", "devices"), VISIBLE)
def test_devices(monkeypatch: pytest.MonkeyPatch, visible: str | None, devices: Any) -> None:
    driver = Driver()
    with_driver(monkeypatch, driver)
    answer = probe_cuda({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    assert answer.available
    assert answer.devices == devices
    assert driver.closed == 1


ABSENT = [
    (None, {}, "no NVIDIA driver"),
    (Driver(init=9), {}, "nvmlInit gives 9"),
    (Driver(), {"CUDA_VISIBLE_DEVICES": ""}, "hides every device"),
    (Driver(), {"CUDA_VISIBLE_DEVICES": "-1"}, "hides every device"),
    (Driver(), {"CUDA_VISIBLE_DEVICES": "7"}, "lists no device"),
]


@pytest.mark.parametrize(("driver", "environ", "reason"), ABSENT)
def test_absence_has_a_reason(
    monkeypatch: pytest.MonkeyPatch, driver: Any, environ: dict[str, str], reason: str
) -> None:
    with_driver(monkeypatch, driver)
    answer = probe_cuda(environ)
    assert not answer.available
    assert reason in answer.reason


def test_a_driver_that_fails_midway_raises_and_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(error=5)
    with_driver(monkeypatch, driver)
    with pytest.raises(OSError, match="error 5"):
        probe_cuda({})
    assert driver.closed == 1
    assert ctypes.c_uint
