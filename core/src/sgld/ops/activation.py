"""Activations between the two linears of a feed-forward network."""

from __future__ import annotations

import torch
from torch import Tensor


def gelu_tanh(x: Tensor) -> Tensor:
    """GELU in its tanh form, elementwise, in the dtype of `x`.

    The result may reuse the memory of `x`, which is the widest tensor of a block (2 GiB in a 14B
    model at 720p): give it a tensor nobody else reads.
    """
    if x.requires_grad:
        return torch.nn.functional.gelu(x, approximate="tanh")
    return torch.ops.aten.gelu_(x, approximate="tanh")
