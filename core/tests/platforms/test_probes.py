"""Probes of the accelerators that are not here, against files as their drivers write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgld.platforms.generations import mps_dtypes, rocm_dtypes
from sgld.platforms.probe import Device, Probe
from sgld.platforms.probes.files import torch_library, visible
from sgld.platforms.probes.mps import probe_mps
from sgld.platforms.probes.musa import probe_musa
from sgld.platforms.probes.npu import probe_npu
from sgld.platforms.probes.rocm import arch_of_gfx, gfx_of_arch, probe_rocm
from sgld.platforms.probes.xpu import probe_xpu

GIB = 2**30


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


# AMD ------------------------------------------------------------------------------------------

NODES = "sys/class/kfd/kfd/topology/nodes"


def amd(root: Path, *archs: int, render: bool = True) -> Path:
    """A processor as node 0, then GPUs with 4 GiB of their own."""
    write(
        root, {f"{NODES}/0/properties": "cpu_cores_count 64\nsimd_count 0\ngfx_target_version 0\n"}
    )
    for number, arch in enumerate(archs, 1):
        minor = 127 + number
        banks = f"{NODES}/{number}/mem_banks"
        write(
            root,
            {
                f"{NODES}/{number}/name": "aqua_vanjaram\n",
                f"{NODES}/{number}/properties": f"cpu_cores_count 0\nsimd_count 1216\n"
                f"gfx_target_version {arch}\ndrm_render_minor {minor}\nunique_id 0\n",
                f"{banks}/0/properties": f"heap_type 1\nsize_in_bytes {4 * GIB}\n",
                f"{banks}/1/properties": f"heap_type 0\nsize_in_bytes {9 * GIB}\n",
            },
        )
        if render:
            write(root, {f"dev/dri/renderD{minor}": ""})
    return root


def test_rocm(tmp_path: Path) -> None:
    answer = probe_rocm({}, root=amd(tmp_path, 90402, 90500), built=True)
    assert answer.available
    first, second = answer.devices
    assert first[:4] == (0, "aqua_vanjaram", 90402, 4 * GIB)
    assert second[:3] == (1, "aqua_vanjaram", 90500)
    assert second.dtypes == rocm_dtypes(90500)


ROCM_VISIBLE = [
    ({}, [0, 1, 2]),
    ({"HIP_VISIBLE_DEVICES": "2,0"}, [2, 0]),
    ({"ROCR_VISIBLE_DEVICES": "1,2"}, [1, 2]),
    ({"ROCR_VISIBLE_DEVICES": "1,2", "HIP_VISIBLE_DEVICES": "1"}, [2]),
    ({"ROCR_VISIBLE_DEVICES": "GPU-6b2c"}, [0, 1, 2]),
    ({"HIP_VISIBLE_DEVICES": "0,9,1"}, [0]),
    ({"CUDA_VISIBLE_DEVICES": "2,0"}, [2, 0]),
    ({"CUDA_VISIBLE_DEVICES": "2", "HIP_VISIBLE_DEVICES": "1"}, [1]),
    ({"CUDA_VISIBLE_DEVICES": "0", "ROCR_VISIBLE_DEVICES": "1,2"}, [1]),
]


@pytest.mark.parametrize(("environ", "wanted"), ROCM_VISIBLE)
def test_rocm_visible(tmp_path: Path, environ: dict[str, str], wanted: list[int]) -> None:
    answer = probe_rocm(environ, root=amd(tmp_path, 90402, 90402, 90402), built=True)
    assert [device.index for device in answer.devices] == wanted


def test_rocm_absent(tmp_path: Path) -> None:
    assert "driver is loaded" in probe_rocm({}, root=tmp_path, built=True).reason
    hidden = probe_rocm({}, root=amd(tmp_path, 90402, render=False), built=True)
    assert not hidden.available
    assert "may open" in hidden.reason
    amd(tmp_path, 90402)
    for environ, part in [
        ({"HIP_VISIBLE_DEVICES": ""}, "HIP_VISIBLE_DEVICES='' hides"),
        ({"ROCR_VISIBLE_DEVICES": "-1"}, "ROCR_VISIBLE_DEVICES='-1' hides"),
        ({"HIP_VISIBLE_DEVICES": "7"}, "leave no device"),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, "CUDA_VISIBLE_DEVICES='-1' hides"),
        ({"CUDA_VISIBLE_DEVICES": "7"}, "and CUDA_VISIBLE_DEVICES leave no device"),
    ]:
        answer = probe_rocm(environ, root=tmp_path, built=True)
        assert not answer.available
        assert part in answer.reason


def test_a_gpu_without_a_fitting_torch_is_told_of(tmp_path: Path) -> None:
    answer = probe_rocm({}, root=amd(tmp_path / "amd", 90402), built=False)
    assert (answer.available, len(answer.devices)) == (False, 1)
    assert "not a ROCm build" in answer.reason
    answer = probe_xpu({}, root=intel(tmp_path / "intel", 0x56A0), built=False)
    assert (answer.available, len(answer.devices)) == (False, 1)
    assert "not an XPU build" in answer.reason


def test_the_build_of_torch_is_seen_in_its_files() -> None:
    assert torch_library("torch_cpu")
    assert not torch_library("torch_hip")
    assert not torch_library("torch_xpu")


@given(st.integers(1, 15), st.integers(0, 15), st.integers(0, 15))
def test_names_and_numbers_of_amd_architectures(major: int, minor: int, step: int) -> None:
    arch = 10000 * major + 100 * minor + step
    assert arch_of_gfx(gfx_of_arch(arch)) == arch
    assert arch_of_gfx(f"{gfx_of_arch(arch)}:sramecc+:xnack-") == arch


@pytest.mark.parametrize("name", ["", "gfx", "gfx9", "sm_90", "gfx94x", "GFX942"])
def test_other_names_have_no_number(name: str) -> None:
    assert arch_of_gfx(name) == 0


# Intel ----------------------------------------------------------------------------------------


def intel(root: Path, *ids: int, vendor: str = "0x8086", tiles: int = 0) -> Path:
    for number, device in enumerate(ids):
        card = f"sys/class/drm/card{number}"
        write(
            root,
            {
                f"{card}/device/vendor": f"{vendor}\n",
                f"{card}/device/device": f"0x{device:04x}\n",
                f"{card}/device/driver/module": "",
                f"{card}-DP-1/status": "connected\n",
            },
        )
        for tile in range(tiles):
            write(root, {f"{card}/device/tile{tile}/gt": ""})
    return root


def test_xpu(tmp_path: Path) -> None:
    answer = probe_xpu({}, root=intel(tmp_path, 0x56A0, 0xE20B), built=True)
    assert answer.devices == (
        Device(0, "Intel GPU 0x56a0", 0, 0),
        Device(1, "Intel GPU 0xe20b", 0, 0),
    )


XPU_VISIBLE = [
    ({}, [0, 1, 2, 3]),
    ({"ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE"}, [0, 1]),
    ({"ZE_AFFINITY_MASK": "3"}, [3]),
    ({"ZE_AFFINITY_MASK": "0.1,1"}, [0, 1, 2, 3]),
    ({"ZE_AFFINITY_MASK": ""}, [0, 1, 2, 3]),
]


@pytest.mark.parametrize(("environ", "wanted"), XPU_VISIBLE)
def test_xpu_tiles_are_devices(tmp_path: Path, environ: dict[str, str], wanted: list[int]) -> None:
    answer = probe_xpu(environ, root=intel(tmp_path, 0x0BD5, 0x0BD5, tiles=2), built=True)
    assert [device.index for device in answer.devices] == wanted


def test_xpu_absent(tmp_path: Path) -> None:
    assert "no Intel GPU" in probe_xpu({}, root=tmp_path, built=True).reason
    other = intel(tmp_path / "amd", 0x744C, vendor="0x1002")
    assert "no Intel GPU" in probe_xpu({}, root=other, built=True).reason
    there = intel(tmp_path / "intel", 0x56A0)
    answer = probe_xpu({"ZE_AFFINITY_MASK": "4"}, root=there, built=True)
    assert answer.reason == "ZE_AFFINITY_MASK='4' leaves no device"


def test_a_card_without_a_driver_is_not_there(tmp_path: Path) -> None:
    card = "sys/class/drm/card0/device"
    write(tmp_path, {f"{card}/vendor": "0x8086", f"{card}/device": "0x56a0"})
    assert not probe_xpu({}, root=tmp_path, built=True).available


# Huawei and Moore Threads ---------------------------------------------------------------------

BY_FILES = [
    (probe_npu, "davinci", "ASCEND_RT_VISIBLE_DEVICES", "Ascend NPU"),
    (probe_musa, "mtgpu.", "MUSA_VISIBLE_DEVICES", "Moore Threads GPU"),
]


@pytest.mark.parametrize(("probe", "stem", "variable", "name"), BY_FILES)
def test_devices_by_their_files(
    tmp_path: Path, probe: Any, stem: str, variable: str, name: str
) -> None:
    assert "is there" in probe({}, root=tmp_path).reason
    # A container was given two of eight; the manager's file is no device.
    write(tmp_path, {f"dev/{stem}{suffix}": "" for suffix in ("10", "6", "_manager")})
    answer = probe({}, root=tmp_path)
    assert answer.devices == (Device(0, f"{name} 6", 0, 0), Device(1, f"{name} 10", 0, 0))
    assert [d.index for d in probe({variable: "1"}, root=tmp_path).devices] == [1]
    for value in ("", "-1", "5"):
        hidden = probe({variable: value}, root=tmp_path)
        assert not hidden.available
        assert variable in hidden.reason


@pytest.mark.parametrize(("probe", "stem", "variable", "name"), BY_FILES)
def test_files_that_may_not_be_opened_are_no_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, probe: Any, stem: str, variable: str, name: str
) -> None:
    write(tmp_path, {f"dev/{stem}{number}": "" for number in (0, 1, 2)})
    closed: set[str] = {f"{stem}0"}
    # Whoever runs this may open anything, as root.
    monkeypatch.setattr("os.access", lambda path, mode: path.name not in closed)
    answer = probe({variable: "1"}, root=tmp_path)
    assert answer.devices == (Device(1, f"{name} 2", 0, 0),)
    closed |= {f"{stem}1", f"{stem}2"}
    none = probe({}, root=tmp_path)
    assert (none.available, none.devices) == (False, ())
    assert f"may open none of the {name}s" in none.reason


# Apple ----------------------------------------------------------------------------------------


def test_mps() -> None:
    answer = probe_mps(system="darwin", machine="arm64", release="14.5")
    (device,) = answer.devices
    assert (answer.available, device.dtypes) == (True, mps_dtypes(14))
    assert "bfloat16" in device.dtypes
    older = probe_mps(system="darwin", machine="arm64", release="13.6.1").devices[0]
    assert "bfloat16" not in older.dtypes
    assert "linux" in probe_mps(system="linux", machine="aarch64").reason
    assert "x86_64" in probe_mps(system="darwin", machine="x86_64").reason


# All ------------------------------------------------------------------------------------------

PROBES = [probe_npu, probe_musa, probe_rocm, probe_xpu]
TEXTS = st.text(alphabet="0123456789-,. xGPU\x00\n", max_size=12)


@given(TEXTS)
def test_no_list_of_visible_devices_breaks_anything(text: str) -> None:
    devices = tuple(Device(index, "d", 0, 0) for index in range(3))
    kept = visible(devices, text)
    assert set(kept) <= set(devices)


@pytest.mark.parametrize("text", [b"", b"\xff\xfe", b"simd_count x\n", b"a b c\n\n", b"0xzz"])
def test_damaged_files_break_nothing(tmp_path: Path, text: bytes) -> None:
    amd(tmp_path, 90402)
    intel(tmp_path, 0x56A0)
    for path in list(tmp_path.rglob("*")):
        if path.is_file():
            path.write_bytes(text)
    for probe in (probe_rocm, probe_xpu):
        answer: Probe = probe({}, root=tmp_path, built=True)
        assert not answer.available
        assert answer.reason


@pytest.mark.parametrize("probe", PROBES)
def test_a_root_that_cannot_be_read(tmp_path: Path, probe: Any) -> None:
    (tmp_path / "dev").write_text("a file, not a folder")
    (tmp_path / "sys").write_text("a file, not a folder")
    assert not probe({}, root=tmp_path).available
