"""The stages that a family without peculiarities is made of, and the flow sampler."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from sgld import stages
from sgld.engine.call import Call
from sgld.engine.job import Job
from sgld.engine.stage import check_chain
from sgld.messages import Request

CPU = torch.device("cpu")


def job(**params: Any) -> Job:
    request = cast(Request, SimpleNamespace(seeds=(1,), previews=0))
    given = {"prompt": "a", "negative_prompt": "b", "uses_cfg": True, "guidance_scale": 3.0}
    settings = SimpleNamespace(**{**given, **params})
    return Job(id="r#0", request=request, index=0, params=settings, device=CPU, parts={})


def drive(stage: Any, running: Job, answer: Any) -> list[Any]:
    """Run a stage, answering every wish with `answer(wish)`; what it wished for."""
    wishes: list[Any] = []
    run = stage.run(running)
    result = None
    try:
        while True:
            wishes.append(run.send(result))
            result = answer(wishes[-1])
    except StopIteration:
        return wishes


@pytest.mark.parametrize("shift", [1.0, 3.0])
@pytest.mark.parametrize("steps", [1, 4, 9])
def test_a_straight_flow_is_followed_exactly(steps: int, shift: float) -> None:
    """With the true velocity any table of steps ends at the clean latents."""
    draw = torch.Generator().manual_seed(3)
    clean, noise = torch.randn(2, 1, 4, 5, generator=draw).unbind(0)
    sampler = stages.FlowSampler(steps, CPU, shift=shift)
    latents = noise
    for index in range(len(sampler.times)):
        time = float(sampler.time(index))
        assert time == pytest.approx(sampler.times[index])
        torch.testing.assert_close(latents, (1 - time) * clean + time * noise)
        torch.testing.assert_close(sampler.estimate(noise - clean, index, latents), clean)
        latents = sampler.step(noise - clean, index, latents)
    torch.testing.assert_close(latents, clean)


def test_a_shift_spends_steps_near_the_noise() -> None:
    assert stages.FlowSampler(4, CPU).times == (1.0, 0.75, 0.5, 0.25)
    assert stages.FlowSampler(4, CPU, shift=3.0).times == pytest.approx((1.0, 0.9, 0.75, 0.5))


def test_half_precision_is_rounded_once() -> None:
    sampler = stages.FlowSampler(3, CPU)
    x, v = torch.randn(2, 64, generator=torch.Generator().manual_seed(1)).bfloat16().unbind(0)
    stepped = sampler.step(v, 0, x)
    assert stepped.dtype == torch.bfloat16
    exact = x.double() + (sampler.times[1] - sampler.times[0]) * v.double()
    assert torch.equal(stepped, exact.float().bfloat16())


@pytest.mark.parametrize("guided", [True, False])
def test_text_is_encoded_for_the_passes_that_run(guided: bool) -> None:
    running = job(uses_cfg=guided)
    stage = stages.EncodePrompt(lambda text: {"ids": torch.tensor([list(text.encode())])})
    (calls,) = drive(stage, running, lambda wish: [call.inputs["ids"] * 2 for call in wish])
    assert [call.component for call in calls] == ["text_encoder"] * (1 + guided)
    assert len({call.memo for call in calls}) == len(calls), "texts are remembered apart"
    assert running.slots.text.tolist() == [[2 * ord("a")]]
    negative = running.slots.negative
    assert negative is None if not guided else negative.tolist() == [[2 * ord("b")]]


def denoiser() -> stages.Guidance:
    def predict(job: Job, time: torch.Tensor, text: Any) -> Call:
        inputs = {"latents": job.slots.latents, "time": time, "text": text}
        return Call("transformer", inputs, batch_key="x")

    def decode(job: Job, latents: torch.Tensor) -> stages.Frames:
        return (yield Call("vae", {"latents": latents}, method="decode"))

    return stages.Guidance(predict, decode)


@pytest.mark.parametrize("guided", [True, False])
def test_guidance_runs_one_pass_or_two(guided: bool) -> None:
    """Against the formula, negative + scale·(positive - negative)."""
    running = job(uses_cfg=guided)
    running.slots.latents = torch.ones(1, 2)
    running.slots.sampler = stages.FlowSampler(2, CPU)
    running.slots.text, running.slots.negative = 5.0, 4.0
    wishes = drive(
        stages.Denoise(denoiser()),
        running,
        lambda wish: [torch.full((1, 2), call.inputs["text"]) for call in wish],
    )
    assert [[call.inputs["text"] for call in wish] for wish in wishes] == [
        [5.0, 4.0] if guided else [5.0]
    ] * 2
    assert [wish[0].inputs["time"].tolist() for wish in wishes] == [[1.0], [0.5]]
    velocity = 4.0 + 3.0 * (5.0 - 4.0) if guided else 5.0
    assert running.slots.latents.tolist() == [[1 - velocity, 1 - velocity]]


def test_a_preview_is_decoded_like_the_result() -> None:
    running, made = job(), denoiser()
    running.slots.latents = torch.zeros(1, 2)
    decode = stages.Decode(made.preview)
    (wish,) = drive(decode, running, lambda wish: wish.inputs["latents"] + 1)
    assert (wish.component, wish.method) == ("vae", "decode")
    assert running.slots.frames.tolist() == [[1.0, 1.0]]


def test_the_usual_order_is_a_chain() -> None:
    made = denoiser()
    check_chain(
        [
            stages.EncodePrompt(lambda text: {}),
            stages.Timesteps(lambda job: stages.FlowSampler(1, CPU)),
            stages.InitialNoise(lambda job: (1, 2)),
            stages.Denoise(made),
            stages.Decode(made.preview),
        ]
    )
