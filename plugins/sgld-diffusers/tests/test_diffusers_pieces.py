"""Pipelines of other ages and shapes: how steps are told, and what a result may be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from sgld.api.errors import ParameterError, RequestError
from sgld.params.serving import ServingOptions
from sgld.plan import make_plan
from sgld.testing.engine_rig import EngineRig
from sgld_diffusers.reading.described import Described
from sgld_diffusers.reading.source import find_class
from sgld_diffusers.result import frames_of
from sgld_diffusers.talk import Talk

OTHERS = '''
import numpy as np
import torch
from PIL import Image

from diffusers import StableDiffusion3Pipeline
from diffusers.utils import BaseOutput


class Base(StableDiffusion3Pipeline):
    def _work(self, generator, steps, tell):
        latents = torch.randn((1, 16, 8, 8), generator=generator)
        for index in steps:
            latents = latents * 0.5
            tell(index, latents)
        pixels = self.vae.decode(latents, return_dict=False)[0].clamp(-1, 1)[0].permute(1, 2, 0)
        return Image.fromarray(((pixels + 1) * 127.5).numpy().astype(np.uint8))


class OldPipeline(Base):
    """With the older callback; a tuple comes back."""

    def __call__(self, prompt, num_inference_steps: int = 3, generator=None, callback=None,
                 callback_steps: int = 1):
        tell = lambda i, latents: callback(i, i, latents) if i % callback_steps == 0 else None
        return ([self._work(generator, range(num_inference_steps), tell)],)


class BarPipeline(Base):
    """With nothing but its progress bar, and no prompt."""

    def __call__(self, num_inference_steps: int = 3, generator=None):
        with self.progress_bar(total=num_inference_steps) as bar:
            picture = self._work(generator, range(num_inference_steps), lambda *_: bar.update())
        return BaseOutput(images=[picture])


class LoopPipeline(Base):
    """Its progress bar is what it loops over."""

    def __call__(self, prompt: str, num_inference_steps: int = 3, generator=None):
        steps = self.progress_bar(range(num_inference_steps))
        return BaseOutput(images=[self._work(generator, steps, lambda *_: None)])
'''


@pytest.fixture(scope="module")
def sd3(checkpoint: Callable[[str], Path]) -> Path:
    return checkpoint("sd3")


@pytest.mark.parametrize("name", ["OldPipeline", "BarPipeline", "LoopPipeline"])
def test_steps_are_told_whatever_the_class_is_like(
    sd3: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / f"others_{name.lower()}.py").write_text(OTHERS)
    monkeypatch.syspath_prepend(str(tmp_path))
    plan = make_plan(
        ServingOptions(
            model_path=str(sd3), device="cpu", pipeline_class_name=f"others_{name.lower()}:{name}"
        )
    )
    prompt = "" if name == "BarPipeline" else "a lamp"
    with EngineRig(plan, {"prompt": prompt}) as rig:
        request = rig.request(num_inference_steps=4)
        output = rig.run(request)
        steps = [(event.step, event.total) for event in rig.events(request, "step")]
        assert steps == [(1, 4), (2, 4), (3, 4), (4, 4)]
        assert output.frames.shape == (1, 64, 64, 3)
        assert (output.latents is not None) == (name == "OldPipeline")
        assert (output.parameters["width"], output.parameters["height"]) == (64, 64)
        with pytest.raises(ParameterError, match="makes its own size"):
            rig.request(width=32, height=32)
        if name == "OldPipeline":
            return
        with pytest.raises(ParameterError, match="does not hand out its latents"):
            rig.request(preview_every=1)
        if name == "BarPipeline":
            with pytest.raises(ParameterError, match="reads no prompt"):
                rig.request(prompt="a lamp")


def described(kind: str) -> Described:
    source = find_class("StableDiffusionPipeline")
    assert source is not None
    return Described(source, kind, {}, "", False, False, 1, 1, {}, "")


PIXELS = np.linspace(0, 1, 4 * 5 * 3, dtype=np.float32).reshape(4, 5, 3)
PICTURE = Image.fromarray((PIXELS * 255).round().astype(np.uint8))
FLAT = torch.from_numpy(PIXELS).movedim(-1, 0)
RESULTS = [
    SimpleNamespace(images=PIXELS[None]),
    SimpleNamespace(images=[PICTURE]),
    SimpleNamespace(images=FLAT[None]),
    SimpleNamespace(images=[PIXELS]),
    ([PICTURE],),
    {"images": PIXELS[None]},
    SimpleNamespace(image=np.concatenate([PIXELS, PIXELS[..., :1]], -1)[None]),
]


@pytest.mark.parametrize("result", RESULTS)
def test_a_picture_in_any_form(result: Any) -> None:
    found = frames_of(result, described("image"))
    assert found.shape == (1, 4, 5, 3)
    assert torch.allclose(found[0], torch.from_numpy(PIXELS), atol=1 / 255)


CLIPS = [
    SimpleNamespace(frames=np.stack([PIXELS] * 7)[None]),
    SimpleNamespace(frames=[[PICTURE] * 7]),
    SimpleNamespace(frames=[PICTURE] * 7),
    SimpleNamespace(frames=torch.stack([FLAT] * 7)[None]),
    SimpleNamespace(video=[np.stack([PIXELS] * 7)]),
    SimpleNamespace(frames=[[PIXELS] * 7]),
]


@pytest.mark.parametrize("result", CLIPS)
def test_a_clip_in_any_form(result: Any) -> None:
    found = frames_of(result, described("video"))
    assert found.shape == (7, 4, 5, 3)
    assert torch.allclose(found[3], torch.from_numpy(PIXELS), atol=1 / 255)


def test_a_grey_picture_is_rgb() -> None:
    found = frames_of(SimpleNamespace(images=PIXELS[None, ..., :1]), described("image"))
    assert found.shape == (1, 4, 5, 3)


@pytest.mark.parametrize("result", [SimpleNamespace(audios=[1]), SimpleNamespace(images=["x"]),
                                    SimpleNamespace(images=np.zeros((3, 2)))])  # fmt: skip
def test_what_is_no_picture_is_named(result: Any) -> None:
    with pytest.raises(RequestError, match="neither a picture nor a clip"):
        frames_of(result, described("image"))


def test_a_conversation_is_handed_over_and_ended() -> None:
    told: list[str] = []

    def work(talk: Talk) -> int:
        try:
            return 1 + talk.ask("one") + talk.ask("two")
        except BaseException as error:
            told.append(type(error).__name__)
            raise

    talk = Talk(work, torch.device("cpu"), "t")
    assert talk.begin().value == "one"
    assert talk.answer(10).value == "two"
    done = talk.answer(100)
    assert (done.kind, done.value) == ("done", 111)
    talk.end()
    other = Talk(work, torch.device("cpu"), "t")
    assert other.begin().value == "one"
    other.end()
    other.end()
    assert told == ["Ended"]
    assert not other._thread.is_alive()
