"""The few-step sampler: its table, its noise and its last step."""

from __future__ import annotations

import pytest
import torch

from sgld.stages.renoise import RenoiseSampler

CPU = torch.device("cpu")


def ones(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.ones(shape)


@pytest.mark.parametrize(
    ("shift", "levels"), [(8.0, (1.0, 0.756757, 0.521739)), (5.0, (1.0, 0.757098, 0.521562))]
)
def test_levels_come_from_the_nearest_entry_of_the_shifted_table(
    shift: float, levels: tuple[float, ...]
) -> None:
    sampler = RenoiseSampler((1000, 757, 522), shift, ones, CPU)
    assert sampler.times == (1000.0, 757.0, 522.0)
    assert [sampler.time(index).item() for index in range(3)] == [1000, 757, 522]
    # With x = v = 1 and unit noise a step shows both its levels.
    x, v = torch.ones(1, 2), torch.ones(1, 2)
    for index in range(2):
        wanted = (1 - levels[index + 1]) * (1 - levels[index]) + levels[index + 1]
        assert sampler.step(v, index, x)[0, 0].item() == pytest.approx(wanted, abs=2e-6)
    assert sampler.step(v, 2, x)[0, 0].item() == pytest.approx(1 - levels[2], abs=2e-6)


def test_the_last_step_draws_no_noise_and_keeps_the_precision() -> None:
    drawn: list[tuple[int, ...]] = []

    def noise(shape: tuple[int, ...]) -> torch.Tensor:
        drawn.append(shape)
        return torch.zeros(shape)

    sampler = RenoiseSampler((900, 400), 1.0, noise, CPU)
    x = torch.randn(1, 3, dtype=torch.bfloat16)
    for index in range(2):
        x = sampler.step(torch.zeros(1, 3), index, x)
        assert x.dtype == torch.bfloat16
    assert drawn == [(1, 3)]
