"""Previews: when they are due, what they show, and that nobody's result depends on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from sgld.engine.engine import Engine
from sgld.engine.job import Job
from sgld.engine.residency.movers import TorchMover
from sgld.engine.residency.store import ComponentStore
from sgld.engine.stage import Stage
from sgld.messages import Event, Output, Request
from sgld.stages.denoise import Denoise, Previews, preview_steps
from sgld.stages.renoise import RenoiseSampler
from sgld.stages.sampler import Estimates, SchedulerSampler
from sgld.testing.toy import ToyDenoiser, ToyParams, ToyPipeline, toy_modules

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("count", "total", "due"),
    [(0, 4, ()), (1, 4, (2,)), (2, 4, (1, 2)), (3, 4, (1, 2, 3)), (3, 28, (7, 14, 21)),
     (1, 1, ()), (3, 1, ()), (3, 2, (1,)), (1, 2, (1,)), (3, 3, (1, 2)), (10, 50, tuple(
         number * 50 // 11 for number in range(1, 11)))],
)  # fmt: skip
def test_previews_are_spread_evenly(count: int, total: int, due: tuple[int, ...]) -> None:
    assert preview_steps(count, total) == set(due)


def run(previews: int, pipeline: type[ToyPipeline] = ToyPipeline, **params: Any) -> list[Event]:
    events: list[Event] = []
    engine = Engine(
        pipeline=pipeline({}),
        validate=ToyParams.model_validate,
        store=ComponentStore(toy_modules(), {}, TorchMover(CPU)),
        device=CPU,
        emit=events.append,
    )
    engine.submit(Request("r", params, (5, 6), want_latents=True, previews=previews))
    while engine.turn():
        pass
    return events


def outputs(events: list[Event]) -> list[Output]:
    return [event.output for event in events if event.output is not None]


def shown(events: list[Event], index: int = 0) -> list[Event]:
    return [event for event in events if event.kind == "preview" and event.index == index]


def test_a_result_does_not_depend_on_who_watches() -> None:
    plain, watched = outputs(run(0)), outputs(run(3))
    for one, other in zip(plain, watched, strict=True):
        assert one.latents is not None
        assert other.latents is not None
        assert np.array_equal(one.frames, other.frames)
        assert np.array_equal(one.latents, other.latents)


def test_a_preview_is_where_the_path_leads() -> None:
    # The first of two Euler steps starts where the only step of a shorter run does, and its
    # estimate is that run's result.
    for index in (0, 1):
        preview = shown(run(1, num_inference_steps=2), index)
        assert [(event.step, event.total, event.stage) for event in preview] == [(1, 2, "denoise")]
        single = outputs(run(0, num_inference_steps=1))[index]
        assert preview[0].frames is not None
        assert preview[0].frames.dtype == np.uint8
        assert np.array_equal(preview[0].frames, single.frames)


def test_previews_come_after_their_step_and_before_the_next() -> None:
    events = [e for e in run(3, num_inference_steps=4) if e.index == 0]
    kinds = [(e.kind, e.step) for e in events if e.kind in ("step", "preview")]
    assert kinds == [("step", 1), ("preview", 1), ("step", 2), ("preview", 2), ("step", 3),
                     ("preview", 3), ("step", 4)]  # fmt: skip


class Blind:
    """A denoiser that cannot show anything."""

    def __init__(self) -> None:
        inner = ToyDenoiser()
        self.calls, self.combine, self.finish = inner.calls, inner.combine, inner.finish


class BlindPipeline(ToyPipeline):
    """The toy family before it learned to show previews."""

    def stages(self, params: ToyParams) -> Sequence[Stage]:
        made = list(super().stages(params))
        made[3] = Denoise(Blind())
        return made


def test_a_family_that_cannot_show_anything_still_works() -> None:
    assert not isinstance(Blind(), Previews)
    events = run(3, BlindPipeline)
    assert shown(events) == []
    assert np.array_equal(outputs(events)[0].frames, outputs(run(0))[0].frames)


class Scheduler:
    """A scheduler in diffusers' form; `reports` adds its own estimate to the answer of a step."""

    def __init__(self, reports: bool, sigmas: Sequence[float] | None) -> None:
        self._reports = reports
        if sigmas is not None:
            self.sigmas = torch.tensor(sigmas)

    def set_timesteps(self, steps: int, device: torch.device) -> None:
        self.timesteps = torch.arange(steps, 0, -1, device=device)

    def set_begin_index(self, index: int) -> None:
        pass

    def step(
        self, output: torch.Tensor, time: torch.Tensor, latents: torch.Tensor, return_dict: bool
    ) -> tuple[torch.Tensor, ...]:
        return (latents, latents + 7 * output) if self._reports else (latents,)


@pytest.mark.parametrize(
    ("reports", "sigmas", "first", "wanted"),
    [(False, (1.0, 0.75, 0.5, 0.0), 0, (9.0, 9.25, 9.5)), (False, (1.0, 0.75, 0.5, 0.0), 1,
     (9.25, 9.5)), (True, (1.0, 0.75, 0.5, 0.0), 0, (17.0,) * 3), (False, None, 0, (None,) * 3)],
)  # fmt: skip
def test_a_schedulers_estimate(
    reports: bool, sigmas: Sequence[float] | None, first: int, wanted: Sequence[float | None]
) -> None:
    sampler = SchedulerSampler(lambda: Scheduler(reports, sigmas), 3, CPU, first=first)
    assert isinstance(sampler, Estimates)
    velocity, latents = torch.tensor([1.0]), torch.tensor([10.0])
    made: list[float | None] = []
    for index in range(3 - first):
        sampler.step(velocity, index, latents)
        clean = sampler.estimate(velocity, index, latents)
        made.append(None if clean is None else clean.item())
    assert made == list(wanted)


def test_the_few_step_samplers_estimate_draws_no_noise() -> None:
    drawn: list[tuple[int, ...]] = []

    def noise(shape: tuple[int, ...]) -> torch.Tensor:
        drawn.append(shape)
        return torch.zeros(shape)

    sampler = RenoiseSampler((1000, 500), 1.0, noise, CPU)
    latents, velocity = torch.full((1, 2), 3.0), torch.ones(1, 2)
    assert sampler.estimate(velocity, 0, latents).tolist() == [[2.0, 2.0]]
    assert sampler.estimate(velocity, 1, latents).tolist() == [[2.5, 2.5]]
    assert drawn == []
    assert torch.equal(sampler.estimate(velocity, 1, latents), sampler.step(velocity, 1, latents))


def test_a_job_without_an_owner_shows_nothing() -> None:
    job = Job(id="r#0", request=Request("r", {}, (1,)), index=0, params=None, device=CPU, parts={})
    job.preview(1, 2, torch.zeros(1, 2, 2, 3))
