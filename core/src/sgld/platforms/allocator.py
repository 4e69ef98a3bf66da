"""How torch's CUDA allocator gets memory from the driver: in segments that grow.

    grow_segments(Allocator()) -> why not, or "" when it does now

With `expandable_segments` a request of another size takes memory that is held already, where fixed
segments would be too short for it: less is reserved, and less often. Torch has it off by default.
What the user set counts: then nothing is changed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Final

import torch

VARIABLES: Final = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""Where users set the allocator up; torch reads both."""
CHANGE: Final = "_accelerator_setAllocatorSettings"
"""Torch's function for it; it has no public one."""
ON: Final = "expandable_segments:True"
OFF: Final = "expandable_segments:False"


class Allocator:
    """Torch's CUDA allocator of this process.

    Args:
        device: where a first allocation is tried.
        environ: the variables of this process.
        system: as `sys.platform` has it.
    """

    def __init__(
        self,
        device: torch.device,
        environ: Mapping[str, str] | None = None,
        system: str = sys.platform,
    ) -> None:
        self._device = device
        self.environ = os.environ if environ is None else environ
        self.system = system

    def backend(self) -> str:
        """`native`, or one of another kind."""
        return torch.cuda.get_allocator_backend()

    def reserved(self) -> int:
        """Bytes that it holds already."""
        return torch.cuda.memory_reserved(self._device)

    def settings(self) -> str | None:
        """What it was set to, as far as this torch tells; None where it cannot be told anew."""
        if not hasattr(torch._C, CHANGE):
            return None
        told = getattr(torch._C, "_accelerator_getAllocatorSettings", None)
        return "" if told is None else str(told())

    def change(self, settings: str) -> None:
        """Set it up anew."""
        getattr(torch._C, CHANGE)(settings)

    def try_out(self) -> None:
        """Allocate once; RuntimeError where the driver cannot."""
        torch.empty(1, device=self._device)


def grow_segments(allocator: Allocator) -> str:
    """Let segments grow from the first allocation on.

    Returns why they do not: it is no fault, the allocator then works as torch made it.
    """
    named = [name for name in VARIABLES if name in allocator.environ]
    if named:
        return f"{' and '.join(named)} is set"
    if not allocator.system.startswith("linux"):
        return f"not on {allocator.system}"
    if allocator.backend() != "native":
        return f"the allocator is {allocator.backend()}"
    settings = allocator.settings()
    if settings is None:
        return "this torch cannot be told"
    if settings:
        return f"it was set to {settings} already"
    if allocator.reserved():
        return "memory was allocated already"
    allocator.change(ON)
    try:
        allocator.try_out()
    except RuntimeError as error:  # virtual GPUs may lack what it needs of the driver
        allocator.change(OFF)
        return f"the driver refused: {str(error).splitlines()[0] if str(error) else 'no reason'}"
    return ""
