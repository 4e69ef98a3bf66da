"""Convolutions over time that are fast on a CPU, too."""

from __future__ import annotations

import torch
from diffusers.models.autoencoders.autoencoder_kl_wan import WanCausalConv3d
from torch import nn


class CpuConv3d(WanCausalConv3d):
    """`WanCausalConv3d` that asks oneDNN for itself where it runs on a CPU in float32.

    torch (2.15, `ConvParams::use_mkldnn`) leaves a single input to its own `slow_conv3d` when
    channels × frames × height are at most 20 480, whatever the width. One latent frame at a time,
    as streams are decoded, is nearly always below that, and there oneDNN takes a third of the
    time. Numbers differ by rounding.
    """

    def _conv_forward(
        self, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        plain = input.device.type == "cpu" and input.dtype == weight.dtype == torch.float32
        if not (plain and torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled):
            return super()._conv_forward(input, weight, bias)
        # The frames before and the edges are padded by then.
        return torch.mkldnn_convolution(
            input, weight, bias, (0, 0, 0), self.stride, self.dilation, self.groups
        )


def for_cpu(model: nn.Module) -> None:
    """Have every convolution over time of a Wan VAE be a `CpuConv3d`. Weights stay as they are."""
    for module in model.modules():
        # Only this very class pads by itself and leaves none to the convolution.
        if type(module) is WanCausalConv3d and not any(module.padding):
            module.__class__ = CpuConv3d
