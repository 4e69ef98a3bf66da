"""Rotary position embedding over interleaved pairs (2i, 2i+1) on a frame × row × column grid.

`split` gives the widths of the three axes, `axis` the table of one axis, `grid` the table of a
whole latent, `at` that of frames at any positions, `rotate` applies it. Angles are computed in
float64 and stored as float32.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def split(head_dim: int) -> tuple[int, int, int]:
    """Widths (frame, row, column): t = d − 4·⌊d/6⌋, h = w = 2·⌊d/6⌋; 44/42/42 for d = 128."""
    side = 2 * (head_dim // 6)
    return head_dim - 2 * side, side, side


def axis(
    positions: Tensor | Sequence[float], width: int, theta: float = 10000.0
) -> tuple[Tensor, Tensor]:
    """cos and sin of position·theta^(−2i/width), float32 [positions, width/2] on the CPU.

    Raises:
        ValueError: `width` is odd, so it does not hold pairs.
    """
    if width % 2:
        raise ValueError(f"width={width}: a rotary axis holds pairs; give an even width.")
    # On the CPU because some accelerators have no float64; the tables of an axis are small.
    places = torch.as_tensor(positions, dtype=torch.float64, device="cpu")
    exponents = torch.arange(0, width, 2, dtype=torch.float64, device="cpu") / width
    angles = torch.outer(places, 1.0 / theta**exponents)
    return angles.cos().float(), angles.sin().float()


def grid(
    head_dim: int,
    frames: int,
    height: int,
    width: int,
    *,
    device: torch.device | str = "cpu",
    theta: float = 10000.0,
    first_frame: float = 0,
) -> tuple[Tensor, Tensor]:
    """cos and sin of a token grid in order (frame, row, column), float32 [F·H·W, head_dim/2].

    Args:
        head_dim: D, shared out by `split`.
        frames: frames in tokens, like height and width: after patching.
        height: rows of tokens.
        width: columns of tokens.
        device: where the tables go; only the three short axes are copied there.
        theta: base of the frequencies.
        first_frame: position of the first frame, for chunks of a longer video.
    """
    places = torch.arange(frames, dtype=torch.float64, device="cpu") + first_frame
    return at(head_dim, places, height, width, device=device, theta=theta)


def at(
    head_dim: int,
    frames: Tensor | Sequence[float],
    height: int,
    width: int,
    *,
    device: torch.device | str = "cpu",
    theta: float = 10000.0,
) -> tuple[Tensor, Tensor]:
    """As `grid`, for frames at any temporal positions, also fractional ones with gaps."""
    axes = (
        torch.as_tensor(frames, dtype=torch.float64, device="cpu"),
        torch.arange(height, dtype=torch.float64, device="cpu"),
        torch.arange(width, dtype=torch.float64, device="cpu"),
    )
    sizes = tuple(len(places) for places in axes)
    tables: list[list[Tensor]] = [[], []]
    for index, (places, part) in enumerate(zip(axes, split(head_dim), strict=True)):
        shape = [1, 1, 1, part // 2]
        shape[index] = len(places)
        for table, values in zip(tables, axis(places, part, theta), strict=True):
            table.append(values.to(device).view(shape).expand(*sizes, -1))
    cos, sin = (torch.cat(parts, dim=-1).flatten(0, 2) for parts in tables)
    return cos, sin


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn every pair (a, b) of `x` into (a·cos − b·sin, a·sin + b·cos), in float32.

    Args:
        x: [B, S, H, D].
        cos: float32 [S, D/2].
        sin: like `cos`.

    Returns a new [B, S, H, D] in the dtype of `x`, rounded once.
    """
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)  # s 1 pairs
    even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)
    if torch.compiler.is_compiling():
        # The compiler fuses this into one kernel and cannot trace strided `out=` below.
        turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)
        return turned.flatten(-2).to(x.dtype)
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    out_even, out_odd = out.unflatten(-1, (-1, 2)).unbind(-1)
    torch.addcmul(even * cos, odd, sin, value=-1, out=out_even)
    torch.addcmul(even * sin, odd, cos, out=out_odd)
    return out
