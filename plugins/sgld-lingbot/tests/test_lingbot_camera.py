"""Keys to poses to rays against golden tensors, and the camera as a part of a state."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lingbot_golden import same, settings, tensors

from sgld.causal.errors import SnapshotError, StateError
from sgld_lingbot.models.camera import Matrix, Track, between, plucker, step, walk
from sgld_lingbot.models.dit import ChunkCamera
from sgld_lingbot.models.steering import Steering

ACTIONS: dict[str, list[list[str]]] = settings("camera_actions")["actions"]
RAYS = settings("camera_actions")["plucker"]
HEIGHT, WIDTH, FRAMES = RAYS["height"], RAYS["width"], RAYS["chunk_frames"]

LEVELS = st.lists(st.lists(st.sampled_from("wasdijkl"), unique=True, max_size=4), min_size=1)


def poses_of(levels: list[list[str]]) -> list[Matrix]:
    track, poses = Track.start(), [Track.start().pose]
    for level in levels:
        track = step(track, level)
        poses.append(track.pose)
    return poses


def whole_history(levels: list[list[str]]) -> Matrix:
    """The rule as it is described: everything again from the beginning."""
    poses = poses_of(levels)[1:]
    moves = [np.eye(4), *(np.linalg.inv(a) @ b for a, b in pairwise(poses))]
    longest = max(float(np.linalg.norm(move[:3, 3])) for move in moves)
    if longest < 1e-9:  # a general inverse is not exact: turning on the spot is no walk
        longest = 1.0
    for move in moves:
        move[:3, 3] /= longest
    return np.stack(moves)


@pytest.mark.parity
@pytest.mark.parametrize("name", ACTIONS)
def test_poses_are_golden(name: str) -> None:
    wanted = tensors("camera_actions")[f"{name}.c2w_f64"].numpy()
    np.testing.assert_allclose(np.stack(poses_of(ACTIONS[name])), wanted, rtol=0, atol=1e-12)


@pytest.mark.parity
@pytest.mark.parametrize("name", ACTIONS)
def test_steps_of_a_whole_walk_are_golden(name: str) -> None:
    moves, _ = walk(Track.start(), ACTIONS[name])
    same(torch.from_numpy(moves), tensors("camera_actions")[f"{name}.relative"].double())


@pytest.mark.parity
@pytest.mark.parametrize("name", RAYS["sequences"])
def test_rays_are_golden_chunk_by_chunk(name: str) -> None:
    golden, track = tensors("camera_actions")[f"{name}.plucker_chunks"], Track.start()
    for index, wanted in enumerate(golden):
        moves, track = walk(track, ACTIONS[name][index * FRAMES : (index + 1) * FRAMES])
        same(plucker(torch.from_numpy(moves).float(), HEIGHT, WIDTH)[0], wanted)
    assert track.frames == len(golden) * FRAMES


@pytest.mark.parity
def test_a_single_pose_gives_the_golden_rays() -> None:
    raw = tensors("camera_actions")["raw.plucker_hw6"]
    rays = plucker(tensors("camera_actions")["raw.c2w"], HEIGHT, WIDTH)[0, :, 0]
    unfolded = rays.reshape(6, 8, 8, HEIGHT // 8, WIDTH // 8).permute(3, 1, 4, 2, 0)
    same(unfolded.reshape(1, HEIGHT, WIDTH, 6), raw)


def test_a_chunk_alone_stands_still_at_first_and_then_walks_with_steps_of_one() -> None:
    moves, _ = walk(Track.start(), [["w"], ["w"], ["w"]])
    assert np.array_equal(moves[0], np.eye(4))
    assert np.allclose(moves[1:, :3, 3], [0, 0, 1])


def test_looking_further_up_than_the_limit_is_not_done_at_all() -> None:
    track = Track.start()
    for _ in range(30):
        track = step(track, ["i"])
    assert track.pitch == 84
    assert step(track, ["k"]).pitch == 80


@given(LEVELS, st.integers(1, 5))
def test_going_on_equals_beginning_again(levels: list[list[str]], size: int) -> None:
    track = Track.start()
    for end in range(size, len(levels) + 1, size):
        moves, track = walk(track, levels[end - size : end])
        wanted = whole_history(levels[:end])[-size:]
        np.testing.assert_allclose(moves, wanted, atol=1e-9)


@given(LEVELS)
def test_rotations_stay_rotations(levels: list[list[str]]) -> None:
    for pose in poses_of(levels):
        np.testing.assert_allclose(pose[:3, :3] @ pose[:3, :3].T, np.eye(3), atol=1e-12)
        assert np.array_equal(pose[3], [0, 0, 0, 1])
        np.testing.assert_allclose(between(pose, pose), np.eye(4), atol=1e-12)


CHUNKS = [[["w"], ["w", "l"]], [["a"], []], [["i"], ["j"]], [["s", "d"], ["k"]]]


def after(steering: Steering, chunks: list[list[list[str]]]) -> list[Matrix]:
    moves: list[Matrix] = []
    for levels in chunks:
        moves.append(steering.steer(levels))
        steering.commit()
    return moves


def test_a_chunk_that_is_steered_again_starts_from_the_same_place() -> None:
    steering = Steering()
    after(steering, CHUNKS[:2])
    first = steering.steer(CHUNKS[2])
    steering.steer(CHUNKS[3])
    assert np.array_equal(steering.steer(CHUNKS[2]), first)


def test_a_chunk_without_keys_leaves_the_camera_alone() -> None:
    walked, waited = Steering(), Steering()
    after(walked, CHUNKS[:1])
    after(waited, CHUNKS[:1])
    waited.commit()
    assert np.array_equal(after(walked, CHUNKS[1:2])[0], after(waited, CHUNKS[1:2])[0])


def test_rollback_fork_and_dump_go_on_alike() -> None:
    wanted = after(Steering(), CHUNKS)
    steering = Steering(undo=2)
    after(steering, CHUNKS)
    steering.rollback(2)
    twin, loaded = steering.fork(), Steering()
    values = json.loads(json.dumps(steering.dump()[0]))
    loaded.load(values, {})
    for part in (steering, twin, loaded):
        for ours, theirs in zip(after(part, CHUNKS[2:]), wanted[2:], strict=True):
            assert np.array_equal(ours, theirs)
    twin.rollback(1)
    assert steering.track.frames == 8
    assert twin.track.frames == 6


def test_more_than_is_remembered_is_not_taken_back() -> None:
    steering = Steering(undo=1)
    after(steering, CHUNKS)
    before = steering.track
    with pytest.raises(StateError, match="1 are remembered") as caught:
        steering.rollback(2)
    assert caught.value.code == "not_remembered"
    assert steering.track is before


def test_reset_and_free_drop_everything() -> None:
    steering = Steering(undo=1)
    after(steering, CHUNKS)
    steering.condition = ChunkCamera(torch.zeros(1, 384, 1, 2, 2))
    assert steering.nbytes() == 384 * 4 * 4
    steering.free()
    steering.free()
    assert steering.nbytes() == 0
    steering.reset()
    assert np.array_equal(after(steering, CHUNKS[:1])[0], after(Steering(), CHUNKS[:1])[0])


@pytest.mark.parametrize(
    "change",
    [
        {"pose": [[1.0]]},
        {"pose": "north"},
        {"pose": [[float("nan")] * 4] * 4},
        {"pitch": None},
        {"frames": "many"},
        {"longest": float("inf")},
    ],
)
def test_a_damaged_dump_is_refused_and_changes_nothing(change: dict[str, Any]) -> None:
    steering = Steering()
    after(steering, CHUNKS)
    before = steering.track
    with pytest.raises(SnapshotError):
        steering.load({**Steering().dump()[0], **change}, {})
    with pytest.raises(SnapshotError):
        steering.load({}, {})
    assert steering.track is before
