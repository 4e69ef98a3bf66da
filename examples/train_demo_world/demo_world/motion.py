"""Keys to a moving camera, twice: as the family tells it to the network, and as the world is drawn.

One level of keys is held for a latent frame: a single video frame for the first one, four for every
later one. What is told is `sgld_lingbot.models.camera.walk` for many clips at once (a test compares
them). What is drawn turns and walks by the same keys, in quarters of a step per video frame, but
stops at `PITCH_LIMIT`: told pitch may run on, and the network learns that looking further does
nothing there.

Nothing moves before the camera is told of: chunks before `told_from` have no camera, and the first
latent frame after it stands still, as the family has it.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import torch
from torch import Tensor

from sgld_lingbot.models import camera

KEYS: Final = ("w", "a", "s", "d", "i", "j", "k", "l")
CHUNK: Final = 3
FRAMES: Final = 4
"""Video frames of a latent frame."""
STEP: Final = 0.28
"""Cells walked in a latent frame, in any direction."""
YAW: Final = camera.YAW
PITCH: Final = camera.PITCH
PITCH_LIMIT: Final = 12.0
"""Degrees, of what is drawn."""


class Axes(NamedTuple):
    """Keys as -1, 0, 1 per latent frame, each [B, F]: forward, right, turn right, look up."""

    walk: Tensor
    strafe: Tensor
    yaw: Tensor
    pitch: Tensor


def axes_of(levels: list[list[str]]) -> Axes:
    """One clip's levels of keys as `Axes` with B = 1."""
    held = torch.tensor([[key in level for key in KEYS] for level in levels], dtype=torch.float32)
    w, a, s, d, i, j, k, l = held.unbind(1)  # noqa: E741
    return Axes(*(axis[None] for axis in (w - s, d - a, l - j, i - k)))


def levels_of(axes: Axes, clip: int) -> list[list[str]]:
    """The other way round, for one clip."""
    rows = torch.stack([axis[clip] for axis in axes], 1).tolist()
    names = (("w", "s"), ("d", "a"), ("l", "j"), ("i", "k"))
    return [
        [plus if value > 0 else minus for (plus, minus), value in zip(names, row, strict=True)
         if value]
        for row in rows
    ]  # fmt: skip


def random_axes(clips: int, frames: int, draw: torch.Generator) -> Axes:
    """Keys as somebody may hold them: every axis keeps a value for 2 to 9 latent frames."""
    shares = ((0.1, 0.6), (0.12, 0.12), (0.22, 0.22), (0.1, 0.1))
    calm = torch.rand(clips, 1, generator=draw)
    result: list[Tensor] = []
    for minus, plus in shares:
        holds = torch.randint(2, 10, (clips, frames), generator=draw)
        ends = holds.cumsum(1)
        place = torch.searchsorted(ends, torch.arange(frames).expand(clips, -1).contiguous(),
                                   right=True)  # fmt: skip
        drawn = torch.rand(clips, frames, generator=draw).gather(1, place)
        value = (drawn > 1 - plus).float() - (drawn < minus).float()
        # Some clips hold few keys at once, some none at all.
        quiet = torch.rand(clips, 1, generator=draw) < calm * 0.5
        result.append(value.masked_fill(quiet, 0))
    return Axes(*result)


class Told(NamedTuple):
    """Args:
    moves: relative poses, rows of [R | t], [B, F, 3, 4].
    known: whether the network is told of a camera, [B, F] bool.
    """

    moves: Tensor
    known: Tensor


