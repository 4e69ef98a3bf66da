"""The Triton kernels: residual sum and layer norm, RMS norm and rotation, RMS norm and SiLU.

Each program owns a tile of ROWS whole rows, `BLOCK` wide with what lies past WIDTH masked out. It
reads every operand once, computes in float32 (float64 for float64) and writes every result once.
Arguments that are None leave their part of the kernel out, when it is compiled.

Numbers that change from request to request (tokens, spans) are not specialised on, so that a small
warm-up request compiles what a large one runs.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from sgld.api.errors import DeviceError

VARYING = ("tokens", "count", "gate_span", "scale_span", "shift_span")


@triton.jit
def at_groups(
    vectors, batch, token, batch_stride, group_stride, span, columns, inside, WIDE: tl.constexpr
) -> tl.tensor:
    """The tile of a modulation: each row's own vector, which is that of its group of tokens."""
    starts = batch * batch_stride + (token // span).to(tl.int64) * group_stride
    return tl.load(vectors + starts[:, None] + columns, mask=inside, other=0.0).to(WIDE)


@triton.jit(do_not_specialize=VARYING)
def residual_norm(
    x, y, gate, weight, bias, scale, shift, total, out,
    count, tokens,
    x_batch, x_token, y_batch, y_token,
    gate_batch, gate_group, gate_span,
    scale_batch, scale_group, scale_span,
    shift_batch, shift_group, shift_span,
    eps,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr,
    GATE_STEPWISE: tl.constexpr, SCALE_STEPWISE: tl.constexpr,
) -> None:  # fmt: skip
    """total = x + gate·y, then out = layer norm of total, with weight and bias or modulated.

    Without `y` there is no sum and the norm is of `x`; without `out` there is no norm. The norm
    reads the rounded sum. STEPWISE: every operation rounds to the dtype of `x`.
    """
    dtype = x.dtype.element_ty
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)[None, :]
    real = columns < WIDTH
    inside = (row < count)[:, None] & real
    batch, token = row // tokens, (row % tokens).to(tl.int32)
    place = row[:, None] * WIDTH + columns
    value = tl.load(
        x + (batch * x_batch + token * x_token.to(tl.int64))[:, None] + columns,
        mask=inside,
        other=0.0,
    ).to(WIDE)
    if y is not None:
        add = tl.load(
            y + (batch * y_batch + token * y_token.to(tl.int64))[:, None] + columns,
            mask=inside,
            other=0.0,
        ).to(WIDE)
        if gate is not None:
            add *= at_groups(
                gate, batch, token, gate_batch, gate_group, gate_span, columns, inside, WIDE
            )
            if GATE_STEPWISE:
                add = add.to(dtype).to(WIDE)
        rounded = (value + add).to(dtype)
        tl.store(total + place, rounded, mask=inside)
        value = rounded.to(WIDE)
    if out is not None:
        mean = tl.sum(value, axis=1) / WIDTH
        centred = tl.where(real, value - mean[:, None], 0.0)
        variance = tl.sum(centred * centred, axis=1) / WIDTH
        normed = centred * tl.rsqrt(variance + eps)[:, None]
        if weight is not None:
            normed *= tl.load(weight + columns, mask=real, other=0.0).to(WIDE)
        if bias is not None:
            normed += tl.load(bias + columns, mask=real, other=0.0).to(WIDE)
        if scale is not None:
            factor = 1.0 + at_groups(
                scale, batch, token, scale_batch, scale_group, scale_span, columns, inside, WIDE
            )
            moved = at_groups(
                shift, batch, token, shift_batch, shift_group, shift_span, columns, inside, WIDE
            )
            if SCALE_STEPWISE:
                normed = normed.to(dtype).to(WIDE) * factor.to(dtype).to(WIDE)
                normed = normed.to(dtype).to(WIDE) + moved
            else:
                normed = normed * factor + moved
        tl.store(out + place, normed.to(dtype), mask=inside)


