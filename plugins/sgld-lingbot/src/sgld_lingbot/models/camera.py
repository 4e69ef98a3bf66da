"""From action tokens to what the network is told about the camera.

    moves, track = walk(track, levels)             one 4×4 matrix per latent frame, relative, scaled
    rays = plucker(moves, height, width)           [1, 384, F, H/8, W/8]

A camera pose is camera-to-world with OpenCV axes: x right, y down, z forward. Of every pose only
the step from the pose before is told, its translation divided by the longest one of the session so
far (lingbot-world `wan/utils/cam_utils.py`). That makes the whole past matter, but only as a pose
and a length: `Track` is all that a session has to keep.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

Matrix = npt.NDArray[np.float64]

MOVE: Final = 0.05
"""World units per latent frame and key."""
PITCH: Final = 4.0
"""Degrees per latent frame and key."""
YAW: Final = 6.0
"""Degrees per latent frame and key."""
PITCH_LIMIT: Final = 85.0
"""Degrees; a step that would go beyond is not made at all."""
FLAT_EPS: Final = 1e-6
FOCAL: Final = 500.0
"""Pixels, whatever the size of the frame."""
FOLD: Final = 8
"""Pixels along each side that become channels of one latent pixel."""
CHANNELS: Final = 6 * FOLD * FOLD


class Track(NamedTuple):
    """Where a session's camera stands.

    Args:
        pose: camera-to-world [4, 4], float64.
        pitch: degrees looked up (positive) or down since the start.
        longest: length of the longest step that was told so far.
        frames: latent frames since the camera was first steered.
    """

    pose: Matrix
    pitch: float
    longest: float
    frames: int

    @classmethod
    def start(cls) -> Track:
        """The camera of a new session."""
        return cls(np.eye(4), 0.0, 0.0, 0)


def step(track: Track, level: Sequence[str]) -> Track:
    """The camera one latent frame later, with these keys held; `longest` is left as it is.

    Turns come first: up and down about the camera's own x axis, left and right about the world's y.
    Steps follow the ground: the view's direction without its height, of length one again. Opposite
    keys cancel, and two directions at once are not shortened.
    """
    held = frozenset(level)

    def axis(plus: str, minus: str) -> int:
        return (plus in held) - (minus in held)

    turn, pitch = PITCH * axis("i", "k"), track.pitch
    if abs(pitch + turn) > PITCH_LIMIT:
        turn = 0.0
    rotation = _about_y(YAW * axis("l", "j")) @ track.pose[:3, :3] @ _about_x(turn)
    forward, right = _flat(rotation[:, 2]), _flat(rotation[:, 0])
    pose = np.eye(4)
    pose[:3, :3] = rotation
    pose[:3, 3] = track.pose[:3, 3] + MOVE * (forward * axis("w", "s") + right * axis("d", "a"))
    return Track(pose, pitch + turn, track.longest, track.frames + 1)


def walk(track: Track, levels: Sequence[Sequence[str]]) -> tuple[Matrix, Track]:
    """The steps [F, 4, 4] that a chunk with these keys is told, and where the camera stands after.

    The very first frame of a session has no pose before it: it is told to stand still, whatever
    its keys do.
    """
    moves = np.empty((len(levels), 4, 4))
    longest = track.longest
    for frame, level in enumerate(levels):
        after = step(track, level)
        moves[frame] = between(track.pose, after.pose) if track.frames else np.eye(4)
        longest = max(longest, float(np.linalg.norm(moves[frame, :3, 3])))
        track = after
    if longest:
        moves[:, :3, 3] /= longest
    return moves, track._replace(longest=longest)


def between(before: Matrix, after: Matrix) -> Matrix:
    """The pose `after` as the camera at `before` sees it, [4, 4]."""
    move = np.eye(4)
    back = before[:3, :3].T
    move[:3, :3] = back @ after[:3, :3]
    move[:3, 3] = back @ (after[:3, 3] - before[:3, 3])
    return move


def plucker(moves: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Origin and direction of every pixel's ray, folded into channels: [1, 384, F, H/8, W/8].

    Channel c·64 + row·8 + column holds component c (origin x, y, z, direction x, y, z) of pixel
    (row, column) of each 8×8 square. Despite the usual name no moment is formed.

    Args:
        moves: relative poses [F, 4, 4], float32, on the device of the result.
        height: of a frame in pixels, a multiple of 8; `width` likewise.
    """
    device, frames = moves.device, moves.shape[0]
    x = (torch.arange(width, device=device) + 0.5 - width / 2) / FOCAL
    y = (torch.arange(height, device=device) + 0.5 - height / 2) / FOCAL
    ahead = torch.ones(height, width, device=device)
    rays = torch.stack([x.expand(height, width), y[:, None].expand(height, width), ahead])
    rays = rays / rays.norm(dim=0)
    directions = torch.einsum("fij,jhw->ifhw", moves[:, :3, :3], rays)
    origins = moves[:, :3, 3].T[:, :, None, None].expand_as(directions)
    lines = torch.cat([origins, directions])
    squares = lines.unflatten(3, (-1, FOLD)).unflatten(2, (-1, FOLD))  # c f h 8 w 8
    return squares.permute(0, 3, 5, 1, 2, 4).reshape(1, CHANNELS, frames, height // FOLD, -1)


def _flat(axis: Matrix) -> Matrix:
    level = axis * (1.0, 0.0, 1.0)
    return level / (np.linalg.norm(level) + FLAT_EPS)


def _about_x(degrees: float) -> Matrix:
    cos, sin = _turn(degrees)
    return np.array([[1, 0, 0], [0, cos, -sin], [0, sin, cos]])


def _about_y(degrees: float) -> Matrix:
    cos, sin = _turn(degrees)
    return np.array([[cos, 0, sin], [0, 1, 0], [-sin, 0, cos]])


def _turn(degrees: float) -> tuple[float, float]:
    angle = math.radians(degrees)
    return math.cos(angle), math.sin(angle)
