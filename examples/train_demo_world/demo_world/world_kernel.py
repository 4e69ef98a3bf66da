"""`world.draw_plain` as one Triton kernel: one program per frame and 256 pixels."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from demo_world import scene
from demo_world.world import FAR, FLAT, RARE

BLOCK = 256


def draw_frames(
    numbers: Tensor, cameras: Tensor, seed: Tensor, height: int, width: int, dtype: torch.dtype
) -> Tensor:
    """[N, 3, H, W] in -1..1; arguments as for `world.draw_plain`."""
    count = len(seed)
    out = torch.empty(count, 3, height, width, dtype=dtype, device=numbers.device)
    grid = (triton.cdiv(height * width, BLOCK), count)
    _kernel[grid](
        numbers.float().contiguous(), cameras.float().contiguous(), seed.long().contiguous(), out,
        height, width, math.tan(math.radians(scene.FIELD) / 2) / width,
        SIZE=scene.SIZE, STEPS=scene.STEPS, EYE=scene.EYE, SUNK=scene.SUNK,
        WHOLE=scene.WHOLE, RARE=RARE, FAR=FAR, FLAT=FLAT,
        SUN_X=scene.SUN[0], SUN_Z=scene.SUN[1], BLOCK=BLOCK,
    )  # fmt: skip
    return out


@triton.jit
def _clip01(x):
    return tl.minimum(tl.maximum(x, 0.0), 1.0)


@triton.jit
def _hash(ix, iz, seed):
    h = (ix * 374761393 + iz * 668265263 + seed * 974711) & 0xFFFFFFFF
    h = ((h ^ (h >> 15)) * 1103515245) & 0xFFFFFFFF
    h = ((h ^ (h >> 13)) * 1274126177) & 0xFFFFFFFF
    return h ^ (h >> 16)


@triton.jit
def _channel(
    p, n, dx, dy, flat, high, power, ridge_hit, share, lit, tone, wall_hit, seen, clear
):  # fmt: skip
    """One colour channel; numbers' places are those of `scene`."""
    low = tl.load(p + 3 + n)
    light = tl.load(p + 10 + n)
    ground_b = tl.load(p + 16 + n)
    sky = low + (tl.load(p + n) - low) * high
    sky = sky + (tl.load(p + 6 + n) - sky) * power
    sky = tl.where(ridge_hit, low + (ground_b * light - low) * 0.42, sky)
    ground_a = tl.load(p + 13 + n)
    floor = ground_a + (ground_b - ground_a) * share
    pillar = tl.load(p + 19 + n)
    wall = (pillar + (tl.load(p + 22 + n) - pillar) * tone) * lit
    solid = tl.where(wall_hit, wall, floor) * light
    return _clip01(tl.where(seen, low + (solid - low) * clear, sky))


