"""The references of `sgld.ops` against the same mathematics written out in float64."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sgld.ops import activation, attention, norm, residual, rope
from sgld.testing.host_sync import no_host_sync

EPS = 1e-6


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def relative(found: Tensor, wanted: Tensor) -> float:
    return ((found.double() - wanted.double()).norm() / wanted.double().norm()).item()


def layer_norm(x: Tensor) -> Tensor:
    x = x.double()
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + EPS).sqrt()


def turn_by_complex_numbers(x: Tensor, angles: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.double().unflatten(-1, (-1, 2)).contiguous())
    turned = pairs * torch.polar(torch.ones_like(angles), angles)[:, None]
    return torch.view_as_real(turned).flatten(-2)


def spread_by_repeating(vector: Tensor, tokens: int) -> Tensor:
    return vector.repeat_interleave(tokens // vector.shape[1], dim=1).double()


# One rounding to the dtype: half a unit in the last place of the largest values, averaged.
ROUNDING = {torch.float64: 1e-14, torch.float32: 1e-6, torch.bfloat16: 4e-3}
DTYPES = tuple(ROUNDING)


@settings(max_examples=40, deadline=None)
@given(
    batch=st.integers(1, 3),
    groups=st.integers(1, 4),
    each=st.integers(1, 5),
    # Of two or three numbers the variance can be so small that float32 has no digits left.
    width=st.integers(8, 32),
    dtype=st.sampled_from(DTYPES),
)
def test_modulated_norms_and_gates(
    batch: int, groups: int, each: int, width: int, dtype: torch.dtype
) -> None:
    tokens = groups * each
    x, y = (draw(batch, tokens, width, seed=seed, dtype=dtype) for seed in (1, 2))
    kept = x.clone()
    scale, shift, gate = (
        draw(batch, groups, width, seed=seed, dtype=torch.promote_types(dtype, torch.float32))
        for seed in (3, 4, 5)
    )
    wide_scale, wide_shift, wide_gate = (
        spread_by_repeating(part, tokens) for part in (scale, shift, gate)
    )
    limit = ROUNDING[dtype]

    found = norm.layer_modulate(x, scale, shift, EPS)
    assert found.dtype == dtype
    assert relative(found, layer_norm(x) * (1 + wide_scale) + wide_shift) < limit

    added = residual.gate(x, y, gate)
    assert added.dtype == dtype
    assert relative(added, x.double() + y.double() * wide_gate) < limit
    assert relative(residual.gate(x, y, None), x.double() + y.double()) < limit

    stream, modulated = residual.gate_layer_modulate(x, y, gate, scale, shift, EPS)
    assert torch.equal(stream, added)
    assert torch.equal(modulated, norm.layer_modulate(added, scale, shift, EPS))
    assert torch.equal(x, kept), "the residual stream may be held by a step cache"


@pytest.mark.parametrize("dtype", DTYPES)
def test_layer_norm_with_weights_rounds_once(dtype: torch.dtype) -> None:
    x, y = draw(2, 7, 64, dtype=dtype), draw(2, 7, 64, seed=1, dtype=dtype)
    weight, bias = draw(64, seed=2).float(), draw(64, seed=3).float()
    wanted = layer_norm(x) * weight.double() + bias.double()
    found = norm.layer(x, weight, bias, EPS)
    assert found.dtype == dtype
    assert relative(found, wanted) < ROUNDING[dtype]
    # Rounded exactly where the wanted value says, but for ties that float32 decides otherwise.
    assert (found == wanted.to(dtype)).double().mean() > 0.97 or dtype != torch.bfloat16
    stream, normed = residual.gate_layer(x, y, None, weight, bias, EPS)
    assert torch.equal(stream, x + y)
    assert torch.equal(normed, norm.layer(x + y, weight, bias, EPS))


def test_groups_must_divide_the_tokens() -> None:
    with pytest.raises(ValueError, match="groups=4: must divide the 6 tokens"):
        norm.layer_modulate(draw(1, 6, 8), draw(1, 4, 8), draw(1, 4, 8), EPS)


@settings(max_examples=40, deadline=None)
@given(
    batch=st.integers(1, 3),
    grid=st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 5)),
    heads=st.integers(1, 3),
    head_dim=st.integers(1, 20).map(lambda half: 2 * half),
    first=st.integers(0, 500),
    dtype=st.sampled_from(DTYPES),
)
def test_rms_then_rotation(
    batch: int,
    grid: tuple[int, int, int],
    heads: int,
    head_dim: int,
    first: int,
    dtype: torch.dtype,
) -> None:
    tokens, width = math.prod(grid), heads * head_dim
    side = 2 * (head_dim // 6)
    frame, row, column = (
        place.flatten() for place in torch.meshgrid(*map(torch.arange, grid), indexing="ij")
    )
    columns = []
    for place, part in ((frame + first, head_dim - 2 * side), (row, side), (column, side)):
        for pair in range(part // 2):
            columns.append(place.double() * 10000.0 ** (-2 * pair / part))
    angles = torch.stack(columns, dim=-1)

    cos, sin = rope.grid(head_dim, *grid, first_frame=first)
    assert cos.shape == sin.shape == (tokens, head_dim // 2)
    assert cos.dtype == torch.float32
    assert (cos.double() - angles.cos()).abs().max() < 1e-7
    assert (sin.double() - angles.sin()).abs().max() < 1e-7

    x = draw(batch, tokens, width, dtype=dtype)
    weight = draw(width, seed=1, dtype=dtype)
    normed = x.double() / (x.double().square().mean(-1, keepdim=True) + EPS).sqrt()
    normed = normed * weight.double()
    assert relative(norm.rms(x, weight, EPS), normed) < ROUNDING[dtype]
    wanted = turn_by_complex_numbers(normed.unflatten(-1, (heads, head_dim)), angles)
    found = norm.rms_rope(x, weight, cos, sin, heads, EPS)
    assert found.dtype == dtype
    assert found.shape == (batch, tokens, heads, head_dim)
    # Rounded twice, and the tables are float32.
    assert relative(found, wanted) < 2 * ROUNDING[dtype] + 1e-6


def test_split_of_the_head() -> None:
    assert rope.split(128) == (44, 42, 42)
    assert rope.split(112) == (40, 36, 36)
    assert rope.split(32) == (12, 10, 10)
    with pytest.raises(ValueError, match="width=5"):
        rope.axis([0, 1], 5)


def test_compiled_rotation_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    x = draw(2, 12, 3, 8, dtype=torch.bfloat16)
    cos, sin = rope.grid(8, 1, 3, 4)
    eager = rope.rotate(x, cos, sin)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert torch.equal(rope.rotate(x, cos, sin), eager)


def test_gelu_is_the_tanh_form_and_may_take_its_input() -> None:
    x = draw(5, 9)
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    wanted = 0.5 * x * (1 + inner.tanh())
    assert relative(activation.gelu_tanh(x.clone()), wanted) < 1e-14
    asked = x.clone().requires_grad_()
    assert relative(activation.gelu_tanh(asked).detach(), wanted) < 1e-14
    assert torch.equal(asked.detach(), x)


@settings(max_examples=40, deadline=None)
@given(
    batch=st.integers(1, 2),
    queries=st.integers(1, 9),
    keys=st.integers(1, 9),
    heads=st.integers(1, 3),
    width=st.integers(1, 16),
    scale=st.sampled_from((None, 0.3)),
    dtype=st.sampled_from(DTYPES),
)
@pytest.mark.parametrize("attend", [attention.attend, attention.sdpa_backend])
def test_attention(
    attend: Callable[..., Tensor],
    batch: int,
    queries: int,
    keys: int,
    heads: int,
    width: int,
    scale: float | None,
    dtype: torch.dtype,
) -> None:
    q = draw(batch, queries, heads, width, dtype=dtype)
    k, v = (draw(batch, keys, heads, width, seed=seed, dtype=dtype) for seed in (1, 2))
    wanted = torch.empty(batch, queries, heads, width, dtype=torch.float64)
    for row in range(batch):
        for head in range(heads):
            scores = q[row, :, head].double() @ k[row, :, head].double().T
            weights = (scores * (width**-0.5 if scale is None else scale)).exp()
            mixed = weights / weights.sum(-1, keepdim=True) @ v[row, :, head].double()
            wanted[row, :, head] = mixed
    found = attend(q, k, v, scale=scale)
    assert found.dtype == dtype
    assert found.shape == q.shape
    # torch's kernels round the weights to bfloat16 too.
    assert relative(found, wanted) < 2.5 * ROUNDING[dtype]


@pytest.mark.parametrize(("arch", "first"), [(80, "FLASH"), (89, "FLASH"), (90, "CUDNN")])
def test_order_of_cuda_kernels(arch: int, first: str) -> None:
    order = attention.sdpa_order(arch)
    assert order[0].name.startswith(first)
    assert order[-1].name == "MATH", "whatever the others refuse, one must take"
    assert len(set(order)) == len(order)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("keys", [257, 512, 1000])
def test_cuda_attention_matches_the_reference(keys: int) -> None:
    q = draw(2, 1000, 4, 128, dtype=torch.bfloat16).cuda()
    k, v = (draw(2, keys, 4, 128, seed=seed, dtype=torch.bfloat16).cuda() for seed in (1, 2))
    with no_host_sync():
        found = attention.sdpa_backend(q, k, v)
    assert (
        relative(found.cpu(), attention.attend(*(part.cpu().double() for part in (q, k, v)))) < 1e-2
    )
