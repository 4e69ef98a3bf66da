"""Random weights for tests that leave no path of a model silently dead.

Library initialisers zero biases, gates and modulation tables. A test on such weights passes even
when the code for them is wrong, so `reinitialise` draws all of them.
"""

from __future__ import annotations

import math
import zlib
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import torch

ModuleType = TypeVar("ModuleType", bound="torch.nn.Module")

BIAS_STD = 0.05
NORM_STD = 0.1
TABLE_STD = 0.25


def reinitialise(module: ModuleType, seed: int) -> ModuleType:
    """Draw every parameter of `module` anew, in place, and return the module in eval mode.

    Matrices and convolutions are N(0, 1/√fan_in), tables with a leading axis of 1 are N(0, 0.25),
    norm weights 1 + N(0, 0.1), all other vectors N(0, 0.05); running statistics of batch norms are
    moved off 0 and 1. Each tensor has its own stream from `seed` and its name, so a value does not
    depend on the order in which a library happens to register its parameters.
    """
    import torch  # noqa: PLC0415

    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(_draw(name, parameter, seed))
        for name, buffer in module.named_buffers():
            if name.endswith("running_mean"):
                buffer.copy_(_normal(name, buffer, seed) * NORM_STD)
            elif name.endswith("running_var"):
                buffer.copy_(1 + _normal(name, buffer, seed).abs() * NORM_STD)
    module.requires_grad_(False)
    return module.eval()


def _draw(name: str, like: torch.Tensor, seed: int) -> torch.Tensor:
    noise = _normal(name, like, seed)
    if _is_norm_weight(name, like):
        return 1 + NORM_STD * noise
    if like.ndim <= 1:
        return BIAS_STD * noise
    if like.shape[0] == 1:
        return TABLE_STD * noise
    return noise / math.sqrt(math.prod(like.shape[1:]))


def _is_norm_weight(name: str, like: torch.Tensor) -> bool:
    leaf = name.rpartition(".")[2]
    # Norms over channels may keep trailing axes of length 1, as in [C, 1, 1, 1].
    vector = like.ndim >= 1 and like.numel() == like.shape[0]
    return vector and leaf in ("weight", "gamma", "scale")


def _normal(name: str, like: torch.Tensor, seed: int) -> torch.Tensor:
    import torch  # noqa: PLC0415

    # torch's CPU generator keeps 32 bits of a seed, so seed and name are folded into those.
    stream = zlib.crc32(f"{seed}:{name}".encode())
    generator = torch.Generator("cpu").manual_seed(stream)
    noise = torch.randn(like.shape, generator=generator, dtype=torch.float32)
    return noise.to(device=like.device, dtype=like.dtype)
