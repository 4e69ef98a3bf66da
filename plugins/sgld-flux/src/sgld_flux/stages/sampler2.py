"""The schedule of FLUX.2: evenly spaced noise levels, shifted by a law found by trial.

Source: flux2 `sampling.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import torch

from sgld.api.errors import ModelError
from sgld.stages.sampler import SchedulerSampler

SCHEDULER: Final = "FlowMatchEulerDiscreteScheduler"
LONG: Final = 4300
"""Tokens from which the shift does not depend on the steps any more."""


def shift(tokens: int, steps: int) -> float:
    """The logarithm of the timestep shift for a picture of `tokens` latent tokens.

    Two straight lines over the tokens were fitted, for 10 and for 200 steps; between them it goes
    by the number of steps.
    """
    at_200 = 0.00016927 * tokens + 0.45666666
    if tokens > LONG:
        return at_200
    at_10 = 8.73809524e-05 * tokens + 1.89833333
    slope = (at_200 - at_10) / 190.0
    return slope * steps + at_200 - 200.0 * slope


def check_scheduler(config: Mapping[str, Any]) -> None:
    """Raise ModelError unless `config` names the scheduler that FLUX.2 uses."""
    name = config.get("_class_name")
    if name != SCHEDULER:
        raise ModelError(
            f"scheduler _class_name={name!r} is not one that FLUX.2 uses.",
            remedy=f"Use {SCHEDULER} in scheduler/scheduler_config.json.",
        )


class _Levels:
    """A scheduler that is given its noise levels and shift when its table is built."""

    def __init__(self, scheduler: Any, tokens: int) -> None:
        self._scheduler, self._tokens = scheduler, tokens
        self.set_begin_index: Callable[[int], None] = scheduler.set_begin_index
        self.step: Callable[..., Any] = scheduler.step

    @property
    def timesteps(self) -> torch.Tensor:
        return self._scheduler.timesteps

    @property
    def sigmas(self) -> torch.Tensor:
        return self._scheduler.sigmas

    def set_timesteps(self, steps: int, device: torch.device) -> None:
        levels = np.linspace(1.0, 1 / steps, steps)
        if self._scheduler.config.get("use_flow_sigmas"):
            levels = None
        self._scheduler.set_timesteps(
            steps, device=device, sigmas=levels, mu=shift(self._tokens, steps)
        )


def flux2_sampler(
    config: Mapping[str, Any], tokens: int, steps: int, device: torch.device
) -> SchedulerSampler:
    """The sampler of one job, whose picture has so many tokens."""
    from diffusers.schedulers.scheduling_flow_match_euler_discrete import (  # noqa: PLC0415
        FlowMatchEulerDiscreteScheduler,
    )

    def make() -> _Levels:
        return _Levels(FlowMatchEulerDiscreteScheduler.from_config(dict(config)), tokens)

    return SchedulerSampler(make, steps, device)
