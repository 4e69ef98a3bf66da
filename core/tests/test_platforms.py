"""Platforms: the CPU against a made-up /proc, CUDA where there is one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sgld.api.errors import DeviceError
from sgld.platforms.cpu import CpuPlatform
from sgld.platforms.cuda import CudaPlatform
from sgld.platforms.platform import Memory, Platform

GIB = 1024**3
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    folder = tmp_path / "proc"
    (folder / "self").mkdir(parents=True)
    (folder / "meminfo").write_text(
        "MemTotal:  16777216 kB\nMemAvailable: 8388608 kB\nHugePages: 0\n"
    )
    (folder / "self" / "status").write_text(
        "Name:\tpython\nVmHWM:\t2097152 kB\nVmRSS:\t1048576 kB\n"
    )
    return folder


@pytest.mark.parametrize(
    ("limit", "used", "total", "free"),
    [
        ("max", str(GIB), 16 * GIB, 8 * GIB),
        (str(4 * GIB), str(1 * GIB), 4 * GIB, 3 * GIB),
        (str(12 * GIB), str(1 * GIB), 12 * GIB, 8 * GIB),
        (str(4 * GIB), str(5 * GIB), 4 * GIB, 0),
        (str(64 * GIB), str(1 * GIB), 16 * GIB, 8 * GIB),
        ("nonsense", "nonsense", 16 * GIB, 8 * GIB),
    ],
)
def test_cpu_memory_is_the_containers(
    proc: Path, tmp_path: Path, limit: str, used: str, total: int, free: int
) -> None:
    (tmp_path / "memory.max").write_text(limit + "\n")
    (tmp_path / "memory.current").write_text(used + "\n")
    found = CpuPlatform(proc=proc, cgroup=tmp_path).memory()
    assert found == Memory(total, free, allocated=1 * GIB, peak=2 * GIB)


def test_cpu_memory_without_linux(tmp_path: Path) -> None:
    platform = CpuPlatform(proc=tmp_path / "none", cgroup=tmp_path / "none")
    found = platform.memory()
    assert found.total == found.free
    assert found.total > 64 * 1024**2
    assert (found.allocated, found.peak) == (0, 0)
    platform.reset_peak()


def test_cpu_peak_starts_again(proc: Path, tmp_path: Path) -> None:
    CpuPlatform(proc=proc, cgroup=tmp_path).reset_peak()
    assert (proc / "self" / "clear_refs").read_text() == "5"


def test_cpu_on_this_machine() -> None:
    found = CpuPlatform().memory()
    assert 0 < found.free <= found.total
    if found.peak:  # Linux
        assert 10 * 1024**2 < found.allocated <= found.peak


def test_cpu_facts_and_dtype() -> None:
    platform = CpuPlatform()
    facts = platform.facts()
    assert (facts.device, facts.arch) == ("cpu", 0)
    assert str(platform.default_dtype()).removeprefix("torch.") in facts.dtypes
    assert "streams" not in facts.abilities
    assert platform.torch_device == torch.device("cpu")


def test_cpu_side_stream_is_the_same_stream() -> None:
    platform: Platform = CpuPlatform()
    weight = torch.arange(6.0)
    with platform.stream() as stream:
        there = weight + 0
    platform.join(stream, there)
    platform.synchronise()
    platform.empty_cache()
    assert stream is None
    assert torch.equal(there, weight)


@pytest.mark.parametrize("index", [-1, 10_000])
def test_missing_cuda_device_says_so(index: int) -> None:
    with pytest.raises(DeviceError, match=rf"device=cuda:{index}: torch sees \d+ CUDA device"):
        CudaPlatform(index)


@needs_cuda
@pytest.mark.gpu
def test_cuda_counts_tensors_and_peak() -> None:
    platform = CudaPlatform(0)
    platform.empty_cache()
    before = platform.memory()
    held = torch.empty(256 * 1024**2, dtype=torch.uint8, device=platform.torch_device)
    during = platform.memory()
    assert during.allocated - before.allocated == held.nbytes
    assert before.free - during.free >= held.nbytes
    del held
    after = platform.memory()
    assert after.allocated == before.allocated
    assert after.peak >= during.allocated
    platform.reset_peak()
    assert platform.memory().peak == after.allocated
    # Memory that torch keeps for later counts as free.
    assert after.free >= during.free + 256 * 1024**2


@needs_cuda
@pytest.mark.gpu
def test_cuda_works_beside_the_computation() -> None:
    platform = CudaPlatform(0)
    host = torch.randn(1024, 1024).pin_memory()
    with platform.stream() as stream:
        there = host.to(platform.torch_device, non_blocking=True)
    platform.join(stream, there)
    total = there.double().sum()
    platform.synchronise()
    assert total.item() == pytest.approx(host.double().sum().item(), rel=1e-9)


@needs_cuda
@pytest.mark.gpu
def test_cuda_facts() -> None:
    platform = CudaPlatform(0)
    facts = platform.facts()
    assert (
        facts.arch
        == 10 * torch.cuda.get_device_capability(0)[0] + torch.cuda.get_device_capability(0)[1]
    )
    assert ("bfloat16" in facts.dtypes) == (platform.default_dtype() is torch.bfloat16)
    assert platform.torch_device == torch.device("cuda:0")
