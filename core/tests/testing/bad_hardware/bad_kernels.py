"""Kernels, each with one fault, and the conformance tests that must find it."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sgld.api import KernelSpec, Plugin, Requires, hookimpl
from sgld.ops import norm, residual
from sgld.ops.activation import gelu_tanh
from sgld.ops.rope import rotate

SIGNATURE, NUMBERS, ROUNDINGS = "test_signature", "test_numbers", "test_roundings"
OWN = "test_results_are_its_own"
STAY, TWICE, WAITS = "test_inputs_stay", "test_twice_the_same", "test_host_does_not_wait"
EVERYTHING = {SIGNATURE, NUMBERS, ROUNDINGS, STAY, TWICE, OWN, WAITS}


class Bad(NamedTuple):
    """What finds a fault, and what the record says."""

    found_by: set[str]
    op: str
    record: dict[str, Any] = {}  # noqa: RUF012


def other_order(x: Tensor, eps: float, weight: Any) -> Tensor:
    return norm.rms(x, weight, eps)


def one_argument_less(x: Tensor, y: Tensor) -> Tensor:
    return x + y


def no_eps_by_name(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return q


def no_eps(x: Tensor, weight: Any, eps: float) -> Tensor:
    return norm.rms(x, weight, 0.1)


def needs_a_weight(x: Tensor, weight: Any, eps: float) -> Tensor:
    return norm.rms(x, weight.to(x.dtype), eps)


def one_group(x: Tensor, y: Tensor, gate: Any) -> Tensor:
    """Takes the first vector for all tokens."""
    return residual.gate(x, y, None if gate is None else gate[:, :1])


def packed_gate(x: Tensor, y: Tensor, gate: Any) -> Tensor:
    """Takes the memory for granted that a contiguous modulation would have."""
    if gate is not None:
        strides = torch.empty(gate.shape, device="meta").stride()
        gate = gate.as_strided(gate.shape, strides, gate.storage_offset())
    return residual.gate(x, y, gate)


def rounds_once(x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, heads: int, eps: float):
    """Leaves out the rounding between norm and rotation."""
    wide = norm.rms(x.float(), weight.float(), eps).unflatten(-1, (heads, -1))
    return rotate(wide, cos, sin).to(x.dtype)


def in_place(x: Tensor, y: Tensor, gate: Any) -> Tensor:
    return x.copy_(residual.gate(x, y, gate))


def gives_its_input(x: Tensor, y: Tensor, gate: Any) -> Tensor:
    return x if gate is None and not y.any() else residual.gate(x, y, gate)


def only_the_norm(x: Tensor, y: Tensor, gate: Any, weight: Any, bias: Any, eps: float) -> Tensor:
    return residual.gate_layer(x, y, gate, weight, bias, eps)[1]


def widens(x: Tensor, weight: Any, eps: float) -> Tensor:
    return norm.rms(x.float(), weight, eps)


calls = itertools.count()


def counts(x: Tensor, weight: Any, eps: float) -> Tensor:
    """Its accumulator is not cleared between two calls."""
    return norm.rms(x, weight, eps) + next(calls) * torch.finfo(x.dtype).eps / 4096


BUFFERS: dict[Any, Tensor] = {}


def one_buffer(x: Tensor, weight: Any, eps: float) -> Tensor:
    """Gives the same memory out each time."""
    out = norm.rms(x, weight, eps)
    return BUFFERS.setdefault((out.shape, out.dtype), torch.empty_like(out)).copy_(out)


def view_of_its_input(x: Tensor) -> Tensor:
    return gelu_tanh(x)


def rough(x: Tensor, weight: Any, eps: float) -> Tensor:
    return norm.rms(x, weight, eps) * 1.01


def waits(x: Tensor, weight: Any, eps: float) -> Tensor:
    if x.abs().max().item() < 0:
        raise ValueError("never")
    return norm.rms(x, weight, eps)


RMS, GATE = "norm.rms", "residual.gate"
BAD = {
    "other-order": Bad({NUMBERS, ROUNDINGS, STAY, TWICE, OWN}, RMS),
    "one-argument-less": Bad({SIGNATURE, NUMBERS, ROUNDINGS, STAY, TWICE, OWN}, GATE),
    "no-eps-by-name": Bad(
        {SIGNATURE, NUMBERS, ROUNDINGS, STAY, TWICE, OWN}, "linear_attention.relu"
    ),
    "no-eps": Bad({NUMBERS, ROUNDINGS}, RMS),
    "needs-a-weight": Bad({NUMBERS, ROUNDINGS, STAY, TWICE, OWN}, RMS),
    "one-group": Bad({NUMBERS, ROUNDINGS}, GATE),
    "packed-gate": Bad({NUMBERS, ROUNDINGS}, GATE),
    "rounds-once": Bad({ROUNDINGS}, "norm.rms_rope"),
    "in-place": Bad({STAY}, GATE),
    "only-the-norm": Bad({NUMBERS, ROUNDINGS}, "residual.gate_layer"),
    "widens": Bad({NUMBERS, ROUNDINGS}, RMS),
    "one-buffer": Bad({OWN}, RMS),
    "counts": Bad({TWICE}, RMS, {"numerics": "atol=1e-3"}),
    "rough": Bad({NUMBERS}, RMS, {"numerics": "rtol=1e-3"}),
    "rough-atol": Bad({NUMBERS}, RMS, {"numerics": "atol=1e-3", "target": "bad_kernels:rough"}),
    "no-such-op": Bad(EVERYTHING - {WAITS}, "norm.batch", {"target": "bad_kernels:rough"}),
    "a-role": Bad(EVERYTHING - {WAITS}, "attention.self", {"target": "bad_kernels:rough"}),
    "no-dtype": Bad(
        {NUMBERS, ROUNDINGS, STAY, TWICE, OWN},
        RMS,
        {"requires": Requires(dtypes=("float8_e4m3fn",)), "target": "sgld.ops.norm:rms"},
    ),
}
GOOD = {
    "honest": Bad(set(), RMS, {"numerics": "rtol=2e-2", "target": "bad_kernels:rough"}),
    "overwrites": Bad(set(), "activation.gelu_tanh", {"target": "bad_kernels:view_of_its_input"}),
}
ON_CUDA = {"waits": Bad({WAITS}, RMS)}


@hookimpl
def sgld_plugin() -> Plugin:
    return Plugin("bad", {"kernel": 1})


@hookimpl
def sgld_kernels() -> Any:
    for name, bad in {**BAD, **GOOD, **ON_CUDA}.items():
        record = {"target": f"{__name__}:{name.replace('-', '_')}", **bad.record}
        yield KernelSpec(name, bad.op, **record)
