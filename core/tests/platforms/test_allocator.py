"""Growing segments of the CUDA allocator: on before the first allocation, unless somebody chose."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping

import pytest
import torch

from sgld.platforms import cuda
from sgld.platforms.allocator import OFF, ON, VARIABLES, Allocator, grow_segments
from sgld.platforms.cuda import CudaPlatform
from sgld.testing.fake_torch import FakeNamespace


class Fake(Allocator):
    """An allocator on paper; `calls` is what was done with it."""

    def __init__(
        self,
        environ: Mapping[str, str] | None = None,
        system: str = "linux",
        *,
        backend: str = "native",
        settings: str | None = "",
        reserved: int = 0,
        refusal: str | None = None,
    ) -> None:
        super().__init__(torch.device("cpu"), environ or {}, system)
        self._backend, self._settings, self._reserved = backend, settings, reserved
        self._refusal = refusal
        self.calls: list[str] = []

    def backend(self) -> str:
        return self._backend

    def reserved(self) -> int:
        return self._reserved

    def settings(self) -> str | None:
        return self._settings

    def change(self, settings: str) -> None:
        self.calls.append(settings)
        self._settings = settings

    def try_out(self) -> None:
        self.calls.append("allocate")
        if self._refusal is not None:
            raise RuntimeError(self._refusal)


def test_on_before_the_first_allocation_and_once() -> None:
    fake = Fake()
    assert grow_segments(fake) == ""
    assert fake.calls == [ON, "allocate"]
    assert "already" in grow_segments(fake)
    assert fake.calls == [ON, "allocate"]


@pytest.mark.parametrize("name", VARIABLES)
@pytest.mark.parametrize("value", ["", "max_split_size_mb:512", OFF])
def test_what_the_user_set_counts(name: str, value: str) -> None:
    fake = Fake({name: value})
    assert grow_segments(fake) == f"{name} is set"
    assert not fake.calls


@pytest.mark.parametrize(
    ("fake", "why"),
    [
        (Fake(system="win32"), "not on win32"),
        (Fake(backend="cudaMallocAsync"), "the allocator is cudaMallocAsync"),
        (Fake(settings=None), "this torch cannot be told"),
        (Fake(settings="max_split_size_mb:512"), "set to max_split_size_mb:512 already"),
        (Fake(reserved=2**21), "memory was allocated already"),
    ],
)
def test_left_alone(fake: Fake, why: str) -> None:
    assert why in grow_segments(fake)
    assert not fake.calls


@pytest.mark.parametrize("text", ["operation not supported\nCUDA kernel errors", ""])
def test_off_again_where_the_driver_cannot(text: str) -> None:
    fake = Fake(refusal=text)
    assert grow_segments(fake) == f"the driver refused: {text.split(chr(10))[0] or 'no reason'}"
    assert fake.calls == [ON, "allocate", OFF]


def test_a_torch_that_cannot_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._C, "_accelerator_setAllocatorSettings")
    assert Allocator(torch.device("cpu")).settings() is None


def test_the_platform_asks_for_its_own_device_only(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[torch.device] = []

    def allocator(device: torch.device) -> Fake:
        asked.append(device)
        return Fake()

    monkeypatch.setattr(cuda, "Allocator", allocator)
    CudaPlatform(namespace=FakeNamespace(), device_type="cpu")
    assert asked == []
    monkeypatch.setattr(CudaPlatform, "_open", lambda self, index: FakeNamespace())
    CudaPlatform(1)
    assert asked == [torch.device("cuda", 1)]


def test_the_installed_torch_takes_the_setting() -> None:
    """No device is needed for that; in a process of its own, whose allocator it is."""
    code = (
        "import torch\n"
        "from sgld.platforms.allocator import ON, Allocator\n"
        "allocator = Allocator(torch.device('cpu'))\n"
        "assert allocator.backend() == 'native' and allocator.settings() == ''\n"
        "allocator.change(ON)\n"
        "assert allocator.settings() == ON\n"
        "allocator.try_out()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_segments_grow_on_this_machine() -> None:
    code = (
        "import torch\n"
        "from sgld.platforms.allocator import ON, Allocator\n"
        "from sgld.platforms.cuda import CudaPlatform\n"
        "platform = CudaPlatform()\n"
        "held = torch.empty(64 * 2**20, device=platform.torch_device)\n"
        "told = Allocator(platform.torch_device).settings()\n"
        "assert told in (ON, ''), told  # torch 2.11 does not tell what it was set to\n"
        "assert any(s['is_expandable'] for s in torch.cuda.memory_snapshot())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
