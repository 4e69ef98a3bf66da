"""What sgld-core itself brings, as a plugin like any other. Strings only; imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterator

from sgld.api import (
    AttentionSpec,
    CacheSpec,
    ExecutorSpec,
    PlatformSpec,
    Plugin,
    Requires,
    hookimpl,
)


@hookimpl
def sgld_plugin() -> Plugin:
    """Who this is."""
    return Plugin(
        "builtin",
        contracts={"platform": 1, "attention": 1, "cache": 1, "executor": 1},
        summary="Devices, attention, cache policies and executors of sgld-core itself",
    )


@hookimpl
def sgld_platforms() -> Iterator[PlatformSpec]:
    """An accelerator where there is one, else the CPU."""
    where = "sgld.platforms"
    yield PlatformSpec(
        id="cpu",
        target=f"{where}.cpu:CpuPlatform",
        probe=f"{where}.probe:probe_cpu",
        collective="gloo",
    )
    yield PlatformSpec(
        id="cuda",
        target=f"{where}.cuda:CudaPlatform",
        probe=f"{where}.probe:probe_cuda",
        requires=Requires(device="cuda"),
        priority=10,
        collective="nccl",
    )
    yield PlatformSpec(
        id="rocm",
        target=f"{where}.rocm:RocmPlatform",
        probe=f"{where}.probes.rocm:probe_rocm",
        requires=Requires(device="rocm"),
        priority=10,
        collective="nccl",  # torch calls RCCL by this name
    )
    yield PlatformSpec(
        id="xpu",
        target=f"{where}.xpu:XpuPlatform",
        probe=f"{where}.probes.xpu:probe_xpu",
        requires=Requires(device="xpu"),
        priority=10,
        attention=("sdpa",),
        collective="xccl",
    )
    yield PlatformSpec(
        id="npu",
        target=f"{where}.npu:NpuPlatform",
        probe=f"{where}.probes.npu:probe_npu",
        requires=Requires(device="npu", packages=("torch_npu",)),
        priority=10,
        attention=("sdpa",),
        collective="hccl",
    )
    yield PlatformSpec(
        id="musa",
        target=f"{where}.musa:MusaPlatform",
        probe=f"{where}.probes.musa:probe_musa",
        requires=Requires(device="musa", packages=("torch_musa",)),
        priority=10,
        attention=("sdpa",),
        collective="mccl",
    )
    yield PlatformSpec(
        id="mps",
        target=f"{where}.mps:MpsPlatform",
        probe=f"{where}.probes.mps:probe_mps",
        requires=Requires(device="mps"),
        priority=10,
        attention=("sdpa",),
        collective="gloo",
    )


@hookimpl
def sgld_attention() -> Iterator[AttentionSpec]:
    """PyTorch's own attention, dense, with or without a mask of keys, on any device."""
    yield AttentionSpec(
        id="sdpa", target="sgld.ops.attention:sdpa_backend", can=frozenset({"mask"})
    )


@hookimpl
def sgld_caches() -> Iterator[CacheSpec]:
    """What a ring of keys and values keeps of the past."""
    where = "sgld.causal.policies"
    yield CacheSpec(id="rolling", target=f"{where}:Rolling", bounded=True)
    yield CacheSpec(id="growing", target=f"{where}:Growing", bounded=False)
    yield CacheSpec(id="global-sink", target=f"{where}:GlobalSink", bounded=True)
    yield CacheSpec(id="pinned-sink", target=f"{where}:PinnedSink", bounded=True)


@hookimpl
def sgld_executors() -> Iterator[ExecutorSpec]:
    """An engine in this process."""
    yield ExecutorSpec(id="in-process", target="sgld.engine.executors.in_process:InProcessExecutor")
