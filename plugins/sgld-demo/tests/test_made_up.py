"""Text to video and text to picture: without an input picture the world is made up from its prompt,
and a judge that the renderer has taught sees the look that was asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

JUDGES = Path(__file__).parents[3] / "examples" / "train_demo_world" / "judges"
ASKED = {
    "a clear cold night among tall columns": ("night", "clear", "cold", "tall"),
    "fog on a grey morning, low stones": ("day", "fog", "mono", "low"),
    "sunset over a red desert": ("dusk", "clear", "warm", "tall"),
}


@pytest.fixture(scope="module")
def judge() -> Any:
    from demo_world import judges

    found = judges.load(JUDGES)
    assert found is not None
    return found[0]


def looks_of(judge: Any, frames: Any) -> list[tuple[str, ...]]:
    pictures = torch.from_numpy(np.array(frames)).permute(0, 3, 1, 2) / 127.5 - 1
    return [tuple(look) for look in judge.tell(pictures)]


def test_it_says_what_it_can_do(world: Any) -> None:
    plan = world.plan
    assert plan.tasks == ("image-to-video", "text-to-video", "text-to-image")
    assert Path(plan.blank).name == "grey.png"
    [(request, _)] = world.requests(prompt="night")
    assert (request.images[0] == 128).all()


@pytest.mark.parametrize("prompt", ASKED)
def test_text_to_video(world: Any, judge: Any, prompt: str) -> None:
    made = world.generate(prompt=prompt, num_frames=33, seed=5, camera_actions=[["w"]])
    assert made.frames.shape == (33, 96, 160, 3)
    assert looks_of(judge, made.frames[-1:]) == [ASKED[prompt]]


def test_text_to_picture(world: Any, judge: Any) -> None:
    """What a soft picture tells least is how high the pillars are."""
    for seed, (prompt, wanted) in enumerate(ASKED.items()):
        made = world.generate(prompt=prompt, num_frames=1, seed=seed)
        assert made.frames.shape == (1, 96, 160, 3)
        assert made.parameters["num_frames"] == 1
        assert looks_of(judge, made.frames)[0][:3] == wanted[:3]
        clip = world.generate(prompt=prompt, num_frames=9, seed=seed)
        assert (clip.frames[-1:] == made.frames).all(), "it is the last of the first chunk"


def test_two_seeds_are_two_places(world: Any) -> None:
    first, again, other = (
        world.generate(prompt="day", num_frames=1, seed=seed).frames.astype(float)
        for seed in (1, 1, 2)
    )
    assert (first == again).all()
    assert np.abs(first - other).mean() > 4
