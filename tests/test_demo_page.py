"""The world in the box, as a newcomer meets it: `sgld serve` without a model, the page in a real
headless Chromium, keys and prompts. Judged by networks that the renderer has taught
(`examples/train_demo_world/judges`): how the camera moved between two pictures, and which look one
has. A machine without Chromium skips this.
"""

from __future__ import annotations

import base64
import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from browsing import World, chromium
from PIL import Image

from sgld.testing.served import Served, served_apart

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "train_demo_world"
if str(EXAMPLE) not in sys.path:  # tests import no siblings, and examples even less
    sys.path.insert(0, str(EXAMPLE))

from demo_world import judges, looks, motion  # noqa: E402  (see above)

CHUNK = 12
"""Pictures of a chunk, but for the first."""
PROMPTS = {
    "a clear cold night among tall columns": looks.Look("night", "clear", "cold", "tall"),
    "fog on a grey morning, low stones": looks.Look("day", "fog", "mono", "low"),
}
CLOCK = """
let time = 0;
globalThis.requestAnimationFrame = (draw) => setTimeout(() => draw(time += 1000 / 60), 4);
globalThis.cancelAnimationFrame = clearTimeout;
"""
"""A browser whose frames never come late, on however busy a machine: the player leaves out pictures
that are late, and the judges have to know how far apart two of them are."""
FILM = """() => {
  globalThis.film = [];
  const take = () => {
    const { width, height, dataset } = canvas;
    const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
    film.push([Number(dataset.chunk), dataset.eventId, new Uint8Array(data.buffer).toBase64()]);
  };
  new MutationObserver(take).observe(canvas, { attributeFilter: ["data-pictures"] });
}"""
"""Keeps every picture that the canvas shows."""

pytestmark = pytest.mark.multi_process


class Shown(NamedTuple):
    """A picture that was shown: of which chunk, which event it has seen, [3, H, W] in -1..1."""

    chunk: int
    event: str
    picture: torch.Tensor


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served_apart("", tmp_path_factory.mktemp("world"), "--device", "cpu") as served:
        yield served


@pytest.fixture(scope="module")
def taught() -> tuple[judges.Looks, judges.Steps]:
    found = judges.load(EXAMPLE / "judges")
    assert found is not None
    return found


@pytest.fixture
def world(server: Served) -> Iterator[World]:
    """The page with a session that has begun as it offers by itself."""
    with chromium() as browser:
        page = browser.new_page()
        page.add_init_script(CLOCK)
        page.set_default_timeout(60_000)
        complaints: list[str] = []
        page.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
        page.goto(f"{server.url}/")
        shown = World(page)
        page.evaluate(FILM)
        page.click("#start")
        yield shown
        assert not complaints


def film(world: World) -> list[Shown]:
    """Every picture so far."""
    height, width = 96, 160
    rows: list[Shown] = []
    for chunk, event, data in world.page.evaluate("() => film"):
        rgba = np.frombuffer(base64.b64decode(data), np.uint8).reshape(height, width, 4)
        picture = torch.from_numpy(rgba[..., :3].copy()).permute(2, 0, 1) / 127.5 - 1
        rows.append(Shown(chunk, event, picture))
    return rows


def steps(judge: judges.Steps, seen: list[Shown]) -> list[float]:
    """What the camera did from each latent frame to the next, on the mean: ahead, right, turned
    right, looked up, in steps of a key."""
    seen = seen[(len(seen) - 1) % motion.FRAMES :]
    return judge.tell(torch.stack([one.picture for one in seen])).mean(0).tolist()


def hold(world: World, key: str, chunks: int = 2) -> list[Shown]:
    """Hold a key until so many whole chunks have seen it, and let go; their pictures."""
    number = len(world.events()) + 1
    world.page.keyboard.down(key)
    world.until(f"c.eventId === '{number}'")
    first = next(one.chunk for one in film(world) if one.event == str(number))
    world.until(f"c.chunk >= {first + chunks}")
    world.page.keyboard.up(key)
    world.until(f"c.eventId === '{number + 1}'")
    return [one for one in film(world) if first <= one.chunk < first + chunks]


def say(world: World, prompt: str) -> list[Shown]:
    """Send a prompt; the last picture of the chunk before the first that has seen it, and of the
    second that has."""
    number = len(world.events()) + len(world.events("prompt")) + 1
    world.page.fill("#steer-text", prompt)
    world.page.keyboard.press("Enter")
    world.until(f"c.eventId === '{number}'")
    first = next(one.chunk for one in film(world) if one.event == str(number))
    world.until(f"c.chunk >= {first + 2}")
    shown = film(world)
    return [[one for one in shown if one.chunk == chunk][-1] for chunk in (first - 1, first + 1)]


def screenshot(world: World) -> torch.Tensor:
    """What there is to see of the canvas, [3, 96, 160] in -1..1."""
    with Image.open(io.BytesIO(world.page.locator("#canvas").screenshot())) as picture:
        wide, high = picture.size
        edge = (wide - high * 160 / 96) / 2  # what the canvas shows stands in its middle
        small = picture.convert("RGB").resize(
            (160, 96), Image.Resampling.BOX, (edge, 0, wide - edge, high)
        )
    return torch.from_numpy(np.array(small)).permute(2, 0, 1) / 127.5 - 1


def place_of(shot: torch.Tensor, shown: list[Shown]) -> int:
    """Which of the pictures a screenshot shows."""
    apart = torch.stack([(one.picture - shot).abs().mean() for one in shown]) * 127.5
    assert apart.min() < 4, "the screenshot shows none of the pictures"
    return int(apart.argmin())


def test_a_newcomer_walks_and_changes_the_weather(
    server: Served, world: World, taught: tuple[judges.Looks, judges.Steps]
) -> None:
    look, step = taught
    said = "no model is named: using demo:world, which sgld-demo 0.1.0 brings"
    assert any(said in line for line in server.lines)
    assert any(f"page={server.url}/" in line for line in server.lines)
    assert world.text("#model") == "demo:world"
    world.until("c.chunk >= 2")
    standing = [one for one in film(world) if one.chunk < 2]
    assert [one.chunk for one in standing] == [0] * 9 + [1] * CHUNK
    assert np.abs(steps(step, standing)).max() < 0.1, "nobody has touched a key"
    begun = screenshot(world)
    forward, right, turned, up = steps(step, hold(world, "w"))
    ended = screenshot(world)
    assert 0.7 < forward < 1.3
    assert max(abs(right), abs(turned), abs(up)) < 0.2
    shown = film(world)
    between = shown[place_of(begun, shown) : place_of(ended, shown) + 1]
    walked = steps(step, between)[0] * len(between) / motion.FRAMES
    assert walked > 4, "from one screenshot to the other"
    forward, right, turned, up = steps(step, hold(world, "s"))
    assert -1.3 < forward < -0.7
    assert max(abs(right), abs(turned), abs(up)) < 0.2
    told = looks.read_caption(world.page.input_value("#prompt"))
    for prompt, wanted in PROMPTS.items():
        before, after = look.tell(torch.stack([one.picture for one in say(world, prompt)]))
        assert (before, after) == (told, wanted)
        told = wanted
