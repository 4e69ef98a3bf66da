"""What an attention backend promises, tested against attention written out in float64."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Final

import pytest
import torch
from torch import Tensor

from sgld.ops.attention import attend
from sgld.platforms.platform import Platform
from sgld.testing.conformance.base import Contract, broken, expect
from sgld.testing.conformance.hardware import (
    device_or_skip,
    draw,
    dtypes_of,
    expect_own,
    largest,
    tolerance,
)
from sgld.testing.host_sync import no_host_sync

MASK: Final = "mask"
SHAPES: Final = ((1, 1, 1, 1), (2, 16, 16, 2), (1, 33, 7, 3), (2, 5, 130, 4), (1, 1030, 1027, 1))
"""(B, S, T, H): one token, equal lengths, fewer keys than queries, more keys than a block, as many
as a picture has."""
COARSEST: Final = 0.25
"""Results lie around 1: one that is further off says nothing any more."""
OTHER_HEAD_DIMS: Final = (8, 40, 80, 96, 256)


class AttentionContract(Contract):
    """Attention `attend(q, k, v, *, scale=None)` with q [B, S, H, D], k and v [B, T, H, D].

    The device is `--sgld-device`; where the record's `requires` does not hold there, the tests are
    skipped and say which device they need.
    """

    kind: ClassVar[str] = "attention"
    named_by: ClassVar[str] = "backend"
    told: ClassVar[tuple[str, ...]] = ("backend", "head_dims", "tolerance")
    backend: ClassVar[str] = ""
    """The id of the record."""
    head_dims: ClassVar[tuple[int, ...]] = (64, 128)
    """Head dims that it must take."""
    tolerance: ClassVar[float | None] = None
    """Largest absolute error for normal inputs; for backends whose record says `exact=False`."""

    @pytest.fixture
    def device(self, sgld_device: str) -> Platform:
        """The device under test."""
        return device_or_skip(sgld_device, self.entry().spec.requires)

    @pytest.fixture
    def attention(self, device: Platform) -> Callable[..., Tensor]:
        """The backend, imported on the device that it needs."""
        return self.target()

    @classmethod
    def mistold(cls) -> Iterator[str]:
        """Head dims that are there, and a tolerance that a result of zeros does not keep."""
        if not cls.head_dims or not all(type(d) is int and d > 0 for d in cls.head_dims):
            yield f"head_dims={cls.head_dims!r} is no tuple of at least one head dim"
        if cls.tolerance is not None and not 0 < cls.tolerance <= COARSEST:
            yield f"tolerance={cls.tolerance!r} is not above 0 and at most {COARSEST}"

    @classmethod
    def can(cls) -> frozenset[str]:
        """Abilities that the record lists."""
        return cls.entry().spec.can

    @classmethod
    def allowed(cls, dtype: torch.dtype) -> float:
        """The error that the record allows itself in a dtype."""
        return tolerance(dtype) if cls.tolerance is None else max(cls.tolerance, tolerance(dtype))

    def check(
        self, attention: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor, **more: Any
    ) -> None:
        """Compare one call with the reference."""
        __tracebackhide__ = True
        with torch.inference_mode():
            wanted = attend(*(tensor.double().cpu() for tensor in (q, k, v)), **_on_host(more))
            got = attention(q, k, v, **more)
        expect(
            isinstance(got, Tensor) and got.shape == q.shape and got.dtype == q.dtype,
            expected=f"a tensor {list(q.shape)} of {q.dtype}, as q is",
            got=f"{list(got.shape)} of {got.dtype}" if isinstance(got, Tensor) else repr(got),
            remedy="Return [B, S, H, D] in the dtype of q.",
        )
        bound = self.allowed(q.dtype)
        error = (got.double().cpu() - wanted).abs()
        expect(
            bool((error <= bound * (1 + wanted.abs())).all()),
            expected=f"softmax(q·kᵀ·scale)·v within {bound:g}·(1 + |value|), for "
            f"q {list(q.shape)}, k {list(k.shape)}, {q.dtype}{_told(more)}",
            got=f"an error of {largest(error)}",
            remedy="Mend the backend; an approximation says `exact=False` in its record and states "
            "`tolerance` in this class.",
        )

    def inputs(
        self, device: Platform, dtype: torch.dtype, shape: tuple[int, int, int, int], dim: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v of a shape (B, S, T, H)."""
        batch, queries, keys, heads = shape
        where = device.torch_device
        return (
            draw((batch, queries, heads, dim), dtype, where, 1),
            draw((batch, keys, heads, dim), dtype, where, 2),
            draw((batch, keys, heads, dim), dtype, where, 3),
        )

    def each(self, device: Platform) -> list[torch.dtype]:
        """Dtypes to test here."""
        found = dtypes_of(self.entry().spec.requires, device.facts())
        expect(
            found,
            expected="a dtype that both the record and the device take",
            got=f"{self.entry().spec.requires.dtypes} on {sorted(device.facts().dtypes)}",
            remedy="Correct `requires.dtypes`.",
        )
        return found

    def test_exactness_is_stated(self) -> None:
        """A backend is exact, or its class states the tolerance."""
        exact = self.entry().spec.exact
        expect(
            exact == (self.tolerance is None),
            expected="a record with `exact=True`, or `tolerance` stated in this class",
            got=f"exact={exact}, tolerance={self.tolerance}",
            remedy="Set one of the two.",
        )

    @pytest.mark.parametrize("shape", SHAPES, ids=str)
    def test_matches_the_reference(
        self, device: Platform, attention: Callable[..., Tensor], shape: tuple[int, int, int, int]
    ) -> None:
        """Every dtype and head dim, with keys as long as the queries, shorter and longer."""
        for dtype in self.each(device):
            for dim in self.head_dims:
                self.check(attention, *self.inputs(device, dtype, shape, dim))

    @pytest.mark.parametrize("dim", OTHER_HEAD_DIMS)
    def test_other_head_dims_are_right_or_refused(
        self, device: Platform, attention: Callable[..., Tensor], dim: int
    ) -> None:
        """What it does not take it refuses; it never gives wrong numbers."""
        dtype = self.each(device)[0]
        q, k, v = self.inputs(device, dtype, (2, 16, 24, 2), dim)
        try:
            with torch.inference_mode():
                attention(q, k, v)
        except Exception:
            return
        self.check(attention, q, k, v)

    def test_scale(self, device: Platform, attention: Callable[..., Tensor]) -> None:
        """A scale that is given replaces 1/sqrt(D)."""
        for dtype in self.each(device):
            q, k, v = self.inputs(device, dtype, (2, 16, 24, 2), self.head_dims[0])
            self.check(attention, q, k, v, scale=0.02)

    def test_strides(self, device: Platform, attention: Callable[..., Tensor]) -> None:
        """q, k and v may be views: of one fused projection, or with heads before tokens."""
        dtype, dim = self.each(device)[0], self.head_dims[0]
        fused = draw((2, 20, 3, 2, dim), dtype, device.torch_device, 4)
        self.check(attention, *fused.unbind(2))
        heads_first = draw((3, 2, 2, 20, dim), dtype, device.torch_device, 5)
        self.check(attention, *heads_first.transpose(2, 3).unbind(0))

    def test_inputs_stay(self, device: Platform, attention: Callable[..., Tensor]) -> None:
        """q, k and v are read and not written to: caches hold them."""
        given = self.inputs(device, self.each(device)[0], (2, 16, 24, 2), self.head_dims[0])
        before = [tensor.clone() for tensor in given]
        with torch.inference_mode():
            attention(*given)
        changed = [
            name
            for name, tensor, old in zip("qkv", given, before, strict=True)
            if not torch.equal(tensor, old)
        ]
        expect(
            not changed,
            expected="q, k and v as they were",
            got=f"{', '.join(changed)} changed",
            remedy="Work on copies.",
        )

    def test_results_are_its_own(self, device: Platform, attention: Callable[..., Tensor]) -> None:
        """A result stays when it is called again: each has memory of its own."""
        q, k, v = self.inputs(device, self.each(device)[0], (2, 16, 24, 2), self.head_dims[0])
        with torch.inference_mode():
            first = attention(q, k, v)
            before = first.clone()
            second = attention(-q, k, v + 1)
        expect_own([first], [before], [second], what="attention")

    def test_large_scores(self, device: Platform, attention: Callable[..., Tensor]) -> None:
        """Scores far from zero neither overflow nor lose the largest one."""
        dtype = self.each(device)[0]
        q, k, v = self.inputs(device, dtype, (1, 8, 24, 2), self.head_dims[0])
        self.check(attention, q * 30, k * 10, v)

    def test_rows_do_not_see_each_other(
        self, device: Platform, attention: Callable[..., Tensor]
    ) -> None:
        """A row of a batch gets what it would get alone."""
        dtype = self.each(device)[0]
        q, k, v = self.inputs(device, dtype, (3, 16, 24, 2), self.head_dims[0])
        with torch.inference_mode():
            together = attention(q.clone(), k.clone(), v.clone())[1:2].double()
            alone = attention(q[1:2], k[1:2], v[1:2]).double()
        error = (together - alone).abs()
        bound = self.allowed(dtype)
        expect(
            bool((error <= bound * (1 + alone.abs())).all()),
            expected=f"row 1 of three as it is alone, within {bound:g}",
            got=f"a difference of {largest(error)}",
            remedy="Nothing of a row may depend on the others in the batch.",
        )

    def test_mask(self, device: Platform, attention: Callable[..., Tensor]) -> None:
        """With `mask` in `can`: keys where the mask is False take no part. Without: refused."""
        dtype = self.each(device)[0]
        q, k, v = self.inputs(device, dtype, (2, 16, 24, 2), self.head_dims[0])
        mask = torch.ones(2, 24, dtype=torch.bool, device=device.torch_device)
        mask[0, 9:] = False
        mask[1, ::2] = False
        if MASK in self.can():
            for dtype in self.each(device):
                self.check(attention, q.to(dtype), k.to(dtype), v.to(dtype), mask=mask)
            return
        if MASK not in inspect.signature(attention).parameters:
            try:
                with torch.inference_mode():
                    attention(q, k, v, mask=mask)
            except Exception:
                return
        broken(
            expected="a mask is refused, for `can` does not list it",
            got="it was taken without an error",
            remedy='List "mask" in `can`, or do not take the argument.',
        )

    def test_host_does_not_wait(self, device: Platform, attention: Callable[..., Tensor]) -> None:
        """No call makes the host wait for the device; only CUDA shows it."""
        if device.torch_device.type != "cuda":
            return
        q, k, v = self.inputs(device, self.each(device)[-1], (2, 64, 64, 2), self.head_dims[0])
        with torch.inference_mode():
            attention(q, k, v)  # what is made once may wait
            device.synchronise()
            with no_host_sync():
                attention(q, k, v)


def _on_host(more: dict[str, Any]) -> dict[str, Any]:
    return {name: v.cpu() if isinstance(v, Tensor) else v for name, v in more.items()}


def _told(more: dict[str, Any]) -> str:
    return "".join(f", {name}" for name in more)
