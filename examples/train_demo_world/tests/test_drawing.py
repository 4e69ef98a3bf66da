"""Looks, keys and pictures: the same wherever they are made."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from demo_world import data, looks, motion, scene, world
from hypothesis import given
from hypothesis import strategies as st

from sgld_lingbot.models.camera import Track, walk

CPU = torch.device("cpu")


@given(st.integers(0, 2**30))
def test_a_caption_says_its_look(seed: int) -> None:
    draw = random.Random(seed)
    look = looks.random_look(draw)
    assert looks.read_caption(looks.random_caption(look, draw)) == look
    assert looks.read_caption(looks.plain_caption(look)) == look
    assert looks.changed(look, draw) != look


def test_the_tokenizer_reads_captions_as_training_does(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    looks.write_tokenizer(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    draw = random.Random(3)
    captions = [looks.random_caption(looks.random_look(draw), draw) for _ in range(40)]
    captions += ["A Misty, blue evening.", "grues," * 30, ""]
    for caption in captions:
        read = tokenizer(
            [caption],
            padding="max_length",
            max_length=looks.TEXT_LENGTH,
            truncation=True,
            return_attention_mask=True,
        )
        ids = looks.token_ids(caption)
        assert read["input_ids"][0] == ids
        assert read["attention_mask"][0] == [int(number != 0) for number in ids]


def test_all_looks_differ() -> None:
    path = motion.Path(*(torch.full((36,), value) for value in (0.3, 0.1, 20.0, 2.0)))
    drawn = world.draw(scene.table(), path, torch.full((36,), 5), height=12, width=20)
    apart = torch.cdist(drawn.flatten(1), drawn.flatten(1)) + torch.eye(36) * 9
    assert drawn.min() >= -1
    assert drawn.max() <= 1
    assert apart.min() > 0.1


COMPARE = """
import torch
from demo_world import scene, world, world_kernel
numbers = scene.table()[[0, 17]]
numbers[:, scene.HILLS :] = scene.hills(torch.tensor([3, 4]))
cameras = torch.tensor([[0.2, -3.4, 0.5, 0.866025, 0.1, 0.994987], [9.1, 2.2, -1, 0, 0, 1]])
given = numbers, cameras, torch.tensor([3, 4]), 16, 16
one, two = world_kernel.draw_frames(*given, torch.float32), world.draw_plain(*given)
torch.testing.assert_close(one, two, atol=1e-4, rtol=0)
print("same", float(two.std()) > 0.1)
"""


def test_the_kernel_draws_what_plain_torch_draws() -> None:
    """In a process of its own: Triton must hear of its interpreter before it is imported."""
    pytest.importorskip("triton")
    folder = Path(__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-c", COMPARE],
        capture_output=True,
        text=True,
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(folder)},
        check=False,
    )
    assert done.stdout.split() == ["same", "True"], done.stderr


def test_pillars_sink_where_one_walks() -> None:
    """At its middle a pillar is gone, from afar it stands, and between it only rises."""
    far = torch.linspace(0, 3, 301)
    risen = world._risen(far * 0.6, far * 0.8)
    assert (risen[far <= scene.SUNK] < 1e-6).all()
    assert (risen[far >= scene.WHOLE + 0.01] == 1).all()
    assert (risen.diff() >= 0).all()
    seed, places = torch.tensor(5), torch.cartesian_prod(torch.arange(40), torch.arange(40))
    there = (world.hashed(places[:, 0], places[:, 1], seed) & 255) < world.RARE
    x, z = (places[there] + 0.5).float().unbind(1)
    assert len(x) > 50
    hit, _, _ = world._pillars(
        *(value[:, None] for value in (x, z)),
        *(torch.full((len(x), 1), value) for value in (0.6, 0.0, 0.8)),
        torch.full((len(x), 1), 5), torch.ones(len(x), 1),
    )  # fmt: skip
    assert hit.min() > 0.3  # nothing right before the eye


def test_a_new_look_is_there_at_the_end_of_its_chunk() -> None:
    rows = scene.table()
    blended = scene.blend(torch.tensor([[3, 3, 8]]), torch.tensor([30]), torch.tensor([1]), rows)[0]
    seen = blended[:, : scene.HILLS]
    rows = rows[:, : scene.HILLS]
    assert torch.equal(seen[0], rows[30])
    torch.testing.assert_close(seen[8:21], rows[3].expand(13, -1))
    torch.testing.assert_close(seen[32], rows[8])
    assert not torch.allclose(seen[21], rows[3], atol=1e-3)


def test_keys_are_told_as_the_family_does() -> None:
    clips = data.sample(24, 5, 9, CPU)
    clips = clips._replace(
        told=motion.tell(clips.axes, clips.told_from, torch.zeros(24)),
    )
    assert {0, 1} <= set(clips.told_from.tolist())
    for clip in range(24):
        first, track = int(clips.told_from[clip]) * 3, Track.start()
        levels = motion.levels_of(clips.axes, clip)
        for index in range(first, 15, 3):
            moves, track = walk(track, levels[index : index + 3])
            told = clips.told.moves[clip, index : index + 3].numpy()
            np.testing.assert_allclose(moves[:, :3], told, atol=1e-5)
        assert clips.told.known[clip].tolist() == [n >= first for n in range(15)]


def test_told_pitch_ends_where_the_family_ends_it() -> None:
    levels = [["i"]] * 30
    told = motion.tell(motion.axes_of(levels), torch.tensor([0]), torch.tensor([0.0]))
    moves, _ = walk(Track.start(), levels)
    np.testing.assert_allclose(moves[:, :3], told.moves[0].numpy(), atol=1e-5)


def test_nothing_moves_before_the_camera_is_told_of() -> None:
    axes = motion.axes_of([["w", "l", "i"]] * 9)
    start = motion.Start(*(torch.tensor([value]) for value in (1.0, 2.0, 30.0, 0.0)))
    path = motion.follow(axes, torch.tensor([1]), start)
    still = 4 * 3 + 1  # chunk 0, and the first latent frame after it
    for value in path:
        assert (value[0, :still] == value[0, 0]).all()
        assert value[0, still] != value[0, 0]
    assert path.pitch.max() <= motion.PITCH_LIMIT
    assert path.yaw[0, -1] == pytest.approx(30 + 5 * motion.YAW)


def test_levels_and_axes_say_the_same() -> None:
    axes = motion.random_axes(3, 12, torch.Generator().manual_seed(1))
    back = motion.axes_of(motion.levels_of(axes, 2))
    for one, two in zip(axes, back, strict=True):
        assert torch.equal(one[2], two[0])


def test_clips_follow_from_their_seed() -> None:
    one, two, other = (data.sample(3, 2, seed, CPU) for seed in (4, 4, 5))
    pictures = [clips.draw(size=(8, 16), part=slice(0, 2)) for clips in (one, two, other)]
    assert torch.equal(pictures[0], pictures[1])
    assert not torch.equal(pictures[0], pictures[2])
    assert torch.equal(one.captions, two.captions)
