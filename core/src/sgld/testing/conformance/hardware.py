"""What the contracts of platforms, attention backends and kernels share: the device under test and
how far a result may be from its reference."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final, NoReturn

import pytest
import torch

from sgld.api.contracts import DeviceFacts
from sgld.api.errors import SgldError
from sgld.api.specs import Requires
from sgld.platforms.platform import Platform
from sgld.plugins.catalog import load_target
from sgld.plugins.choose import reasons
from sgld.testing.conformance.base import expect
from sgld.testing.isolated import owner_catalog

TESTED: Final = ("float32", "bfloat16", "float16")
"""Dtypes in which models run, of those that a device computes in."""
FLOAT32: Final = 2e-5
"""Error of float32 arithmetic that sums in another order."""


@lru_cache(maxsize=4)
def open_device(name: str) -> Platform:
    """The platform that `--sgld-device` names, `cpu` or `cuda:1` or another one's.

    Raises what its probe says and its class raises.
    """
    family, _, index = name.partition(":")
    entry = owner_catalog("platform", family).platforms[family]
    platform_class = load_target(entry.spec.target, entry)
    return platform_class(int(index)) if int(index or 0) else platform_class()


def device_or_skip(name: str, requires: Requires) -> Platform:
    """The device under test; skips what needs another one, and says which."""
    try:
        platform = open_device(name)
    except SgldError as error:
        fail_setup(f"--sgld-device={name}: {error}")
    # Dtypes are chosen by the tests; everything else must hold.
    why = reasons(requires._replace(dtypes=()), platform.facts())
    if why:
        told = f"--sgld-device={requires.device}" if requires.device != "any" else "another device"
        pytest.skip(f"{'; '.join(why)}: run it with {told}")
    return platform


def fail_setup(text: str) -> NoReturn:
    """End a test that could not begin."""
    __tracebackhide__ = True
    pytest.fail(text, pytrace=False)


def dtypes_of(requires: Requires, facts: DeviceFacts) -> list[torch.dtype]:
    """Dtypes to test: those the record takes, or that the device has."""
    names: Iterable[str] = requires.dtypes or TESTED
    return [getattr(torch, name) for name in names if name in facts.dtypes and name in TESTED]


def tolerance(dtype: torch.dtype) -> float:
    """Relative and absolute error that an exact implementation may have: two roundings."""
    return FLOAT32 if dtype == torch.float32 else 2 * torch.finfo(dtype).eps


def largest(error: torch.Tensor) -> str:
    """The largest element for a message."""
    return f"{error.abs().max().item():.3g}" if error.numel() else "nothing"


def expect_own(
    first: Sequence[torch.Tensor],
    before: Sequence[torch.Tensor],
    second: Sequence[torch.Tensor],
    *,
    what: str,
) -> None:
    """Fail unless the results of a call are as they were `before` the second call, and those of the
    second lie elsewhere."""
    __tracebackhide__ = True
    memory = {tensor.untyped_storage().data_ptr() for tensor in first if tensor.numel()}
    shared = [t for t in second if t.numel() and t.untyped_storage().data_ptr() in memory]
    same = all(
        torch.equal(now.nan_to_num(), old.nan_to_num())
        for now, old in zip(first, before, strict=True)
    )
    expect(
        same and not shared,
        expected=f"the first result as it was after a second call ({what})",
        got="both lie in the same memory" if shared else "other numbers",
        remedy="Return a new tensor each time; a buffer that is kept belongs to whoever has it.",
    )


def draw(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, seed: int
) -> torch.Tensor:
    """Normal noise, the same on every device."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype).to(device)
