"""The accelerators that are not here, against namespaces that compute on the host."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sgld.api.errors import DeviceError
from sgld.platforms.accelerator import Accelerator
from sgld.platforms.cuda import CudaPlatform
from sgld.platforms.mps import MpsPlatform
from sgld.platforms.musa import MusaPlatform
from sgld.platforms.npu import NpuPlatform
from sgld.platforms.platform import Memory
from sgld.platforms.rocm import RocmPlatform
from sgld.platforms.xpu import XpuPlatform
from sgld.testing.fake_torch import GIB, FakeNamespace

HALF = {"float32", "float16"}
FULL = {*HALF, "float64", "bfloat16"}


def opened(kind: type[Accelerator], index: int = 0, **more: Any) -> tuple[Any, FakeNamespace]:
    namespace = FakeNamespace(**more)
    return kind(index, namespace=namespace, device_type="cpu"), namespace


FACTS = [
    (CudaPlatform, {"capability": (7, 5)}, 75, {*HALF, "float64"}),
    (CudaPlatform, {"capability": (8, 0)}, 80, FULL),
    (CudaPlatform, {"capability": (9, 0)}, 90, {*FULL, "float8_e4m3fn"}),
    (RocmPlatform, {"gcnArchName": "gfx906"}, 90006, {*HALF, "float64"}),
    (RocmPlatform, {"gcnArchName": "gfx90a:sramecc+:xnack-"}, 90010, FULL),
    (RocmPlatform, {"gcnArchName": "gfx942:sramecc+"}, 90402, {*FULL, "float8_e4m3fnuz"}),
    (RocmPlatform, {"gcnArchName": "gfx950"}, 90500, {*FULL, "float8_e4m3fn"}),
    (RocmPlatform, {"gcnArchName": "gfx1030"}, 100300, {*HALF, "float64"}),
    (RocmPlatform, {"gcnArchName": "gfx1100"}, 110000, FULL),
    (RocmPlatform, {"gcnArchName": "gfx1201"}, 120001, {*FULL, "float8_e4m3fn"}),
    (RocmPlatform, {"gcnArchName": "unheard of"}, 0, {*HALF, "float64"}),
    (XpuPlatform, {"has_fp64": True}, 0, FULL),
    (XpuPlatform, {"has_fp64": False, "bfloat16": False}, 0, HALF),
    (NpuPlatform, {}, 0, {*HALF, "bfloat16"}),
    (NpuPlatform, {"bfloat16": False}, 0, HALF),
    (MusaPlatform, {"capability": (2, 1)}, 21, {*HALF, "bfloat16"}),
]


@pytest.mark.parametrize(("kind", "more", "arch", "dtypes"), FACTS)
def test_facts(kind: type[Accelerator], more: dict[str, Any], arch: int, dtypes: set[str]) -> None:
    platform, _ = opened(kind, **more)
    facts = platform.facts()
    assert (facts.device, facts.arch, set(facts.dtypes)) == (kind.id, arch, dtypes)
    assert {"streams", "pinned"} <= facts.abilities
    wanted = torch.bfloat16 if "bfloat16" in dtypes else torch.float16
    assert platform.default_dtype() is wanted


@pytest.mark.parametrize("kind", [NpuPlatform, MusaPlatform])
def test_a_package_that_does_not_say_has_no_bfloat16(kind: type[Accelerator]) -> None:
    namespace = SimpleNamespace(device_count=lambda: 1, get_device_capability=lambda _: (2, 1))
    platform = kind(namespace=namespace, device_type="cpu")
    assert set(platform.facts().dtypes) == HALF
    assert platform.default_dtype() is torch.float16


def test_memory_counts_what_torch_holds_idle_as_free() -> None:
    platform, namespace = opened(NpuPlatform, total=16 * GIB, others=GIB)
    namespace.allocate(4 * GIB)
    assert platform.memory() == Memory(16 * GIB, 11 * GIB, 4 * GIB, 4 * GIB)
    namespace.allocate(-3 * GIB)
    assert platform.memory() == Memory(16 * GIB, 14 * GIB, GIB, 4 * GIB)
    platform.empty_cache()
    assert namespace.idle == 0
    assert platform.memory().free == 14 * GIB
    platform.reset_peak()
    assert platform.memory().peak == GIB


def test_xpu_without_system_management_still_knows_its_own() -> None:
    platform, namespace = opened(XpuPlatform, has_fp64=True, total=8 * GIB)

    def refuse(device: Any) -> None:
        raise RuntimeError("the device does not support querying free memory")

    namespace.mem_get_info = refuse  # pyright: ignore[reportAttributeAccessIssue]
    namespace.allocate(2 * GIB)
    namespace.allocate(-GIB)
    assert platform.memory() == Memory(8 * GIB, 7 * GIB, GIB, 2 * GIB)


def test_musa_resets_its_peak_in_older_releases_too() -> None:
    platform, namespace = opened(MusaPlatform)
    asked: list[Any] = []
    namespace.reset_peak_stats = asked.append  # pyright: ignore[reportAttributeAccessIssue]
    namespace.allocate(5)
    namespace.allocate(-5)
    platform.reset_peak()
    assert (namespace.peak, asked) == (0, [])
    older = SimpleNamespace(device_count=lambda: 1, reset_peak_stats=asked.append)
    MusaPlatform(namespace=older, device_type="cpu").reset_peak()
    assert asked == [torch.device("cpu", 0)]


class Result:
    """A tensor of a device, as far as `join` looks at it."""

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)
        self.recorded: list[str] = []

    def record_stream(self, stream: Any) -> None:
        self.recorded.append(stream.name)


def test_streams_wait_for_what_came_before_and_are_waited_for() -> None:
    platform, namespace = opened(XpuPlatform, has_fp64=True)
    there, here = Result("xpu:0"), Result("cpu")
    with platform.stream() as side:
        assert namespace.current_stream() is side
        with platform.stream() as other:
            assert other is not side
    assert namespace.current_stream().name == "main"
    platform.join(side, there, here)  # pyright: ignore[reportArgumentType]
    platform.synchronise()
    assert namespace.log == [
        "side0 waits for main",
        "side1 waits for side0",
        "main waits for side0",
        "host waits",
    ]
    assert (there.recorded, here.recorded) == (["main"], [])


def test_streams_are_used_again_also_after_an_error() -> None:
    platform, namespace = opened(NpuPlatform)
    with pytest.raises(ValueError, match="inside"), platform.stream():
        raise ValueError("inside")
    with platform.stream() as again:
        pass
    assert again.name == "side0"
    platform.join(None)
    assert namespace.log == ["side0 waits for main", "side0 waits for main"]


@pytest.mark.parametrize(
    "kind", [CudaPlatform, RocmPlatform, XpuPlatform, NpuPlatform, MusaPlatform]
)
@pytest.mark.parametrize("index", [-1, 2])
def test_a_device_that_is_not_there(kind: type[Accelerator], index: int) -> None:
    with pytest.raises(DeviceError) as caught:
        opened(kind, index)
    assert f"device={kind.id}:{index}: torch sees 2 {kind.title} device(s)." in str(caught.value)
    assert "or choose device=cpu." in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "package"), [(NpuPlatform, "torch_npu"), (MusaPlatform, "torch_musa")]
)
def test_a_missing_package_is_named(kind: type[Accelerator], package: str) -> None:
    with pytest.raises(DeviceError, match=rf"device={kind.id}:0: package {package} is missing\."):
        kind()


def test_a_package_that_breaks_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise ImportError("libascendcl.so: cannot open shared object file")

    monkeypatch.setattr("sgld.platforms.accelerator.importlib.import_module", broken)
    with pytest.raises(DeviceError, match=r"package torch_npu does not import: libascendcl\.so"):
        NpuPlatform()


def test_a_package_without_its_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sgld.platforms.accelerator.importlib.import_module", lambda name: None)
    with pytest.raises(DeviceError, match=r"device=npu:0: this torch has no torch\.npu\."):
        NpuPlatform()


@pytest.mark.parametrize(
    ("kind", "hip", "reason"),
    [
        (RocmPlatform, None, "this torch is not built for ROCm"),
        (CudaPlatform, "6.4", "this torch is built for ROCm; use device=rocm"),
    ],
)
def test_the_build_of_torch_decides_between_cuda_and_rocm(
    monkeypatch: pytest.MonkeyPatch, kind: type[Accelerator], hip: str | None, reason: str
) -> None:
    monkeypatch.setattr(torch.version, "hip", hip)
    with pytest.raises(DeviceError, match=reason):
        kind()


class FakeMetal:
    """Stands in for torch.mps."""

    def __init__(self, devices: int = 1) -> None:
        self.devices = devices
        self.held = 0
        self.calls: list[str] = []

    def device_count(self) -> int:
        return self.devices

    def recommended_max_memory(self) -> int:
        return 10 * GIB

    def current_allocated_memory(self) -> int:
        return self.held

    def synchronize(self) -> None:
        self.calls.append("synchronize")

    def empty_cache(self) -> None:
        self.calls.append("empty_cache")


def test_mps() -> None:
    metal = FakeMetal()
    platform = MpsPlatform(namespace=metal, device_type="cpu", bfloat16=True)
    assert set(platform.facts().dtypes) == {*HALF, "bfloat16"}
    assert platform.facts().abilities == frozenset()
    assert platform.default_dtype() is torch.bfloat16
    metal.held = 3 * GIB
    assert platform.memory() == Memory(10 * GIB, 7 * GIB, 3 * GIB, 3 * GIB)
    metal.held = GIB
    assert platform.memory().peak == 3 * GIB
    platform.reset_peak()
    assert platform.memory().peak == GIB
    platform.synchronise()
    platform.empty_cache()
    assert metal.calls == ["synchronize", "empty_cache"]
    with platform.stream() as stream:
        assert stream is None


def test_mps_before_it_had_bfloat16_and_where_there_is_none() -> None:
    platform = MpsPlatform(namespace=FakeMetal(), device_type="cpu", bfloat16=False)
    assert platform.default_dtype() is torch.float16
    assert set(platform.facts().dtypes) == HALF
    with pytest.raises(DeviceError, match="device=mps: torch sees no MPS device"):
        MpsPlatform()