@triton.jit
def _kernel(
    numbers, cameras, seeds, out, height, width, spread,
    SIZE: tl.constexpr, STEPS: tl.constexpr, EYE: tl.constexpr, SUNK: tl.constexpr,
    WHOLE: tl.constexpr, RARE: tl.constexpr, FAR: tl.constexpr, FLAT: tl.constexpr,
    SUN_X: tl.constexpr, SUN_Z: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    frame = tl.program_id(1)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row, column = place // width, place % width
    p = numbers + frame * SIZE
    cam = cameras + frame * 6
    x, z = tl.load(cam), tl.load(cam + 1)
    sin_yaw, cos_yaw = tl.load(cam + 2), tl.load(cam + 3)
    sin_pitch, cos_pitch = tl.load(cam + 4), tl.load(cam + 5)
    seed = tl.load(seeds + frame)
    scale, fog, power_of = tl.load(p + 26), tl.load(p + 25), tl.load(p + 9)
    sin_sun = tl.load(p + 27)
    cos_sun = tl.sqrt(1 - sin_sun * sin_sun)
    m0, m1, m2, m3 = tl.load(p + 28), tl.load(p + 29), tl.load(p + 30), tl.load(p + 31)
    red = tl.zeros((BLOCK,), tl.float32)
    green = tl.zeros((BLOCK,), tl.float32)
    blue = tl.zeros((BLOCK,), tl.float32)
    for sub in range(4):
        r, c = row * 2 + sub // 2, column * 2 + sub % 2
        right = (c.to(tl.float32) + 0.5 - width) * spread
        up = (height - (r.to(tl.float32) + 0.5)) * spread
        ahead, dy = cos_pitch - sin_pitch * up, sin_pitch + cos_pitch * up
        dx, dz = sin_yaw * ahead + cos_yaw * right, cos_yaw * ahead - sin_yaw * right
        norm = 1.0 / tl.sqrt(dx * dx + dy * dy + dz * dz)
        dx, dy, dz = dx * norm, dy * norm, dz * norm
        # Pillars.
        rx = tl.where(tl.abs(dx) < 1e-6, 1e-6, dx)
        rz = tl.where(tl.abs(dz) < 1e-6, 1e-6, dz)
        inv_x, inv_z = 1.0 / rx, 1.0 / rz
        hit = tl.zeros((BLOCK,), tl.float32) + FAR
        face = tl.zeros((BLOCK,), tl.float32)
        tone = tl.zeros((BLOCK,), tl.float32)
        cell_x = tl.floor(x) + tl.zeros((BLOCK,), tl.float32)
        cell_z = tl.floor(z) + tl.zeros((BLOCK,), tl.float32)
        next_x = (cell_x + tl.where(rx > 0, 1.0, 0.0) - x) * inv_x
        next_z = (cell_z + tl.where(rz > 0, 1.0, 0.0) - z) * inv_z
        step_x, step_z = tl.where(rx > 0, 1.0, -1.0), tl.where(rz > 0, 1.0, -1.0)
        for _ in range(STEPS):
            h = _hash(cell_x.to(tl.int64), cell_z.to(tl.int64), seed)
            half = 0.17 + 0.15 / 255 * ((h >> 8) & 255).to(tl.float32)
            mid_x, mid_z = cell_x + 0.5 - x, cell_z + 0.5 - z
            risen = _clip01((tl.sqrt(mid_x * mid_x + mid_z * mid_z) - SUNK) / (WHOLE - SUNK))
            risen = risen * risen * (3 - 2 * risen)
            high = (0.9 + 1.5 / 255 * ((h >> 16) & 255).to(tl.float32)) * scale * risen
            a, b = (mid_x - half) * inv_x, (mid_x + half) * inv_x
            e, d = (mid_z - half) * inv_z, (mid_z + half) * inv_z
            in_x, in_z = tl.minimum(a, b), tl.minimum(e, d)
            enter = tl.maximum(in_x, in_z)
            leave = tl.minimum(tl.maximum(a, b), tl.maximum(e, d))
            there = (
                ((h & 255) < RARE) & (enter < leave) & (enter > 0) & (high > FLAT) & (hit == FAR)
            )
            below = EYE + dy * enter < high
            top = (high - EYE) / tl.where(dy < 0, dy, -1e-9)
            found = there & (below | ((dy < 0) & (top < leave)))
            hit = tl.where(found, tl.where(below, enter, top), hit)
            face = tl.where(found, tl.where(below, tl.where(in_x < in_z, 1.0, 0.0), 2.0), face)
            tone = tl.where(found, ((h >> 24) & 255).to(tl.float32) / 255, tone)
            along = next_x < next_z
            cell_x = tl.where(along, cell_x + step_x, cell_x)
            cell_z = tl.where(along, cell_z, cell_z + step_z)
            next_x = tl.where(along, next_x + tl.abs(inv_x), next_x)
            next_z = tl.where(along, next_z, next_z + tl.abs(inv_z))
        # What the ray meets.
        ground = tl.where(dy < 0, EYE / tl.maximum(-dy, 1e-6), FAR)
        gx, gz = x + dx * ground, z + dz * ground
        odd = (tl.floor(gx) + tl.floor(gz)) * 0.5
        odd = (odd - tl.floor(odd)) * 2
        share = 0.5 + (odd - 0.5) * tl.exp(-0.16 * ground)
        foot = _clip01((EYE + dy * hit) * 1.6)
        lit = tl.where(face == 2, 1.12, tl.where(face == 1, 0.70, 1.0)) * (0.72 + 0.28 * foot)
        far = tl.minimum(hit, ground)
        clear = tl.exp(-fog * far)
        flat = tl.maximum(tl.sqrt(dx * dx + dz * dz), 1e-6)
        high_sky = 1 - tl.exp(-4 * tl.maximum(dy, 0.0))
        near = dx * (SUN_X * cos_sun) + dz * (SUN_Z * cos_sun) + dy * sin_sun
        disc = _clip01((near - 0.9935) / 0.002) + 0.35 * tl.exp(-(1 - near) * 28)
        power = _clip01(disc * power_of)
        c1, s1 = dx / flat, dz / flat
        c2, s2 = c1 * c1 - s1 * s1, 2 * c1 * s1
        c3, s3 = c1 * c2 - s1 * s2, s1 * c2 + c1 * s2
        c5, s5 = c2 * c3 - s2 * s3, s2 * c3 + c2 * s3
        ridge = 0.075 + 0.022 * (m0 * c2 + m1 * s3) + 0.018 * (m2 * c5 + m3 * s5)
        ridge_hit, wall_hit, seen = dy / flat < ridge, hit < ground, far < FAR
        red += _channel(p, 0, dx, dy, flat, high_sky, power, ridge_hit, share, lit, tone,
                        wall_hit, seen, clear)  # fmt: skip
        green += _channel(p, 1, dx, dy, flat, high_sky, power, ridge_hit, share, lit, tone,
                          wall_hit, seen, clear)  # fmt: skip
        blue += _channel(p, 2, dx, dy, flat, high_sky, power, ridge_hit, share, lit, tone,
                         wall_hit, seen, clear)  # fmt: skip
    inside = place < height * width
    base = out + frame.to(tl.int64) * 3 * height * width + place
    kind = out.dtype.element_ty
    tl.store(base, (red * 0.5 - 1).to(kind), mask=inside)
    tl.store(base + height * width, (green * 0.5 - 1).to(kind), mask=inside)
    tl.store(base + 2 * height * width, (blue * 0.5 - 1).to(kind), mask=inside)
