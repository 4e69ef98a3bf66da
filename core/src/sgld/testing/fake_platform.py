"""A device family that claims what it is told to and computes on the CPU: what is chosen and
refused on a machine that is not here can be tested without one.

    hopper = FakePlatform(device="cuda", arch=90, abilities=("streams", "graphs"))
    choose_attention(catalog.attention.values(), hopper.facts())

In a plugin's tests it comes as the fixture `fake_platform`, with the same arguments.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from sgld.api.contracts import DeviceFacts
from sgld.platforms.platform import Memory, Platform

GIB = 2**30


class FakePlatform(Platform):
    """One pretended device.

    Args:
        device: the family that it claims to be.
        arch: its architecture number.
        dtypes: what it claims to compute in.
        abilities: what it claims to be able to do.
        total: bytes that it claims to have.
    """

    def __init__(
        self,
        device: str = "cuda",
        arch: int = 90,
        dtypes: Iterable[str] = ("float32", "float16", "bfloat16"),
        abilities: Iterable[str] = (),
        *,
        total: int = 80 * GIB,
    ) -> None:
        self.id = device
        self._facts = DeviceFacts(device, arch, frozenset(dtypes), frozenset(abilities))
        self._total = total

    @property
    def torch_device(self) -> torch.device:
        """Where it really computes: the CPU."""
        return torch.device("cpu")

    def facts(self) -> DeviceFacts:
        return self._facts

    def default_dtype(self) -> torch.dtype:
        """The best that it claims to have."""
        order = ("bfloat16", "float16", "float32")
        return getattr(torch, next(name for name in order if name in self._facts.dtypes))

    def memory(self) -> Memory:
        """All of it is free: it holds nothing."""
        return Memory(self._total, self._total, 0, 0)

    def reset_peak(self) -> None:
        """There is nothing to reset."""
