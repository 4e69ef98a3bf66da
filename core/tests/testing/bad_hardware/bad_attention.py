"""Attention backends, each with one fault, and the conformance tests that must find it."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from sgld.api import AttentionSpec, Plugin, Requires, hookimpl
from sgld.ops.attention import attend

MATCHES, SCALE, STRIDES = "test_matches_the_reference", "test_scale", "test_strides"
MASK, ROWS, STAY = "test_mask", "test_rows_do_not_see_each_other", "test_inputs_stay"
LARGE, DIMS = "test_large_scores", "test_other_head_dims_are_right_or_refused"
STATED, WAITS = "test_exactness_is_stated", "test_host_does_not_wait"
OWN = "test_results_are_its_own"
NUMBERS = {MATCHES, SCALE, STRIDES, LARGE, DIMS}


class Bad(NamedTuple):
    """What finds a fault, and what the record and the class say."""

    found_by: set[str]
    record: dict[str, Any] = {}  # noqa: RUF012
    attributes: dict[str, Any] = {}  # noqa: RUF012


def half_scale(q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None) -> Tensor:
    return attend(q, k, v, scale=(scale or q.shape[-1] ** -0.5) / 2)


def no_scale(q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None) -> Tensor:
    return attend(q, k, v)


def ignores_mask(q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, mask: Any = None):
    return attend(q, k, v, scale=scale)


def takes_anything(q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, **more: Any):
    return attend(q, k, v, scale=scale)


def same_lengths(q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None) -> Tensor:
    """Reads as many keys as there are queries."""
    keys = min(q.shape[1], k.shape[1])
    return attend(q, k[:, :keys], v[:, :keys], scale=scale)


def scribbles(q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None) -> Tensor:
    out = attend(q, k, v, scale=scale)
    k.zero_()
    return out


def widens(q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None) -> Tensor:
    return attend(q.double(), k.double(), v.double(), scale=scale)


def rough(q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None) -> Tensor:
    """As an 8-bit kernel may be."""
    return attend(q, k, v, scale=scale) * 1.05


def flat(tensor: Tensor) -> Tensor:
    """Takes the memory for granted that a contiguous tensor would have."""
    strides = torch.empty(tensor.shape, device="meta").stride()
    return tensor.as_strided(tensor.shape, strides, tensor.storage_offset())


def contiguous_only(q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None) -> Tensor:
    return attend(flat(q), flat(k), flat(v), scale=scale)


def overflows(q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None) -> Tensor:
    """Softmax without taking the largest score off first."""
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    weights = (torch.einsum("bshd,bthd->bhst", q.float(), k.float()) * factor).exp()
    weights = weights / weights.sum(-1, keepdim=True)
    return torch.einsum("bhst,bthd->bshd", weights, v.float()).to(q.dtype)


def first_64_only(q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None) -> Tensor:
    """Pads or cuts other head dims to the one that it knows."""
    dim = q.shape[-1]
    if dim in (64, 128):
        return attend(q, k, v, scale=scale)
    return attend(q, k, v, scale=64**-0.5)


def looks_at_the_batch(q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None) -> Tensor:
    out = attend(q, k, v, scale=scale)
    return out if len(q) < 3 else out + v.mean() + 1


BUFFERS: dict[Any, Tensor] = {}


def one_buffer(q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None) -> Tensor:
    """Gives the same memory out each time."""
    out = attend(q, k, v, scale=scale)
    return BUFFERS.setdefault((out.shape, out.dtype), torch.empty_like(out)).copy_(out)


def short_only(q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None) -> Tensor:
    """Its loop over keys ends too early."""
    return attend(q, k[:, :200], v[:, :200], scale=scale)


def refuses_everything(q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None) -> Tensor:
    raise NotImplementedError("no")


def waits(q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None) -> Tensor:
    if q.abs().max().item() < 0:
        raise ValueError("never")
    return attend(q, k, v, scale=scale)


EIGHT_BITS = Requires(dtypes=("float8_e4m3fn",))
BAD = {
    "half-scale": Bad(NUMBERS),
    "no-scale": Bad({SCALE}),
    "ignores-mask": Bad({MASK}, {"can": frozenset({"mask"})}),
    "takes-anything": Bad({MASK}),
    "same-lengths": Bad({MATCHES, SCALE, LARGE, DIMS}),
    "scribbles": Bad({STAY}),
    "widens": Bad(NUMBERS),
    "rough": Bad(NUMBERS),
    "contiguous-only": Bad({STRIDES}),
    "overflows": Bad({LARGE}),
    "first-64-only": Bad({DIMS}),
    "looks-at-the-batch": Bad({ROWS}),
    "one-buffer": Bad({OWN}),
    "short-only": Bad({MATCHES}),
    "refuses-everything": Bad((NUMBERS | {ROWS, STAY, OWN}) - {DIMS}),
    "half-stated": Bad(
        {STATED},
        {
            "exact": False,
            "can": frozenset({"mask"}),
            "target": "sgld.ops.attention:sdpa_backend",
        },
    ),
    "no-dtype": Bad(
        (NUMBERS | {ROWS, STAY, MASK, OWN}),
        {"requires": EIGHT_BITS, "target": "sgld.ops.attention:sdpa_backend"},
    ),
}
ON_CUDA = {"waits": Bad({WAITS})}


@hookimpl
def sgld_plugin() -> Plugin:
    return Plugin("bad", {"attention": 1})


@hookimpl
def sgld_attention() -> Any:
    for name, bad in {**BAD, **ON_CUDA}.items():
        record = {"target": f"{__name__}:{name.replace('-', '_')}", **bad.record}
        yield AttentionSpec(name, **record)
