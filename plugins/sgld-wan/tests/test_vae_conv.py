"""Convolutions over time on a CPU: the same numbers, by oneDNN where torch would not ask it."""

from __future__ import annotations

import pytest
import torch
from diffusers.models.autoencoders.autoencoder_kl_wan import WanCausalConv3d
from torch import nn

from sgld_wan.models.vae_conv import CpuConv3d, for_cpu

needs_onednn = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN"
)
SHAPES = (((3, 3, 3), 1, 1), ((3, 1, 1), (1, 1, 1), (1, 0, 0)), ((1, 1, 1), 1, 0),
          ((3, 1, 1), (2, 1, 1), (0, 0, 0)))  # fmt: skip


@pytest.mark.parametrize(("kernel", "stride", "padding"), SHAPES)
@torch.no_grad()
def test_numbers_differ_by_rounding_only(kernel: object, stride: object, padding: object) -> None:
    torch.manual_seed(0)
    layer = WanCausalConv3d(6, 5, kernel, stride=stride, padding=padding)  # pyright: ignore
    video, past = torch.randn(1, 6, 3, 7, 9), torch.randn(1, 6, 2, 7, 9)
    wanted = layer(video), layer(video, past)
    model = nn.Sequential(layer, nn.Conv3d(5, 2, 3, padding=1))
    for_cpu(model)
    assert type(layer) is CpuConv3d
    assert type(model[1]) is nn.Conv3d  # it leaves its padding to the convolution
    for one, two in zip((layer(video), layer(video, past)), wanted, strict=True):
        torch.testing.assert_close(one, two, atol=1e-5, rtol=0)


@needs_onednn
@torch.no_grad()
def test_onednn_is_asked_for_a_single_frame() -> None:
    model = nn.Sequential(WanCausalConv3d(4, 4, 3, padding=1))
    for_cpu(model)
    video = torch.randn(1, 4, 1, 8, 8)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        model(video)
    assert "aten::mkldnn_convolution" in {row.key for row in seen.key_averages()}


@torch.no_grad()
def test_other_precisions_go_the_usual_way() -> None:
    layer = WanCausalConv3d(4, 4, 3, padding=1).bfloat16()
    video = torch.randn(1, 4, 2, 8, 8).bfloat16()
    wanted = layer(video)
    for_cpu(layer)
    assert torch.equal(layer(video), wanted)
