"""What sgld-kernels-triton brings. Strings only; nothing here imports torch or triton."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

from sgld.api import KernelSpec, Plugin, Requires, hookimpl

TARGETS: Final = {
    "norm.layer": "sgld_kernels_triton.norm:layer",
    "norm.layer_modulate": "sgld_kernels_triton.norm:layer_modulate",
    "norm.rms": "sgld_kernels_triton.norm:rms",
    "norm.rms_rope": "sgld_kernels_triton.norm:rms_rope",
    "norm.head_rms_rope": "sgld_kernels_triton.norm:head_rms_rope",
    "norm.channel_rms_silu": "sgld_kernels_triton.norm:channel_rms_silu",
    "residual.gate": "sgld_kernels_triton.residual:gate",
    "residual.gate_layer": "sgld_kernels_triton.residual:gate_layer",
    "residual.gate_layer_modulate": "sgld_kernels_triton.residual:gate_layer_modulate",
}
"""Op → the function that takes its place."""

OLDEST: Final = 80
"""Compute capability 8.0: the first that computes in bfloat16, which every kernel takes."""


def kernel_id(op: str) -> str:
    """The id of the record for an op: `triton-norm-layer` for `norm.layer`."""
    return f"triton-{op.replace('.', '-').replace('_', '-')}"


@hookimpl
def sgld_plugin() -> Plugin:
    """Name and contract."""
    return Plugin(
        "triton",
        contracts={"kernel": 1},
        summary="Norms and residual sums that read each operand once, in Triton, on NVIDIA GPUs",
    )


@hookimpl
def sgld_kernels() -> Iterator[KernelSpec]:
    """One record for each op; all keep its roundings."""
    requires = Requires(
        device="cuda",
        arch=(OLDEST, Requires().arch[1]),
        dtypes=("bfloat16", "float16", "float32"),
        packages=("triton",),
        # Triton builds the piece that calls the driver on each machine; it obeys CC.
        programs=() if os.environ.get("CC") else ("gcc|clang",),
    )
    for op, target in TARGETS.items():
        yield KernelSpec(kernel_id(op), op, target, requires)
