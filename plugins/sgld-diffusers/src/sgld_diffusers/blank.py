"""A component without weights, built from its configuration alone.

Classes of libraries compute small tensors when they are made (position numbers, rotary tables) that
no checkpoint holds; built on the meta device they would be lost. So only what is large stays
without memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from sgld.weights.layout import Located

LARGE: Final = 2**16
"""Elements from which a tensor is a weight that will be drawn."""
BY_SHAPE: Final = frozenset({torch.empty, torch.zeros, torch.ones, torch.rand, torch.randn})
OTHERS: Final = frozenset(
    {torch.full, torch.arange, torch.linspace, torch.logspace, torch.eye, torch.tensor,
     torch.as_tensor, torch.randint}
)  # fmt: skip


class _SmallOnes(TorchFunctionMode):
    """Makes small tensors for real and leaves large ones to the device around it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in BY_SHAPE or func in OTHERS:
            small = func not in BY_SHAPE or _elements(args, kwargs) < LARGE
            if small and kwargs.get("device") is None:
                kwargs["device"] = "cpu"
        return func(*args, **kwargs)


def _elements(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    size = kwargs.get("size", args)
    size = size[0] if len(size) == 1 and not isinstance(size[0], int) else size
    return math.prod(side for side in size if isinstance(side, int))


def blank(cls: Any, where: Located) -> Callable[[], nn.Module]:
    """What builds a component of class `cls`, to be called on the meta device."""

    def build() -> nn.Module:
        with _SmallOnes():
            if hasattr(cls, "load_config"):  # of diffusers
                return cls.from_config(dict(where.config))
            return cls(cls.config_class.from_dict(dict(where.config)))

    return build
