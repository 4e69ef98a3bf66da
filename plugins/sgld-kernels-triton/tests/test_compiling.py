"""The kernels compile, without a GPU, for those that the records claim; and a small request
compiles what a large one runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sgld_kernels_triton.launch import LAUNCHES, Launch, launch_for, padded, sensible
from sgld_kernels_triton.plugin import TARGETS

pytest.importorskip("triton", reason="Triton has no wheel for this machine")

BF16 = torch.bfloat16


class Compiled(list[Any]):
    """What launches have compiled instead of running."""

    def last(self) -> str:
        """PTX of the last one."""
        return self[-1].asm["ptx"]

    def different(self) -> int:
        """How many kernels they were."""
        return len({id(kernel) for kernel in self})


@pytest.fixture(params=[80, 90])
def compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Compiled]:
    """Launches compile for this compute capability and run nothing."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime.driver import driver
    from triton.runtime.jit import JITFunction

    from sgld_kernels_triton import kernels

    fake = SimpleNamespace(
        get_current_target=lambda: GPUTarget("cuda", request.param, 32),
        get_current_device=lambda: request.param,  # so that the caches are apart
        get_current_stream=lambda device: 0,
    )
    done, run = Compiled(), JITFunction.run

    def compile_only(self: Any, *args: Any, **keywords: Any) -> Any:
        done.append(run(self, *args, **{**keywords, "warmup": True}))

    monkeypatch.setattr(JITFunction, "run", compile_only)
    monkeypatch.setattr(driver, "_active", fake)
    yield done
    for kernel in (kernels.residual_norm, kernels.rms_rotate, kernels.channel_rms_silu):
        kernel.device_caches.clear()


def calls(tokens: int, width: int, groups: int) -> dict[str, Callable[[], Any]]:
    """Every op as the networks call it, on bfloat16 tokens."""
    from sgld_kernels_triton import norm, residual

    x, y = (torch.zeros(1, tokens, width, dtype=BF16) for _ in range(2))
    gate, scale, shift = torch.zeros(1, groups, 6, width).unbind(2)[:3]
    weight, plain = torch.zeros(width), torch.zeros(width, dtype=BF16)
    clip = torch.zeros(1, 96, 1, tokens, 2, dtype=BF16)
    clip = clip.contiguous(memory_format=torch.channels_last_3d)
    tables, heads = (torch.zeros(tokens, 64), torch.zeros(tokens, 64)), width // 128
    return {
        "norm.layer": lambda: norm.layer(x, weight, weight, 1e-6),
        "norm.layer_modulate": lambda: norm.layer_modulate(x, scale, shift, 1e-6),
        "norm.rms": lambda: norm.rms(x, plain, 1e-6),
        "norm.rms_rope": lambda: norm.rms_rope(x, plain, *tables, heads, 1e-6),
        "norm.head_rms_rope": lambda: norm.head_rms_rope(x, plain[:128], *tables, heads, 1e-6),
        "norm.channel_rms_silu": lambda: norm.channel_rms_silu(clip, plain[:96], 1e-12),
        "residual.gate": lambda: residual.gate(x, y, gate),
        "residual.gate_layer": lambda: residual.gate_layer(x, y, gate, weight, weight, 1e-6),
        "residual.gate_layer_modulate": lambda: residual.gate_layer_modulate(
            x, y, None, scale, shift, 1e-6
        ),
    }


def test_wide_loads_and_one_kernel_for_all_requests(compiled: Compiled) -> None:
    """Streams travel 16 bytes a thread: fewer would leave bandwidth unused. And what the warm-up of
    a server compiled is what requests of any size run."""
    sizes = {"small": (1, 1), "chunk": (4680, 3), "each its own": (777, 777)}
    every = [calls(tokens, 1536, groups) for tokens, groups in sizes.values()]
    assert set(every[0]) == set(TARGETS)
    for op in every[0]:
        compiled.clear()
        for kinds in every:
            kinds[op]()
        assert len(compiled) == 3
        assert compiled.different() == 1, op
        loads = re.findall(r"ld\.global\S*", compiled.last())
        stores = re.findall(r"st\.global\S*", compiled.last())
        assert loads
        assert all(".v4." in name for name in stores), (op, stores)
        # One value for each row of a tile may be narrow: that is no stream.
        assert sum(".v4." not in name for name in loads) <= 1, (op, loads)


def test_rounding_after_every_operation_is_not_fused_away(compiled: Compiled) -> None:
    """A product that is rounded to bfloat16 and then added to something is not one fused operation,
    which would round once: a quarter of the elements differed on a GPU."""
    from sgld_kernels_triton import norm, residual

    x, y = (torch.zeros(1, 8, 1536, dtype=BF16) for _ in range(2))
    half = torch.zeros(1, 1, 1536, dtype=BF16)
    norm.layer_modulate(x, half, half, 1e-6)
    residual.gate(x, y, half)
    residual.gate_layer_modulate(x, y, half, half, half, 1e-6)
    assert len(compiled) == 3
    for kernel in compiled:
        ptx = kernel.asm["ptx"]
        # Where there is no plain sum or product, it is written as x·1 + y or as x·y - 0.
        plain = set(re.findall(r"mov\.b16\s+(%rs\d+), 0x(?:3F80|8000);", ptx))
        fused = re.findall(r"fma\.rn\.bf16\s+%rs\d+, %rs\d+, (%rs\d+), (%rs\d+)", ptx)
        assert all(plain.intersection(operands) for operands in fused)


def test_programs_have_sensible_sizes() -> None:
    for width in (64, 128, 384, 1536, 2048, 3072, 5120, 8192, 13824):
        assert sensible(launch_for(width), width), width
    assert launch_for(5120) == Launch(rows=1, warps=8)
    assert launch_for(10**6).rows == 1
    assert [most for most, _ in LAUNCHES] == sorted(most for most, _ in LAUNCHES)
    assert [padded(width) for width in (1, 2, 3, 128, 129, 5120)] == [2, 2, 4, 128, 256, 8192]
    assert not sensible(Launch(16, 2), 8192)
    assert not sensible(Launch(1, 16), 128)
