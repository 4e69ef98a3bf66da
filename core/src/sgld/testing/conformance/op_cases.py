"""Inputs for every op of `sgld.ops.table` that a kernel may take over, small and of every form that
its contract in `docs/ops.md` allows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from sgld.api.specs import EMPTY
from sgld.ops import rope
from sgld.testing.conformance.hardware import draw

BATCH: Final = 2
TOKENS: Final = 12
EPS: Final = 1e-6
GROUPS: Final = (1, 3, TOKENS)
"""Vectors of a modulation: one for a row, one for each latent frame, one for each token."""


class Sizes(NamedTuple):
    """Width D of the residual stream, and heads."""

    width: int
    heads: int

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.width // self.heads


class Case(NamedTuple):
    """One call of an op."""

    name: str
    args: tuple[Any, ...]
    keywords: Mapping[str, Any] = EMPTY

    def tensors(self) -> list[Tensor]:
        """Its inputs that are tensors."""
        given = [*self.args, *self.keywords.values()]
        return [value for value in given if isinstance(value, Tensor)]


class Inputs:
    """Draws tensors of one dtype on one device."""

    def __init__(self, dtype: torch.dtype, device: torch.device, sizes: Sizes) -> None:
        self.dtype = dtype
        self.device = device
        self.sizes = sizes
        self._seed = 0

    def noise(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Normal noise; each call draws another."""
        self._seed += 1
        return draw(shape, dtype or self.dtype, self.device, self._seed)

    def tokens(self) -> Tensor:
        """The residual stream [B, S, D]."""
        return self.noise(BATCH, TOKENS, self.sizes.width)

    def modulations(self, count: int) -> Iterator[tuple[str, list[Tensor]]]:
        """`count` vectors [B, G, D] for each G, in float32 and in the stream's own dtype; they are
        views of one table, so only their last axis is contiguous."""
        dtypes = dict.fromkeys((torch.float32, self.dtype))
        for groups in GROUPS:
            for dtype in dtypes:
                table = self.noise(BATCH, groups, count + 1, self.sizes.width, dtype=dtype)
                yield f"{groups} groups in {dtype}", list(table.unbind(2)[1:])

    def rotation(self) -> tuple[Tensor, Tensor]:
        """cos and sin [S, head_dim / 2]."""
        cos, sin = rope.axis(range(TOKENS), self.sizes.head_dim)
        return cos.to(self.device), sin.to(self.device)

    def weights(self, size: int) -> Iterator[tuple[str, Tensor]]:
        """A weight [size] in float32 and in the stream's own dtype."""
        for dtype in dict.fromkeys((torch.float32, self.dtype)):
            yield f"weight in {dtype}", self.noise(size, dtype=dtype)


def _layer(make: Inputs) -> Iterator[Case]:
    size = make.sizes.width
    for told, weight in make.weights(size):
        yield Case(told, (make.tokens(), weight, make.noise(size, dtype=weight.dtype), EPS))
        yield Case(f"{told}, no bias", (make.tokens(), weight, None, EPS))
    yield Case("no weight", (make.tokens(), None, None, EPS))


def _layer_modulate(make: Inputs) -> Iterator[Case]:
    for told, (scale, shift) in make.modulations(2):
        yield Case(told, (make.tokens(), scale, shift, EPS))


def _rms(make: Inputs) -> Iterator[Case]:
    for told, weight in make.weights(make.sizes.width):
        yield Case(told, (make.tokens(), weight, EPS))
    yield Case("no weight", (make.tokens(), None, EPS))


def _rms_rope(make: Inputs) -> Iterator[Case]:
    for told, weight in make.weights(make.sizes.width):
        yield Case(told, (make.tokens(), weight, *make.rotation(), make.sizes.heads, EPS))


def _head_rms_rope(make: Inputs) -> Iterator[Case]:
    for told, weight in make.weights(make.sizes.head_dim):
        yield Case(told, (make.tokens(), weight, *make.rotation(), make.sizes.heads, EPS))


def _channel_rms_silu(make: Inputs) -> Iterator[Case]:
    size = make.sizes.width
    for told, weight in make.weights(size):
        clip = make.noise(BATCH, size, 2, 3, 4)
        yield Case(told, (clip, weight, EPS))
        inner = clip.contiguous(memory_format=torch.channels_last_3d)
        yield Case(f"{told}, channels innermost", (inner, weight, EPS))
        yield Case(f"{told}, a part", (inner[..., 1:], weight, EPS))
    picture = make.noise(BATCH, size, 3, 4)
    picture[:, :, 1] = 0
    yield Case("a picture with nothing in places", (picture, make.noise(size), EPS))


def _gate(make: Inputs) -> Iterator[Case]:
    yield Case("no gate", (make.tokens(), make.tokens(), None))
    for told, (gate,) in make.modulations(1):
        yield Case(told, (make.tokens(), make.tokens(), gate))


def _gate_layer(make: Inputs) -> Iterator[Case]:
    size = make.sizes.width
    for told, (gate,) in make.modulations(1):
        for kind, weight in make.weights(size):
            bias = make.noise(size, dtype=weight.dtype)
            yield Case(f"{told}, {kind}", (make.tokens(), make.tokens(), gate, weight, bias, EPS))
    yield Case("neither gate nor weight", (make.tokens(), make.tokens(), None, None, None, EPS))


def _gate_layer_modulate(make: Inputs) -> Iterator[Case]:
    for told, (gate, scale, shift) in make.modulations(3):
        yield Case(told, (make.tokens(), make.tokens(), gate, scale, shift, EPS))
        yield Case(f"{told}, no gate", (make.tokens(), make.tokens(), None, scale, shift, EPS))


def _gelu(make: Inputs) -> Iterator[Case]:
    yield Case("tokens", (make.noise(BATCH, TOKENS, 4 * make.sizes.width),))
    yield Case("far from zero", (make.tokens() * 20,))


def _heads(make: Inputs, keys: int) -> tuple[Tensor, Tensor, Tensor]:
    heads, dim = make.sizes.heads, make.sizes.head_dim
    return (
        make.noise(BATCH, TOKENS, heads, dim),
        make.noise(BATCH, keys, heads, dim),
        make.noise(BATCH, keys, heads, dim),
    )


def _linear(make: Inputs) -> Iterator[Case]:
    for keys in (TOKENS, 5, 40):
        yield Case(f"{keys} keys", _heads(make, keys))
    yield Case("another eps", _heads(make, TOKENS), {"eps": 1e-3})


def _linear_rope(make: Inputs) -> Iterator[Case]:
    yield Case("tokens", (*_heads(make, TOKENS), *make.rotation()))
    yield Case("another eps", (*_heads(make, TOKENS), *make.rotation()), {"eps": 1e-3})


CASES: Final[dict[str, Callable[[Inputs], Iterator[Case]]]] = {
    "norm.layer": _layer,
    "norm.layer_modulate": _layer_modulate,
    "norm.rms": _rms,
    "norm.rms_rope": _rms_rope,
    "norm.head_rms_rope": _head_rms_rope,
    "norm.channel_rms_silu": _channel_rms_silu,
    "residual.gate": _gate,
    "residual.gate_layer": _gate_layer,
    "residual.gate_layer_modulate": _gate_layer_modulate,
    "activation.gelu_tanh": _gelu,
    "linear_attention.relu": _linear,
    "linear_attention.relu_rope": _linear_rope,
}
MAY_OVERWRITE: Final = frozenset({"activation.gelu_tanh"})
"""Ops whose result may lie in the memory of their input."""
