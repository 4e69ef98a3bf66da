"""Draws the world: endless pillars on a chequered ground, mountains, a sky with a sun.

    frames = draw(numbers, path, seed)         [N, 3, H, W] in -1..1

A ray walks through the cells of the ground; a hash of cell and seed says whether a pillar stands
there, how wide, high and of what colour; near the camera it sinks. Four rays per pixel. On a GPU a
Triton kernel does it (`world_kernel`), elsewhere the same arithmetic in plain torch; a test
compares the two.
"""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor

from demo_world import scene
from demo_world.motion import Path

MASK: Final = 0xFFFFFFFF
RARE: Final = 22
"""A cell has a pillar when the lowest byte of its hash is below this."""
FAR: Final = 1e6
FLAT: Final = 1e-3
"""A pillar that is not even this high is not drawn."""


def draw(
    numbers: Tensor,
    path: Path,
    seed: Tensor,
    *,
    height: int = scene.HEIGHT,
    width: int = scene.WIDTH,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Draw N frames.

    Args:
        numbers: `scene.blend`, flattened to [N, SIZE], on the device that shall draw.
        path: the camera of each frame, each [N].
        seed: of each frame's world, [N] integers.
        height: of the frames; `width` likewise.
        dtype: of the result.
    """
    device = numbers.device
    yaw, pitch = (angle.to(device).float() * (math.pi / 180) for angle in (path.yaw, path.pitch))
    cameras = torch.stack(
        [path.x.to(device), path.z.to(device), yaw.sin(), yaw.cos(), pitch.sin(), pitch.cos()], 1
    ).float()
    seed = seed.to(device)
    if device.type == "cuda":
        from demo_world.world_kernel import draw_frames  # noqa: PLC0415 (Triton is not everywhere)

        return draw_frames(numbers, cameras, seed, height, width, dtype)
    group = max(1, 2_000_000 // (height * width * 4))
    pieces = [
        draw_plain(numbers[n : n + group], cameras[n : n + group], seed[n : n + group],
                   height, width)
        for n in range(0, len(seed), group)
    ]  # fmt: skip
    return torch.cat(pieces).to(dtype)


def draw_plain(numbers: Tensor, cameras: Tensor, seed: Tensor, height: int, width: int) -> Tensor:
    """As `draw`, in plain torch; cameras are x, z, then sine and cosine of yaw and of pitch."""
    device, count = numbers.device, len(seed)
    x, z, sin_yaw, cos_yaw, sin_pitch, cos_pitch = (c[:, None] for c in cameras.unbind(1))
    row, column = torch.meshgrid(
        torch.arange(2 * height, device=device), torch.arange(2 * width, device=device),
        indexing="ij",
    )  # fmt: skip
    spread = math.tan(math.radians(scene.FIELD) / 2) / width
    right = ((column.flatten() + 0.5) - width)[None] * spread
    up = (height - (row.flatten() + 0.5))[None] * spread
    ahead, dy = cos_pitch - sin_pitch * up, sin_pitch + cos_pitch * up
    dx, dz = sin_yaw * ahead + cos_yaw * right, cos_yaw * ahead - sin_yaw * right
    norm = (dx * dx + dy * dy + dz * dz).rsqrt()
    dx, dy, dz = dx * norm, dy * norm, dz * norm
    part = numbers[:, None]
    hit, face, tone = _pillars(x, z, dx, dy, dz, seed[:, None], part[..., scene.SCALE])
    colour = _shade(part, x, z, dx, dy, dz, hit, face, tone)
    frames = colour.permute(0, 2, 1).reshape(count, 3, height, 2, width, 2).mean((3, 5))
    return frames * 2 - 1


def hashed(ix: Tensor, iz: Tensor, seed: Tensor) -> Tensor:
    """32 bits of a cell, int64."""
    h = (ix * 374761393 + iz * 668265263 + seed * 974711) & MASK
    h = ((h ^ (h >> 15)) * 1103515245) & MASK
    h = ((h ^ (h >> 13)) * 1274126177) & MASK
    return h ^ (h >> 16)


def _pillars(
    x: Tensor, z: Tensor, dx: Tensor, dy: Tensor, dz: Tensor, seed: Tensor, scale: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Distance to each ray's first pillar (`FAR`: none), its face (0, 1 sides, 2 top), its tone."""
    size = dx.shape
    hit, face, tone = (torch.full(size, value) for value in (FAR, 0.0, 0.0))
    hit, face, tone = hit.to(dx.device), face.to(dx.device), tone.to(dx.device)
    dx = torch.where(dx.abs() < 1e-6, 1e-6, dx)
    dz = torch.where(dz.abs() < 1e-6, 1e-6, dz)
    ix, iz = x.floor().long().expand(size), z.floor().long().expand(size)
    step_x, step_z = dx.sign().long(), dz.sign().long()
    next_x = (ix + (dx > 0) - x) / dx
    next_z = (iz + (dz > 0) - z) / dz
    for _ in range(scene.STEPS):
        h = hashed(ix, iz, seed)
        half = 0.17 + 0.15 / 255 * ((h >> 8) & 255)
        mid_x, mid_z = ix + 0.5 - x, iz + 0.5 - z
        high = (0.9 + 1.5 / 255 * ((h >> 16) & 255)) * scale * _risen(mid_x, mid_z)
        a, b = (mid_x - half) / dx, (mid_x + half) / dx
        c, d = (mid_z - half) / dz, (mid_z + half) / dz
        in_x, in_z = torch.minimum(a, b), torch.minimum(c, d)
        enter = torch.maximum(in_x, in_z)
        leave = torch.minimum(torch.maximum(a, b), torch.maximum(c, d))
        there = ((h & 255) < RARE) & (enter < leave) & (enter > 0) & (high > FLAT) & (hit == FAR)
        below = scene.EYE + dy * enter < high
        top = (high - scene.EYE) / torch.where(dy < 0, dy, -1e-9)
        on_top = ~below & (dy < 0) & (top < leave)
        found = there & (below | on_top)
        hit = torch.where(found, torch.where(below, enter, top), hit)
        side = (in_x < in_z).float()
        face = torch.where(found, torch.where(below, side, 2.0), face)
        tone = torch.where(found, ((h >> 24) & 255) / 255, tone)
        along_x = next_x < next_z
        ix, iz = torch.where(along_x, ix + step_x, ix), torch.where(along_x, iz, iz + step_z)
        next_x, next_z = (
            torch.where(along_x, next_x + 1 / dx.abs(), next_x),
            torch.where(along_x, next_z, next_z + 1 / dz.abs()),
        )
    return hit, face, tone


def _risen(x: Tensor, z: Tensor) -> Tensor:
    """How much of a pillar stands whose middle is so far from the camera: smoothstep."""
    share = ((x * x + z * z).sqrt() - scene.SUNK) / (scene.WHOLE - scene.SUNK)
    share = share.clamp(0, 1)
    return share * share * (3 - 2 * share)


def _shade(
    part: Tensor, x: Tensor, z: Tensor, dx: Tensor, dy: Tensor, dz: Tensor,
    hit: Tensor, face: Tensor, tone: Tensor,
) -> Tensor:  # fmt: skip
    def rgb(place: int) -> Tensor:
        return part[..., place : place + 3]

    low, light = rgb(scene.SKY_LOW), rgb(scene.LIGHT)
    flat = (dx * dx + dz * dz).sqrt().clamp(min=1e-6)
    # Sky: a gradient, the sun with its glow, mountains by harmonics of the direction.
    high = 1 - (-4 * dy.clamp(min=0)).exp()
    sky = low + (rgb(scene.SKY_TOP) - low) * high[..., None]
    sin_sun = part[..., scene.SUN_SIN]
    cos_sun = (1 - sin_sun * sin_sun).sqrt()
    near = dx * (scene.SUN[0] * cos_sun) + dz * (scene.SUN[1] * cos_sun) + dy * sin_sun
    disc = ((near - 0.9935) / 0.002).clamp(0, 1) + 0.35 * (-(1 - near) * 28).exp()
    power = (disc * part[..., scene.SUN_POWER]).clamp(0, 1)[..., None]
    sky = sky + (rgb(scene.SUN_COLOUR) - sky) * power
    c1, s1 = dx / flat, dz / flat
    c2, s2 = c1 * c1 - s1 * s1, 2 * c1 * s1
    c3, s3 = c1 * c2 - s1 * s2, s1 * c2 + c1 * s2
    c5, s5 = c2 * c3 - s2 * s3, s2 * c3 + c2 * s3
    m = [part[..., scene.HILLS + n] for n in range(4)]
    ridge = 0.075 + 0.022 * (m[0] * c2 + m[1] * s3) + 0.018 * (m[2] * c5 + m[3] * s5)
    mountain = low + (rgb(scene.GROUND_B) * light - low) * 0.42
    sky = torch.where((dy / flat < ridge)[..., None], mountain, sky)
    # Ground: squares that fade into their mean.
    ground = scene.EYE / (-dy).clamp(min=1e-6)
    ground = torch.where(dy < 0, ground, FAR)
    gx, gz = x + dx * ground, z + dz * ground
    odd = (gx.floor() + gz.floor()) * 0.5
    odd = (odd - odd.floor()) * 2
    share = 0.5 + (odd - 0.5) * (-0.16 * ground).exp()
    floor = rgb(scene.GROUND_A) + (rgb(scene.GROUND_B) - rgb(scene.GROUND_A)) * share[..., None]
    # Pillars: one tone each, by the side that is seen, darker at the foot.
    foot = ((scene.EYE + dy * hit) * 1.6).clamp(0, 1)
    lit = torch.where(face == 2, 1.12, torch.where(face == 1, 0.70, 1.0)) * (0.72 + 0.28 * foot)
    wall = rgb(scene.PILLAR_A) + (rgb(scene.PILLAR_B) - rgb(scene.PILLAR_A)) * tone[..., None]
    far = torch.minimum(hit, ground)
    solid = torch.where((hit < ground)[..., None], wall * lit[..., None], floor) * light
    clear = (-part[..., scene.FOG] * far).exp()[..., None]
    colour = torch.where((far < FAR)[..., None], low + (solid - low) * clear, sky)
    return colour.clamp(0, 1)
