"""The norms of a Wan VAE that a SiLU follows, as one op that a kernel may take over."""

from __future__ import annotations

from typing import Any, Final

import torch
from diffusers.models.autoencoders.autoencoder_kl_wan import WanResidualBlock, WanRMS_norm
from torch import nn

from sgld.ops import Ops
from sgld.ops.table import Op

EPS: Final = 1e-12
"""Least length of the channels of a place: torch's default, which diffusers leaves as it is."""


class NormSilu(WanRMS_norm):
    """`WanRMS_norm` and the SiLU after it, through the op `norm.channel_rms_silu`."""

    op: Op

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.op(x, self.gamma.flatten(), EPS)


def fuse_norms(model: nn.Module, ops: Ops) -> None:
    """Have the norms of blocks and heads apply their SiLU too. Weights stay as they are; the norms
    of attention, which no SiLU follows, stay themselves."""
    op: Any = ops["norm.channel_rms_silu"]
    for module in model.modules():
        norms = [getattr(module, name, None) for name in ("norm1", "norm2", "norm_out")]
        found = [norm for norm in norms if type(norm) is WanRMS_norm]
        silu = getattr(module, "nonlinearity", None)
        if not found or type(silu) is not nn.SiLU:
            continue
        wanted = 2 if isinstance(module, WanResidualBlock) else 1
        plain = [norm for norm in found if norm.channel_first and not torch.is_tensor(norm.bias)]
        if len(plain) != wanted:
            continue  # no block of those that were looked at; it stays as diffusers has it
        for norm in plain:
            norm.__class__ = NormSilu
            norm.op = op
        module.nonlinearity = nn.Identity()
