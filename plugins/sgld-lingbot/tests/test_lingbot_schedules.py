"""Noise levels and times of both tables against golden and published numbers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lingbot_golden import settings

from sgld_lingbot.schedules import RECIPES, TABLES, V1_STEPS, V2_STEPS, make_schedule
from sgld_lingbot.stages.renoise import ScheduledRenoise


@pytest.mark.parity
def test_the_table_of_the_published_script_is_golden() -> None:
    golden = settings("causal_fast")["schedule"]
    schedule = make_schedule(V2_STEPS, 10.0, "unipc")
    assert list(schedule.times) == golden["timesteps"]
    assert schedule.clean == pytest.approx(golden["sigma_x0"], abs=5e-7)
    assert schedule.noisy == pytest.approx(golden["sigma_renoise"], abs=5e-7)


@pytest.mark.parity
def test_the_table_of_realtime_servers_is_golden() -> None:
    golden = settings("realtime_dmd")["schedule"]
    schedule = make_schedule(golden["dmd_denoising_steps"], golden["flow_shift"], "self-forcing")
    assert schedule.times == pytest.approx(golden["timesteps"])
    assert schedule.clean == schedule.noisy == pytest.approx(golden["sigmas"])


@pytest.mark.parametrize(
    ("steps", "shift", "times"),
    [
        (V1_STEPS, 10.0, (1000, 978.6625, 947.182, 825.405)),
        (V2_STEPS, 10.0, (1000, 967.742, 909.091, 769.231)),
        (V1_STEPS, 5.0, (1000, 958.217, 899.664, 702.715)),
        (V2_STEPS, 5.0, (1000, 937.5, 833.333, 625)),
    ],
)
def test_warped_times_are_the_published_ones(
    steps: tuple[int, ...], shift: float, times: tuple[float, ...]
) -> None:
    assert make_schedule(steps, shift, "self-forcing").times == pytest.approx(times, abs=6e-4)


def test_v1_reads_whole_times_from_the_table_of_the_script() -> None:
    assert make_schedule(V1_STEPS, 10.0, "unipc").times == (999, 978, 947, 825)
    assert make_schedule(V1_STEPS, 5.0, "unipc").times == (999, 957, 899, 702)


@given(
    st.lists(st.integers(1, 1000), min_size=1, max_size=16, unique=True),
    st.floats(0.1, 100),
    st.sampled_from(TABLES),
)
def test_levels_fall_from_at_most_one(steps: list[int], shift: float, table: str) -> None:
    schedule = make_schedule(sorted(steps, reverse=True), shift, table)  # pyright: ignore
    for levels in (schedule.clean, schedule.noisy, schedule.times):
        assert len(levels) == len(steps)
        assert list(levels) == sorted(levels, reverse=True)
        assert 0 <= levels[-1] <= levels[0] <= (1 if levels is not schedule.times else 1000)
    for clean, noisy in zip(schedule.clean, schedule.noisy, strict=True):
        assert noisy <= clean


def test_the_sampler_predicts_at_one_level_and_adds_noise_at_the_other() -> None:
    schedule = make_schedule(V2_STEPS, 10.0, "unipc")
    ones = torch.ones(1, 1, 1, 1, 1)
    drawn: list[tuple[int, ...]] = []

    def noise(size: tuple[int, ...]) -> torch.Tensor:
        drawn.append(size)
        return ones * 7

    sampler = ScheduledRenoise(schedule, noise, torch.device("cpu"))
    level, clean = schedule.noisy[2], 2 - schedule.clean[1] * 3
    wanted = (1 - level) * clean + level * 7
    assert sampler.step(ones * 3, 1, ones * 2).item() == pytest.approx(wanted)
    assert drawn == [(1, 1, 1, 1, 1)]
    last = sampler.step(ones * 3, 3, ones * 2)
    assert last.item() == pytest.approx(2 - schedule.clean[3] * 3)
    assert len(drawn) == 1
    assert sampler.time(1).item() == 967


def test_every_recipe_leaves_room_for_a_chunk() -> None:
    for recipe in RECIPES.values():
        assert recipe.sink + recipe.chunk <= recipe.window
        assert len(make_schedule(recipe.steps, recipe.shift, recipe.table).times) == 4
