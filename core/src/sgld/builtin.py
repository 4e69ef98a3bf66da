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
    """CUDA where there is a device, else the CPU."""
    yield PlatformSpec(
        id="cpu", target="sgld.platforms.cpu:CpuPlatform", probe="sgld.platforms.probe:probe_cpu"
    )
    yield PlatformSpec(
        id="cuda",
        target="sgld.platforms.cuda:CudaPlatform",
        probe="sgld.platforms.probe:probe_cuda",
        requires=Requires(device="cuda"),
        priority=10,
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
