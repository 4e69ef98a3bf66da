"""The time table of FLUX.1: Euler steps on shifted flow sigmas, from diffusers' scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from sgld.api.errors import ModelError
from sgld.engine.job import Job
from sgld.stages.sampler import SchedulerSampler
from sgld_flux.stages.latents1 import Grid

SCHEDULER: Final = "FlowMatchEulerDiscreteScheduler"


def check_scheduler(config: Mapping[str, Any]) -> None:
    """Raise ModelError unless `config` names the scheduler that FLUX.1 uses."""
    name = config.get("_class_name")
    if name != SCHEDULER:
        raise ModelError(
            f"scheduler _class_name={name!r} is not one that FLUX.1 uses.",
            remedy=f"Use {SCHEDULER} in scheduler/scheduler_config.json.",
        )


def flow_sampler(job: Job) -> SchedulerSampler:
    """The job's steps: all of them, or with an input picture the last `strength` of them."""
    from diffusers.schedulers.scheduling_flow_match_euler_discrete import (  # noqa: PLC0415
        FlowMatchEulerDiscreteScheduler,
    )

    config, steps = job.parts["scheduler"], job.params.num_inference_steps
    first = first_step(steps, job.params.strength) if job.request.images else 0
    return SchedulerSampler(
        lambda: FlowMatchEulerDiscreteScheduler.from_config(dict(config)),
        steps,
        job.device,
        first=first,
        sigmas=np.linspace(1.0, 1 / steps, steps),
        mu=shift_of(Grid.of(job).tokens, config),
    )


def first_step(steps: int, strength: float) -> int:
    """The step that a picture enters at: it is repainted for the last `strength` of the steps."""
    return min(int(max(steps - min(steps * strength, steps), 0)), steps - 1)


def shift_of(tokens: int, config: Mapping[str, Any]) -> float:
    """The exponent of the dynamic shift, linear in the image tokens: larger pictures, more noise.

    Used only by schedulers with `use_dynamic_shifting` (dev).
    """
    low, high = config.get("base_image_seq_len", 256), config.get("max_image_seq_len", 4096)
    base, most = config.get("base_shift", 0.5), config.get("max_shift", 1.15)
    slope = (most - base) / (high - low)
    return tokens * slope + base - slope * low
