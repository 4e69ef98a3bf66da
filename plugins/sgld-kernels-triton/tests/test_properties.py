"""Kernels against the references over shapes, strides, groups, dtypes and sizes of a program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sgld.ops import norm, residual
from sgld.ops.rope import axis
from sgld.testing.conformance.hardware import tolerance
from sgld_kernels_triton.launch import Launch

EPS = 1e-6
EXAMPLES = settings(max_examples=30, derandomize=True, database=None)
DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


class Drawn:
    """Sizes, and tensors that lie in memory as they do in networks."""

    def __init__(self, draw: Callable[..., Any], device: str) -> None:
        self.draw, self.device = draw, device
        self.dtype = draw(st.sampled_from(DTYPES))
        self.heads = draw(st.integers(1, 5))
        self.head_dim = 2 * draw(st.integers(4, 20))
        self.batch = draw(st.integers(1, 3))
        self.tokens = draw(st.sampled_from((1, 2, 5, 6, 12)))
        self.width = self.heads * self.head_dim
        self.launch = draw(st.sampled_from((None, Launch(1, 4), Launch(4, 4), Launch(16, 8))))
        self._random = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))

    def noise(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        noise = torch.randn(shape, generator=self._random)
        return noise.to(dtype or self.dtype).to(self.device)

    def stream(self) -> Tensor:
        """[B, S, D]: whole, a part of wider tokens, later tokens of a longer one, tokens before
        rows, one row for a whole batch, or with its last axis spread out."""
        b, s, d = self.batch, self.tokens, self.width
        return self.draw(
            st.sampled_from(
                (
                    lambda: self.noise(b, s, d),
                    lambda: self.noise(b, s, 3 * d)[..., d : 2 * d],
                    lambda: self.noise(b, s + 3, d)[:, 3:],
                    lambda: self.noise(s, b, d).transpose(0, 1),
                    lambda: self.noise(1, s, d).expand(b, s, d),
                    lambda: self.noise(b, d, s).transpose(1, 2),
                )
            )
        )()

    def vectors(self, count: int) -> list[Tensor]:
        """Modulations [B, G, D] or [1, G, D], views of one table."""
        dividing = [n for n in range(1, self.tokens + 1) if self.tokens % n == 0]
        groups = self.draw(st.sampled_from(dividing))
        dtype = self.dtype
        if dtype is not torch.float64:
            dtype = self.draw(st.sampled_from((dtype, torch.float32)))
        rows = self.draw(st.sampled_from((1, self.batch)))
        return list(self.noise(rows, groups, count + 1, self.width, dtype=dtype).unbind(2)[1:])

    def weight(self, size: int) -> Tensor:
        return self.noise(size, dtype=self.draw(st.sampled_from((self.dtype, torch.float32))))

    def tables(self) -> tuple[Tensor, Tensor]:
        cos, sin = axis(range(3, 3 + self.tokens), self.head_dim)
        return cos.to(self.device), sin.to(self.device)


def same(got: Any, wanted: Any, dtype: torch.dtype, *, order: bool = True) -> None:
    """Shapes, dtypes and numbers; nearly every element in half precision has the same bits."""
    got, wanted = ((x,) if isinstance(x, Tensor) else x for x in (got, wanted))
    for ours, theirs in zip(got, wanted, strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        assert ours.is_contiguous() or not order
        # A float64 stream is computed in float64, but for float32 tables and eps.
        bound = 1e-6 if dtype == torch.float64 else tolerance(dtype)
        error = (ours.double() - theirs.double()).abs()
        assert (error <= bound * (1 + theirs.double().abs())).all(), error.max()
        if dtype in (torch.bfloat16, torch.float16) and ours.numel() >= 500:
            assert (ours != theirs).double().mean() < 0.03


@EXAMPLES
@given(data=st.data())
def test_layer(device: str, data: st.DataObject) -> None:
    from sgld_kernels_triton.norm import layer

    make = Drawn(data.draw, device)
    weight = make.weight(make.width) if data.draw(st.booleans()) else None
    bias = make.weight(make.width) if weight is not None and data.draw(st.booleans()) else None
    args = (make.stream(), weight, bias, EPS)
    same(layer(*args, launch=make.launch), norm.layer(*args), make.dtype)


@EXAMPLES
@given(data=st.data())
def test_layer_modulate(device: str, data: st.DataObject) -> None:
    from sgld_kernels_triton.norm import layer_modulate

    make = Drawn(data.draw, device)
    args = (make.stream(), *make.vectors(2), EPS)
    same(layer_modulate(*args, launch=make.launch), norm.layer_modulate(*args), make.dtype)


@EXAMPLES
@given(data=st.data())
def test_rms(device: str, data: st.DataObject) -> None:
    from sgld_kernels_triton.norm import rms

    make = Drawn(data.draw, device)
    x = make.stream()
    if data.draw(st.booleans()):
        x = x.unflatten(-1, (make.heads, -1))
    weight = make.weight(x.shape[-1]) if data.draw(st.booleans()) else None
    same(rms(x, weight, EPS, launch=make.launch), norm.rms(x, weight, EPS), make.dtype)


@EXAMPLES
@given(data=st.data())
def test_rms_rope(device: str, data: st.DataObject) -> None:
    from sgld_kernels_triton.norm import rms_rope

    make = Drawn(data.draw, device)
    args = (make.stream(), make.weight(make.width), *make.tables(), make.heads, EPS)
    same(rms_rope(*args, launch=make.launch), norm.rms_rope(*args), make.dtype)


@EXAMPLES
@given(data=st.data())
def test_head_rms_rope(device: str, data: st.DataObject) -> None:
    from sgld_kernels_triton.norm import head_rms_rope

    make = Drawn(data.draw, device)
    args = (make.stream(), make.weight(make.head_dim), *make.tables(), make.heads, EPS)
    same(head_rms_rope(*args, launch=make.launch), norm.head_rms_rope(*args), make.dtype)


@EXAMPLES
@given(data=st.data())
def test_channel_rms_silu(device: str, data: st.DataObject) -> None:
    from sgld_kernels_triton.norm import channel_rms_silu

    make = Drawn(data.draw, device)
    x = make.noise(make.batch, make.width, 2, make.tokens + 1, 3)
    if data.draw(st.booleans()):
        x = x.contiguous(memory_format=torch.channels_last_3d)
    x = data.draw(st.sampled_from((x, x[..., 1:, :], x[:, :, 0], x[:1].expand_as(x))))
    args = (x, make.weight(make.width), EPS)
    found, wanted = channel_rms_silu(*args, launch=make.launch), norm.channel_rms_silu(*args)
    same(found, wanted, make.dtype, order=False)
    if x.ndim == 5:
        orders = torch.contiguous_format, torch.channels_last_3d
        kept = [order for order in orders if x.is_contiguous(memory_format=order)]
        assert all(found.is_contiguous(memory_format=order) for order in kept)


@pytest.mark.parametrize("frames", [1, 2])
def test_a_single_clip_keeps_its_channels_innermost(device: str, frames: int) -> None:
    """What pads and convolutions ask is the strides, of axes of one element, too."""
    from sgld_kernels_triton.norm import channel_rms_silu

    x = torch.randn(1, 8, frames, 3, 4, device=device)
    x = x.contiguous(memory_format=torch.channels_last_3d)
    found = channel_rms_silu(x, torch.ones(8, device=device), EPS)
    assert found.stride() == x.stride()
    padded = torch.nn.functional.pad(found, (1, 1, 1, 1, 2, 0))
    assert padded.is_contiguous(memory_format=torch.channels_last_3d)


@EXAMPLES
@given(data=st.data())
def test_gate(device: str, data: st.DataObject) -> None:
    from sgld_kernels_triton.residual import gate

    make = Drawn(data.draw, device)
    by = make.vectors(1)[0] if data.draw(st.booleans()) else None
    args = (make.stream(), make.stream(), by)
    same(gate(*args, launch=make.launch), residual.gate(*args), make.dtype)


@EXAMPLES
@given(data=st.data())
def test_gate_layer(device: str, data: st.DataObject) -> None:
    from sgld_kernels_triton.residual import gate_layer

    make = Drawn(data.draw, device)
    by = make.vectors(1)[0] if data.draw(st.booleans()) else None
    weight, bias = make.weight(make.width), make.weight(make.width)
    args = (make.stream(), make.stream(), by, weight, bias, EPS)
    same(gate_layer(*args, launch=make.launch), residual.gate_layer(*args), make.dtype)


@EXAMPLES
@given(data=st.data())
def test_gate_layer_modulate(device: str, data: st.DataObject) -> None:
    from sgld_kernels_triton.residual import gate_layer_modulate

    make = Drawn(data.draw, device)
    # Gate and modulation may come in groups of their own.
    by = make.vectors(1)[0] if data.draw(st.booleans()) else None
    args = (make.stream(), make.stream(), by, *make.vectors(2), EPS)
    same(
        gate_layer_modulate(*args, launch=make.launch),
        residual.gate_layer_modulate(*args),
        make.dtype,
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_to_do(device: str, dtype: torch.dtype) -> None:
    from sgld_kernels_triton.norm import layer, rms

    empty = torch.empty(2, 0, 16, dtype=dtype, device=device)
    assert layer(empty, None, None, EPS).shape == rms(empty, None, EPS).shape == empty.shape


def test_shapes_that_do_not_fit_are_refused(device: str) -> None:
    from sgld_kernels_triton.norm import layer, layer_modulate, rms_rope
    from sgld_kernels_triton.residual import gate

    x = torch.ones(2, 6, 16, device=device)
    cos = torch.ones(6, 4, device=device)
    with pytest.raises(ValueError, match="groups=4: must divide the 6 tokens"):
        layer_modulate(x, x[:, :4], x[:, :4], EPS)
    with pytest.raises(ValueError, match=r"scale \(2, 1, 8\): must be \[2, groups, 16\]"):
        layer_modulate(x, x[:, :1, :8], x[:, :1], EPS)
    with pytest.raises(ValueError, match=r"y \(2, 5, 16\): must be \(2, 6, 16\)"):
        gate(x, x[:, :5], None)
    with pytest.raises(ValueError, match=r"weight \(8,\): must be \(16,\)"):
        layer(x, x[0, 0, :8], None, EPS)
    with pytest.raises(ValueError, match=r"cos \(6, 3\): must be \(6, 4\)"):
        rms_rope(x, x[0, 0], cos[:, :3], cos, 2, EPS)
    with pytest.raises(ValueError, match="heads=3: must cut 16 channels"):
        rms_rope(x, x[0, 0], cos, cos, 3, EPS)
