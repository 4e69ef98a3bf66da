"""How a kernel is cut into programs, and how its arguments lie in memory; imports no triton.

A program works on a tile of whole rows, because a norm needs its row: `rows` times the width,
padded to a power of two. Narrow rows are taken several at a time, so that a program has bytes
enough to keep its loads in flight.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor


class Launch(NamedTuple):
    """The size of a program."""

    rows: int
    """Rows of a tile, a power of two."""
    warps: int
    """Groups of 32 threads."""

    def tile(self, width: int, *, stepwise: bool = False) -> dict[str, Any]:
        """What a kernel and its compiler are told about a tile of rows of this width.

        Args:
            width: of a row.
            stepwise: round after every operation.
        """
        # Products and sums are fused as in torch's own kernels: newer Tritons do so when asked.
        # Where each rounds, compilers see that a product rounded to bfloat16 and a sum rounded to
        # it make one fused operation of half precision, which rounds once.
        options = {"num_warps": self.warps, "enable_fp_fusion": not stepwise}
        return {"WIDTH": width, "BLOCK": padded(width), "ROWS": self.rows, **options}


LAUNCHES: Final[tuple[tuple[int, Launch], ...]] = (
    (128, Launch(rows=16, warps=4)),
    (512, Launch(rows=8, warps=4)),
    (1024, Launch(rows=4, warps=4)),
    (2048, Launch(rows=2, warps=4)),
    (4096, Launch(rows=1, warps=4)),
    (8192, Launch(rows=1, warps=8)),
    (16384, Launch(rows=1, warps=16)),
)
"""Largest padded width → program: 16 to 32 elements for each thread. `bench/kernels.py --sweep`
measures the neighbours of a row."""
WIDEST: Final = Launch(rows=1, warps=32)
"""For wider rows."""

SWEPT: Final[tuple[Launch, ...]] = tuple(
    Launch(rows, warps) for rows in (1, 2, 4, 8, 16) for warps in (2, 4, 8, 16)
)
"""What `--sweep` tries, as far as a tile holds 8 to 128 elements for each thread."""


def padded(width: int) -> int:
    """The next power of two, which a tile's side must be."""
    return 1 << max(width - 1, 1).bit_length()


def launch_for(width: int) -> Launch:
    """The program for rows of this width."""
    block = padded(width)
    return next((launch for most, launch in LAUNCHES if block <= most), WIDEST)


def sensible(launch: Launch, width: int) -> bool:
    """Whether a tile gives each thread something to do and not more than its registers hold."""
    return 8 <= launch.rows * padded(width) // (32 * launch.warps) <= 128


class Rows(NamedTuple):
    """Rows [B, S, D] in memory: the last axis is contiguous, the others lie at any stride."""

    tensor: Tensor
    batch: int
    """Elements from one row of the batch to the next."""
    token: int
    """Elements from one token to the next."""


class Groups(NamedTuple):
    """Vectors [B, G, D], each for `span` tokens in a row; all None and 0 where there are none."""

    tensor: Tensor | None
    batch: int
    group: int
    span: int


NO_GROUPS: Final = Groups(None, 0, 0, 1)


def rows(x: Tensor) -> Rows:
    """`x` [..., D] as [B, S, D]; copied only if its last axis is not contiguous, or if it has other
    than three axes that no view flattens."""
    if x.ndim != 3:
        x = x.reshape(1, -1, x.shape[-1])
    if x.stride(-1) != 1 and x.shape[-1] > 1:
        x = x.contiguous()
    return Rows(x, x.stride(0), x.stride(1))


def groups(x: Tensor, name: str, vectors: Tensor) -> Groups:
    """A modulation for the tokens `x` [B, S, D].

    Raises:
        ValueError: it is not [B, G, D] or [1, G, D] with G dividing S.
    """
    batch, tokens, width = x.shape
    shape = tuple(vectors.shape)
    if len(shape) != 3 or shape[0] not in (1, batch) or shape[2] != width:
        raise ValueError(f"{name} {shape}: must be [{batch}, groups, {width}] for x {[*x.shape]}.")
    if not shape[1] or tokens % shape[1]:
        raise ValueError(f"groups={shape[1]}: must divide the {tokens} tokens of x evenly.")
    if vectors.stride(-1) != 1 and width > 1:
        vectors = vectors.contiguous()
    # One row of vectors for a batch of several is read again for each.
    stride = 0 if shape[0] == 1 else vectors.stride(0)
    return Groups(vectors, stride, vectors.stride(1), tokens // shape[1])


def fits(name: str, tensor: Tensor, *shape: int) -> Tensor:
    """`tensor` with its memory in order.

    Raises:
        ValueError: it has another shape: the kernel would read what is not there.
    """
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name} {tuple(tensor.shape)}: must be {shape}.")
    return tensor.contiguous()


def on_device(tensor: Tensor) -> AbstractContextManager[Any]:
    """Context in which the tensor's GPU is the current one, for a launch goes to that."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()
