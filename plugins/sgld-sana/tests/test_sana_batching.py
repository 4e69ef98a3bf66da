"""Requests that join each other's forwards while they run give what they give alone.

Every engine here is driven by hand, so that a test decides at which step of one request the next
one arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sana_oracle

from sgld.engine.build import build_engine
from sgld.messages import Event, Request
from sgld.params.merge import Layer, build
from sgld.params.serving import ServingOptions
from sgld.plan import make_plan
from sgld.testing.parity import ParityTable

TABLE = ParityTable("sana")
SIZE = {"width": 96, "height": 64}


class Driven:
    """A loaded model whose engine turns when it is told to."""

    def __init__(self, folder: Path, **options: Any) -> None:
        given = {"model_path": str(folder), "device": "cpu", "dtype": "float32", **options}
        self.plan = make_plan(build(ServingOptions, [Layer("call", given)]).params)
        self.events: list[Event] = []
        self.engine = build_engine(self.plan, self.events.append)

    def submit(self, id: str, wish: dict[str, Any]) -> None:
        built = self.plan.build([Layer("call", wish)])
        values = built.params.model_dump(mode="json")
        self.engine.submit(Request(id, values, (wish["seed"],), want_latents=True))

    def turn(self, times: int = 1_000_000) -> None:
        for _ in range(times):
            if not self.engine.turn():
                return

    def latents(self, id: str) -> Any:
        failed = [event.message for event in self.events if event.kind == "failed"]
        assert not failed
        return next(
            event.output.latents
            for event in self.events
            if event.request_id == id and event.output is not None
        )

    def alone(self, wish: dict[str, Any]) -> Any:
        """The latents of a request that nobody joins."""
        self.submit("alone", wish)
        self.turn()
        found = self.latents("alone")
        self.events.clear()
        return found


@pytest.fixture(scope="module")
def driven(tiny: Callable[[str], Path]) -> Iterator[Callable[..., Driven]]:
    """Engines by variant and options, closed at the end."""
    held: dict[tuple[str, str], Driven] = {}

    def get(variant: str, batching: Any) -> Driven:
        key = (variant, str(batching))
        if key not in held:
            held[key] = Driven(tiny(variant), batching=batching, max_running=8)
        held[key].events.clear()
        return held[key]

    yield get
    for model in held.values():
        model.engine.close()
        model.plan.close()


def wishes(variant: str) -> list[dict[str, Any]]:
    """Four requests that differ in all they may differ in and still share a forward."""
    steps = (1, 2, 4, 3) if variant == "sprint" else (5, 3, 7, 2)
    scales = (4.5, 3.0, 1.0, 6.0)
    texts = ("a cat", "a ship in a storm, " * 30, "rain", "Two red kites")
    made: list[dict[str, Any]] = []
    for index, (count, scale, text) in enumerate(zip(steps, scales, texts, strict=True)):
        wish: dict[str, Any] = {
            "prompt": text,
            "seed": 11 * (index + 1),
            "num_inference_steps": count,
            "guidance_scale": scale,
            **SIZE,
        }
        if variant != "sprint":
            wish["negative_prompt"] = ("blurry", "", "fog", "dull " * 50)[index]
        if variant == "video":
            wish["num_frames"] = 5
        made.append(wish)
    return made


@pytest.mark.parity
@pytest.mark.parametrize("variant", ["sana", "sana15", "sprint", "video"])
def test_jobs_that_join_midway_equal_their_solo_runs(
    variant: str, driven: Any, tiny: Callable[[str], Path]
) -> None:
    shared, lonely = driven(variant, 16), driven(variant, "off")
    before = shared.engine.forwards.get("transformer", 0)
    asked = wishes(variant)
    for index, wish in enumerate(asked):
        shared.submit(f"r{index}", wish)
        shared.turn(3)  # two of the first one's texts and a step or so, then the next arrives
    shared.turn()
    forwards = shared.engine.forwards["transformer"] - before
    single = variant == "sprint"
    passes = [w["num_inference_steps"] * (1 if single or w["guidance_scale"] <= 1 else 2)
              for w in asked]  # fmt: skip
    assert forwards < sum(passes), "nothing was shared"
    for index, wish in enumerate(asked):
        found = shared.latents(f"r{index}")
        name = f"{variant} joined midway, request {index}"
        TABLE.check(f"{name} = alone", found, lonely.alone(wish), 1e-5)
        TABLE.check(name, found, reference(tiny(variant), wish), 1e-4)


def reference(folder: Path, wish: dict[str, Any]) -> Any:
    theirs = dict(wish)
    steps = theirs.pop("num_inference_steps")
    theirs["guidance"] = theirs.pop("guidance_scale")
    if "Sprint" in sana_oracle.class_name(folder) and steps != 2:
        theirs["intermediate_timesteps"] = None
    if sana_oracle.is_video(folder):
        theirs["prompt"] += " motion score: 30."
    return sana_oracle.run(folder, steps=steps, frames=False, **theirs).latents


def test_equal_starts_share_every_forward(driven: Any) -> None:
    """Four guided requests of equal length: one forward a step for all eight rows."""
    shared = driven("sana", 16)
    before = shared.engine.forwards.get("transformer", 0)
    wish = {**wishes("sana")[0], "num_inference_steps": 4}
    for index in range(4):
        shared.submit(f"r{index}", {**wish, "seed": index, "prompt": f"a cat {index}"})
    shared.turn()
    assert shared.engine.forwards["transformer"] - before == 4


def test_other_sizes_stay_apart(driven: Any) -> None:
    shared, lonely = driven("sana", 16), driven("sana", "off")
    first = wishes("sana")[0]
    other = {**wishes("sana")[1], "width": 160}
    shared.submit("a", first)
    shared.submit("b", other)
    shared.turn()
    assert shared.latents("a").shape == (1, 8, 2, 3)
    assert shared.latents("b").shape == (1, 8, 2, 5)
    for id, wish in (("a", first), ("b", other)):
        found = shared.latents(id)
        TABLE.check(f"mixed sizes, {id}", found, lonely.alone(wish), 1e-5)
