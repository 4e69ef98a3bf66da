"""Random weights of the real architecture: how speed is measured without a checkpoint.

Only the load format `dummy` leads here; a missing checkpoint never does.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final

import torch
from torch import nn

from sgld.weights.module import Finish, Slot, build_on_meta, materialise, place, settle, slots

SPREAD: Final = 0.02
"""Around 1 for scales and around 0 for biases: small enough to keep activations in range, and
never exactly zero, because zero operands draw less power and clock a device higher."""

DRAWABLE: Final = frozenset({torch.float32, torch.float64, torch.float16, torch.bfloat16})


def dummy_module(
    build: Callable[[], nn.Module],
    *,
    device: torch.device | str,
    dtype: torch.dtype | Callable[[str], torch.dtype | None] | None,
    seed: int = 0,
    finish: Finish | None = None,
    label: str = "dummy",
) -> nn.Module:
    """The module with random weights drawn on `device`, equal for equal seeds on one device type.

    Matrices are normal with deviation 1/sqrt(fan in), norm scales near 1, biases near 0. A tensor's
    values depend on the seed and its name only. `dtype` and `finish` are as in `load_module`; None
    keeps the dtype the module was built with.

    Raises:
        ModelError: the module leaves a buffer on the meta device.
    """
    place_at = torch.empty(0, device=device).device
    module = build_on_meta(build)
    generator = torch.Generator(place_at)
    with torch.no_grad():
        for name, slot in slots(module).items():
            if name == slot.names[0]:  # tied weights are drawn once
                generator.manual_seed(_seed(seed, name))
                wanted = dtype(name) if callable(dtype) else dtype
                place(module, slot, _draw(module, slot, wanted, generator))
    materialise(module, place_at, finish)
    return settle(module, place_at, label)


def _seed(seed: int, name: str) -> int:
    # crc32 rather than hash(): the latter differs between processes. 32 bits, because the CPU
    # generator takes no more of a seed.
    return zlib.crc32(f"{seed} {name}".encode())


def _draw(
    module: nn.Module, slot: Slot, wanted: torch.dtype | None, generator: torch.Generator
) -> torch.Tensor:
    shape, device = slot.tensor.shape, generator.device
    if not slot.tensor.is_floating_point():
        # Integers are indices; zero is the only one that is always valid.
        return torch.zeros(shape, dtype=slot.tensor.dtype, device=device)
    final = wanted or slot.tensor.dtype
    drawn = torch.empty(shape, dtype=final if final in DRAWABLE else torch.bfloat16, device=device)
    mean, deviation = _distribution(module, slot)
    drawn.normal_(mean, deviation, generator=generator)
    return drawn if drawn.dtype == final else drawn.to(final)


def _distribution(module: nn.Module, slot: Slot) -> tuple[float, float]:
    shape, (prefix, _, leaf) = slot.tensor.shape, slot.names[0].rpartition(".")
    vector = slot.tensor.numel() == max(shape, default=1)
    if not vector and slot.tensor.numel():
        return 0.0, (slot.tensor.numel() / shape[0]) ** -0.5
    owner = type(module.get_submodule(prefix)).__name__.lower()
    scales = leaf in ("weight", "gamma", "scale", "running_var") or "norm" in owner
    return (1.0 if scales and leaf not in ("bias", "beta", "running_mean") else 0.0), SPREAD
