"""What a kernel promises, tested against its op's plain-torch reference in `sgld.ops`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Final

import pytest
import torch
from torch import Tensor

from sgld.ops.table import Ops
from sgld.platforms.platform import Platform
from sgld.testing.conformance.base import Contract, broken, expect
from sgld.testing.conformance.hardware import (
    device_or_skip,
    dtypes_of,
    expect_own,
    largest,
    tolerance,
)
from sgld.testing.conformance.op_cases import CASES, MAY_OVERWRITE, Case, Inputs, Sizes
from sgld.testing.host_sync import no_host_sync

LEAST: Final = 8
"""Least width of a head."""
OTHERWISE_ROUNDED: Final = 0.02
"""Part of the elements that an exact kernel in half precision may round the other way: sums in
another order end next to a tie now and then, a rounding left out shows in many more."""


class KernelContract(Contract):
    """A kernel with the signature and the numbers of its op's reference.

    The device is `--sgld-device`; where the record's `requires` does not hold there, the tests are
    skipped and say which device they need.
    """

    kind: ClassVar[str] = "kernel"
    named_by: ClassVar[str] = "kernel"
    told: ClassVar[tuple[str, ...]] = ("kernel", "sizes")
    kernel: ClassVar[str] = ""
    """The id of the record."""
    sizes: ClassVar[Sizes] = Sizes(width=256, heads=2)
    """Width of the tokens and heads in the tests."""

    @pytest.fixture
    def device(self, sgld_device: str) -> Platform:
        """The device under test."""
        return device_or_skip(sgld_device, self.entry().spec.requires)

    @pytest.fixture
    def run(self, device: Platform) -> Callable[..., Any]:
        """The kernel, imported on the device that it needs."""
        return self.target()

    @classmethod
    def mistold(cls) -> Iterator[str]:
        """Sizes at which there is something to compute."""
        width, heads = cls.sizes
        if heads < 1 or width < LEAST * heads or width % heads:
            yield f"{cls.sizes!r}: a width of at least {LEAST} for each head, and a multiple"

    @classmethod
    def op(cls) -> str:
        """The op that the record names; an error when no kernel may take it."""
        op = cls.entry().spec.op
        expect(
            op in CASES,
            expected=f"an op that a kernel may take: {', '.join(CASES)}",
            got=repr(op),
            remedy="Correct `op`; roles of attention take an AttentionSpec.",
        )
        return op

    @classmethod
    def reference(cls) -> Callable[..., Any]:
        """The op's plain-torch reference."""
        return Ops.reference()[cls.op()]

    def cases(self, device: Platform) -> Iterator[tuple[torch.dtype, Case]]:
        """Calls in every dtype that the record takes here."""
        op, found = self.op(), dtypes_of(self.entry().spec.requires, device.facts())
        expect(
            found,
            expected="a dtype that both the record and the device take",
            got=f"{self.entry().spec.requires.dtypes} on {sorted(device.facts().dtypes)}",
            remedy="Correct `requires.dtypes`.",
        )
        for dtype in found:
            for case in CASES[op](Inputs(dtype, device.torch_device, self.sizes)):
                yield dtype, case

    def test_signature(self) -> None:
        """It takes what its reference takes, by position and by name."""
        kernel, reference = self.target(), inspect.signature(self.reference())
        by_position = [
            p for p in reference.parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD
        ]
        by_name = {p.name: p.default for p in reference.parameters.values() if p not in by_position}
        try:
            signature = inspect.signature(kernel)
        except ValueError:
            return  # a compiled function tells none; the other tests call it
        for keywords in ({}, by_name):
            try:
                signature.bind(*by_position, **keywords)
            except TypeError as error:
                broken(
                    expected=f"a function that can be called like {self.op()}{reference}",
                    got=f"{signature}: {error}",
                    remedy="Give it the signature in docs/ops.md.",
                )

    def test_numbers(self, device: Platform, run: Callable[..., Any]) -> None:
        """Every form of input gives the reference's numbers, as near as `numerics` says."""
        numerics = self.entry().spec.numerics
        for dtype, case in self.cases(device):
            for name, got, wanted in self._results(run, case, dtype):
                error = (got.double() - wanted.double()).abs()
                size = wanted.double().abs()
                if numerics == "exact":
                    bound = tolerance(dtype) * (1 + size)
                elif numerics.startswith("atol="):
                    bound = torch.full_like(size, float(numerics[5:]))
                else:
                    bound = float(numerics[5:]) * size + torch.finfo(torch.float32).tiny
                expect(
                    bool((error <= bound).all()),
                    expected=f"{name} as the reference's, for {numerics!r}",
                    got=f"an error of {largest(error)}",
                    remedy="Mend the kernel, or state in the record's `numerics` what it keeps.",
                )

    def test_roundings(self, device: Platform, run: Callable[..., Any]) -> None:
        """An exact kernel rounds where the reference does: in half precision nearly every element
        has the same bits."""
        if self.entry().spec.numerics != "exact":
            return
        for dtype, case in self.cases(device):
            if dtype == torch.float32:
                continue
            for name, got, wanted in self._results(run, case, dtype):
                part = (got != wanted).double().mean().item()
                expect(
                    part <= OTHERWISE_ROUNDED,
                    expected=f"{name}: the same bits in all but {OTHERWISE_ROUNDED:.0%}",
                    got=f"{part:.1%} of the elements differ",
                    remedy="Compute in float32 and round where docs/ops.md says, or state another "
                    "`numerics`.",
                )

    def test_inputs_stay(self, device: Platform, run: Callable[..., Any]) -> None:
        """Inputs are not written to, and no result lies in their memory: step caches hold them."""
        if self.op() in MAY_OVERWRITE:
            return
        for dtype, case in self.cases(device):
            before = [tensor.clone() for tensor in case.tensors()]
            with torch.inference_mode():
                results = _tensors(run(*case.args, **case.keywords))
            pairs = zip(case.tensors(), before, strict=True)
            changed = [place for place, (now, old) in enumerate(pairs) if not torch.equal(now, old)]
            memory = {tensor.untyped_storage().data_ptr() for tensor in case.tensors()}
            shared = [t for t in results if t.untyped_storage().data_ptr() in memory]
            expect(
                not changed and not shared,
                expected=f"inputs as they were and results of their own ({case.name}, {dtype})",
                got=f"tensor inputs {changed} changed" if changed else "a result shares memory",
                remedy="Write into new tensors.",
            )

    def test_twice_the_same(self, device: Platform, run: Callable[..., Any]) -> None:
        """The same inputs give the same bits: nothing is left from one call to the next."""
        for dtype, case in self.cases(device):
            first = self._call(run, case)
            again = self._call(run, case)
            expect(
                all(torch.equal(a, b) for a, b in zip(first, again, strict=True)),
                expected=f"the same bits when called twice ({case.name}, {dtype})",
                got="other numbers",
                remedy="Initialise what the kernel accumulates into; sum in a fixed order.",
            )

    def test_results_are_its_own(self, device: Platform, run: Callable[..., Any]) -> None:
        """A result stays when the kernel is called again: each has memory of its own."""
        for dtype, case in self.cases(device):
            first = self._call(run, case)
            before = [tensor.clone() for tensor in first]
            second = self._call(run, _halved(case))
            expect_own(first, before, second, what=f"{case.name}, {dtype}")

    def test_host_does_not_wait(self, device: Platform, run: Callable[..., Any]) -> None:
        """No call makes the host wait for the device; only CUDA shows it."""
        if device.torch_device.type != "cuda":
            return
        for _, case in self.cases(device):
            self._call(run, case)  # what is made once may wait
            copied = _copied(case)
            device.synchronise()
            with torch.inference_mode(), no_host_sync():
                run(*copied.args, **copied.keywords)

    def _results(
        self, run: Callable[..., Any], case: Case, dtype: torch.dtype
    ) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Name, result and reference of each tensor that a call gives; forms are checked."""
        got, wanted = self._call(run, case), self._call(self.reference(), case)
        for place, reference in enumerate(wanted):
            result = got[place] if place < len(got) else None
            expect(
                len(got) == len(wanted)
                and result is not None
                and (result.shape, result.dtype) == (reference.shape, reference.dtype),
                expected=f"{len(wanted)} tensor(s), here {list(reference.shape)} of "
                f"{reference.dtype} ({case.name}, {dtype})",
                got=[(list(tensor.shape), tensor.dtype) for tensor in got],
                remedy="Return what the reference returns.",
            )
            assert result is not None
            yield f"result {place} ({case.name}, {dtype})", result, reference

    def _call(self, function: Callable[..., Any], case: Case) -> list[Tensor]:
        case = _copied(case)
        with torch.inference_mode():
            return _tensors(function(*case.args, **case.keywords))


def _copied(case: Case) -> Case:
    """The same call on copies with the same strides, for ops that may overwrite their input."""
    args = tuple(_copy(value) if isinstance(value, Tensor) else value for value in case.args)
    return case._replace(args=args)


def _copy(tensor: Tensor) -> Tensor:
    """A copy with the same strides in a storage as large."""
    stored = tensor.untyped_storage().clone()
    fresh = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return fresh.set_(stored, tensor.storage_offset(), tensor.size(), tensor.stride())


def _halved(case: Case) -> Case:
    """The same call on other numbers, with the same strides."""
    case = _copied(case)
    for value in case.args:
        if isinstance(value, Tensor) and value.is_floating_point():
            # All of its memory: an expanded view cannot be written to.
            stored = value.untyped_storage()
            flat = torch.empty(0, dtype=value.dtype, device=value.device)
            size = torch.Size((stored.nbytes() // value.itemsize,))
            flat.set_(stored, 0, size, (1,)).mul_(0.5)
    return case


def _tensors(result: Any) -> list[Tensor]:
    return list(result) if isinstance(result, tuple | list) else [result]
