"""Linear attention against sums written out weight by weight, and masks of keys."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sgld.ops import attention, linear_attention, rope
from sgld.testing.parity import relative_l2

SHAPE = (2, 7, 3, 12)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def written_out(q: Tensor, k: Tensor, v: Tensor, over: Tensor, under: Tensor) -> Tensor:
    """Σ over·v / Σ under for weights [B, H, S, T]."""
    total = torch.einsum("bhst,bthe->bshe", over, v)
    return total / (under.sum(-1).transpose(1, 2).unsqueeze(-1) + 1e-15)


def weights(q: Tensor, k: Tensor) -> Tensor:
    return torch.einsum("bshd,bthd->bhst", q, k)


def test_relu_is_the_weighted_mean_of_the_values() -> None:
    q, k, v = draw(*SHAPE), draw(2, 5, 3, 12, seed=1), draw(2, 5, 3, 4, seed=2)
    pairs = weights(q.relu(), k.relu())
    found = linear_attention.relu(q, k, v)
    assert found.shape == (2, 7, 3, 4)
    assert relative_l2(found, written_out(q, k, v, pairs, pairs)) < 1e-12


def test_relu_rope_rotates_the_numerator_only() -> None:
    q, k, v = (draw(*SHAPE, seed=seed) for seed in range(3))
    cos, sin = rope.grid(12, 1, 1, 7)
    turned = weights(rope.rotate(q.relu(), cos, sin), rope.rotate(k.relu(), cos, sin))
    plain = weights(q.relu(), k.relu())
    found = linear_attention.relu_rope(q, k, v, cos, sin)
    assert relative_l2(found, written_out(q, k, v, turned, plain)) < 1e-6
    both = written_out(q, k, v, turned, turned)
    assert relative_l2(found, both) > 0.01


def test_a_query_without_any_weight_gives_zero() -> None:
    q, k, v = draw(*SHAPE), draw(*SHAPE, seed=1), draw(*SHAPE, seed=2)
    q[0, 3] = -1.0
    found = linear_attention.relu(q, k, v)
    assert torch.equal(found[0, 3], torch.zeros_like(found[0, 3]))
    assert torch.isfinite(found).all()


@pytest.mark.parametrize("name", ["relu", "relu_rope"])
def test_half_precision_is_rounded_once_at_the_end(name: str) -> None:
    q, k, v = (draw(1, 500, 2, 8, seed=seed).bfloat16() for seed in range(3))
    tables = rope.grid(8, 1, 20, 25) if name == "relu_rope" else ()
    op = getattr(linear_attention, name)
    found = op(q, k, v, *tables)
    assert found.dtype == torch.bfloat16
    exact = op(q.double(), k.double(), v.double(), *tables)
    limit = {"relu": 3e-3, "relu_rope": 2e-2}[name]  # the rotation rounds in between
    assert relative_l2(found.double(), exact) < limit


@pytest.mark.parametrize("attend", [attention.attend, attention.sdpa_backend])
def test_masked_keys_take_no_part(attend: object) -> None:
    q, k, v = (draw(2, size, 3, 8, seed=size).float() for size in (5, 6, 6))
    v = v + 1
    mask = torch.tensor([[1, 1, 1, 0, 0, 0], [1, 0, 0, 0, 1, 1]], dtype=torch.bool)
    assert callable(attend)
    found = attend(q, k, v, mask=mask)
    for row in range(2):
        kept = mask[row]
        alone = attend(q[row : row + 1], k[row : row + 1, kept], v[row : row + 1, kept])
        assert relative_l2(found[row : row + 1], alone) < 1e-6
    whole = attend(q, k, v, mask=torch.ones_like(mask))
    assert relative_l2(whole, attend(q, k, v)) < 1e-6