@triton.jit(do_not_specialize=VARYING)
def rms_rotate(
    x, weight, cos, sin, out,
    count, tokens,
    x_batch, x_token,
    eps,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr,
    PARTS: tl.constexpr, PAIRS: tl.constexpr,
) -> None:  # fmt: skip
    """out = x / sqrt(mean(x²) + eps)·weight, rounded, then pairs rotated if there is a `cos`.

    A token is PARTS rows of WIDTH that are normalised apart; its table has PAIRS angles, which
    repeat along a row.
    """
    dtype = x.dtype.element_ty
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)[None, :]
    real = columns < WIDTH
    inside = (row < count)[:, None] & real
    whole, part = row // PARTS, row % PARTS
    batch, token = whole // tokens, whole % tokens
    start = batch * x_batch + token * x_token + part * WIDTH
    value = tl.load(x + start[:, None] + columns, mask=inside, other=0.0).to(WIDE)
    square = tl.sum(value * value, axis=1) / WIDTH
    value *= tl.rsqrt(square + eps)[:, None]
    if weight is not None:
        by = tl.load(weight + columns, mask=real, other=0.0)
        value *= by.to(dtype).to(WIDE)
    normed = value.to(dtype)
    if cos is not None:
        even, odd = tl.split(tl.reshape(normed.to(WIDE), (ROWS, BLOCK // 2, 2)))
        pairs = tl.arange(0, BLOCK // 2)[None, :]
        angles = token[:, None] * PAIRS + pairs % PAIRS
        live = (row < count)[:, None] & (pairs < WIDTH // 2)
        c = tl.load(cos + angles, mask=live, other=0.0).to(WIDE)
        s = tl.load(sin + angles, mask=live, other=0.0).to(WIDE)
        turned = tl.join(even * c - odd * s, even * s + odd * c)
        normed = tl.reshape(turned, (ROWS, BLOCK)).to(dtype)
    tl.store(out + row[:, None] * WIDTH + columns, normed, mask=inside)


@triton.jit(do_not_specialize=("count", "places"))
def channel_rms_silu(
    x, weight, out,
    count, places,
    x_batch, x_channel, x_place, out_batch, out_channel, out_place,
    eps, root,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr,
) -> None:  # fmt: skip
    """out = SiLU(x / max(|x|, eps)·root·weight) over the channels of a place; a row is a place.

    Every operation rounds to the dtype of `x`. One of channels and places is contiguous.
    """
    dtype = x.dtype.element_ty
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)[None, :]
    real = columns < WIDTH
    inside = (row < count)[:, None] & real
    batch, place = row // places, row % places
    start = batch * x_batch + place * x_place
    value = tl.load(x + start[:, None] + columns * x_channel, mask=inside, other=0.0).to(WIDE)
    length = tl.sqrt(tl.sum(value * value, axis=1))
    value = (value / tl.maximum(length, eps)[:, None]).to(dtype).to(WIDE)
    value = (value * root).to(dtype).to(WIDE)
    by = tl.load(weight + columns, mask=real, other=0.0).to(dtype).to(WIDE)
    value = (value * by).to(dtype).to(WIDE)
    value = value / (1.0 + tl.exp(-value))
    end = batch * out_batch + place * out_place
    tl.store(out + end[:, None] + columns * out_channel, value.to(dtype), mask=inside)


def wide(x: torch.Tensor) -> Any:
    """The dtype that a kernel computes in: float32, or float64 for a float64 stream."""
    return tl.float64 if x.dtype == torch.float64 else tl.float32


def build_launcher() -> None:
    """Let Triton build what it calls the driver through, once for a machine.

    Raises:
        DeviceError: it cannot; the kernels would fail at the first forward.
    """
    try:
        active: Any = triton.runtime.driver.active  # its class is the backend's
        active.get_current_device()
    except Exception as error:
        raise DeviceError(
            f"Triton cannot reach the GPU: {type(error).__name__}: {error}".rstrip(".") + ".",
            remedy="Install a C compiler and this Python's headers, or leave the kernels out with "
            "SGLD_PLUGINS=-triton.",
        ) from error


# A table of kernels is bound before a model is loaded: better there than minutes later.
if torch.cuda.is_available():
    build_launcher()