def tell(axes: Axes, told_from: Tensor, pitch: Tensor) -> Told:
    """What the network is told of these keys.

    Args:
        axes: of whole clips from their beginning.
        told_from: first chunk that has a camera, [B].
        pitch: where the told pitch stands then, degrees [B].
    """
    clips, frames = axes.walk.shape
    index = torch.arange(frames)
    known = index[None] >= told_from[:, None] * CHUNK
    first = index[None] == told_from[:, None] * CHUNK
    yaws, pitches = [torch.zeros(clips, dtype=torch.float64)], [pitch.double()]
    for frame in range(frames):
        on = known[:, frame].double()
        turn = PITCH * axes.pitch[:, frame].double() * on
        after = pitches[-1] + turn
        pitches.append(torch.where(after.abs() > camera.PITCH_LIMIT, pitches[-1], after))
        yaws.append(yaws[-1] + YAW * axes.yaw[:, frame].double() * on)
    yaw, look = torch.stack(yaws, 1).deg2rad(), torch.stack(pitches, 1).deg2rad()
    turn = yaw[:, 1:] - yaw[:, :-1]
    before, after = look[:, :-1], look[:, 1:]
    rotation = _about_x(-before) @ _about_y(turn) @ _about_x(after)
    walk, strafe = axes.walk.double(), axes.strafe.double()
    # The step along the ground in the frame that the camera had before: first undo its yaw.
    x = camera.MOVE * (turn.sin() * walk + turn.cos() * strafe)
    z = camera.MOVE * (turn.cos() * walk - turn.sin() * strafe)
    step = torch.stack([x, torch.zeros_like(x), z], -1)
    step = (_about_x(-before) @ step[..., None])[..., 0]
    still = (first | ~known)[..., None]
    step = step.masked_fill(still, 0)
    rotation = torch.where(still[..., None], torch.eye(3, dtype=torch.float64), rotation)
    length = step.norm(dim=-1).unflatten(1, (-1, CHUNK)).amax(2)
    longest = length.cummax(1).values.repeat_interleave(CHUNK, 1)
    step = torch.where(longest[..., None] > 0, step / longest.clamp(min=1e-12)[..., None], step)
    return Told(torch.cat([rotation, step[..., None]], -1).float(), known)


class Path(NamedTuple):
    """The drawn camera per video frame, each [B, 4F - 3]: place on the ground, degrees."""

    x: Tensor
    z: Tensor
    yaw: Tensor
    pitch: Tensor


class Start(NamedTuple):
    """Where the drawn camera begins, each [B]."""

    x: Tensor
    z: Tensor
    yaw: Tensor
    pitch: Tensor


def follow(axes: Axes, told_from: Tensor, start: Start) -> Path:
    """The drawn camera; see the module's head."""
    frames = axes.walk.shape[1]
    index = torch.arange(frames)
    moving = (index[None] > told_from[:, None] * CHUNK).double()
    x, z, yaw, pitch = (value.double() for value in start)
    rows = [[x, z, yaw, pitch]]
    for frame in range(1, frames):
        on = moving[:, frame] / FRAMES
        walk, strafe, turn, look = (axis[:, frame].double() * on for axis in axes)
        for _ in range(FRAMES):
            yaw = yaw + YAW * turn
            pitch = (pitch + PITCH * look).clamp(-PITCH_LIMIT, PITCH_LIMIT)
            sin, cos = (yaw * (math.pi / 180)).sin(), (yaw * (math.pi / 180)).cos()
            x = x + STEP * (sin * walk + cos * strafe)
            z = z + STEP * (cos * walk - sin * strafe)
            rows.append([x, z, yaw, pitch])
    columns = zip(*rows, strict=True)
    return Path(*(torch.stack(list(column), 1).float() for column in columns))


def _about_x(angle: Tensor) -> Tensor:
    one, zero = torch.ones_like(angle), torch.zeros_like(angle)
    sin, cos = angle.sin(), angle.cos()
    rows = [one, zero, zero, zero, cos, -sin, zero, sin, cos]
    return torch.stack(rows, -1).unflatten(-1, (3, 3))


def _about_y(angle: Tensor) -> Tensor:
    one, zero = torch.ones_like(angle), torch.zeros_like(angle)
    sin, cos = angle.sin(), angle.cos()
    rows = [cos, zero, sin, zero, one, zero, -sin, zero, cos]
    return torch.stack(rows, -1).unflatten(-1, (3, 3))
