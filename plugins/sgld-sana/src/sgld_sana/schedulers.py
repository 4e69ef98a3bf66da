"""The schedulers that SANA checkpoints name, and the samplers made of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch

from sgld.api.errors import ModelError
from sgld.stages.sampler import Estimates, Sampler

SHIFT_KEYS: Final = {
    "DPMSolverMultistepScheduler": "flow_shift",
    "FlowMatchEulerDiscreteScheduler": "shift",
}
"""Scheduler class → its word for the timestep shift. A file may leave the word out; that is 1."""
TRIGFLOW: Final = "SCMScheduler"


def check_scheduler(config: Mapping[str, Any], *, trigflow: bool) -> None:
    """Raise ModelError unless `config` names a scheduler of the variant; `trigflow` for Sprint."""
    name, known = config.get("_class_name"), [TRIGFLOW] if trigflow else list(SHIFT_KEYS)
    if name not in known:
        raise ModelError(
            f"scheduler _class_name={name!r} is not one that this SANA variant uses.",
            remedy=f"Use {' or '.join(known)} in scheduler/scheduler_config.json.",
        )
    flow = config.get("use_flow_sigmas", True) and (
        config.get("prediction_type", "flow_prediction") == "flow_prediction"
    )
    if name == "DPMSolverMultistepScheduler" and not flow:
        raise ModelError(
            "scheduler/scheduler_config.json: use_flow_sigmas must be true and prediction_type "
            "'flow_prediction'.",
            remedy="SANA predicts flow velocities; restore the published file.",
        )


def stored_shift(config: Mapping[str, Any]) -> float:
    """The timestep shift that the checkpoint asks for."""
    return float(config.get(SHIFT_KEYS[config["_class_name"]], 1.0))


def scheduler_maker(config: Mapping[str, Any], shift: float | None) -> Callable[[], Any]:
    """A function that makes a fresh scheduler of `config`, with another shift if one is given."""
    from diffusers.schedulers.scheduling_dpmsolver_multistep import (  # noqa: PLC0415
        DPMSolverMultistepScheduler,
    )
    from diffusers.schedulers.scheduling_flow_match_euler_discrete import (  # noqa: PLC0415
        FlowMatchEulerDiscreteScheduler,
    )

    name = config["_class_name"]
    classes = {
        "DPMSolverMultistepScheduler": DPMSolverMultistepScheduler,
        "FlowMatchEulerDiscreteScheduler": FlowMatchEulerDiscreteScheduler,
    }
    changed = dict(config)
    if shift is not None:
        changed[SHIFT_KEYS[name]] = shift

    def make() -> Any:
        scheduler: Any = classes[name].from_config(changed)
        table = getattr(scheduler, "alphas_cumprod", None)
        if isinstance(table, torch.Tensor):
            # Its set_timesteps turns this into an array, in a way that NumPy 2 deprecates.
            scheduler.alphas_cumprod = table.numpy()
        return scheduler

    return make


class PinnedFrameSampler:
    """Steps every latent frame but the first, which is given and stays as it is."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self.times: Sequence[float] = sampler.times

    def time(self, index: int) -> torch.Tensor:
        return self._sampler.time(index)

    def step(self, output: torch.Tensor, index: int, latents: torch.Tensor) -> torch.Tensor:
        stepped = self._sampler.step(output[:, :, 1:], index, latents[:, :, 1:])
        return torch.cat([latents[:, :, :1], stepped], dim=2)

    def estimate(
        self, output: torch.Tensor, index: int, latents: torch.Tensor
    ) -> torch.Tensor | None:
        """The given frame, and where the others lead."""
        if not isinstance(self._sampler, Estimates):
            return None
        clean = self._sampler.estimate(output[:, :, 1:], index, latents[:, :, 1:])
        return None if clean is None else torch.cat([latents[:, :, :1], clean], dim=2)


class TrigFlowSampler:
    """SANA-Sprint's sampler: angles instead of noise levels, fresh noise in every step.

    `clean` holds the last step's prediction of clean latents. Noise comes from the job's own
    generator, after the starting noise.

    Args:
        config: of diffusers' `SCMScheduler`.
        steps: how many.
        first: the first angle in radians.
        middle: the second of two angles; None shares the first one out evenly.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        steps: int,
        first: float,
        middle: float | None,
        device: torch.device,
        generator: torch.Generator,
    ) -> None:
        from diffusers.schedulers.scheduling_scm import SCMScheduler  # noqa: PLC0415

        self._scheduler: Any = SCMScheduler.from_config(dict(config))
        self._scheduler.set_timesteps(
            steps, device=device, max_timesteps=first, intermediate_timesteps=middle
        )
        self._scheduler.set_begin_index(0)
        self._generator = generator
        self._table: torch.Tensor = self._scheduler.timesteps[:-1]
        self.times: Sequence[float] = tuple(self._table.tolist())
        self.clean: torch.Tensor | None = None

    @property
    def sigma_data(self) -> float:
        """Deviation of clean latents, in whose unit the network works."""
        return float(self._scheduler.config.sigma_data)

    def time(self, index: int) -> torch.Tensor:
        return self._table[index]

    def step(self, output: torch.Tensor, index: int, latents: torch.Tensor) -> torch.Tensor:
        noisy, self.clean = self._scheduler.step(
            output, self._table[index], latents, generator=self._generator, return_dict=False
        )
        return noisy

    def estimate(
        self, output: torch.Tensor, index: int, latents: torch.Tensor
    ) -> torch.Tensor | None:
        """What the last step predicted, in the scale that is decoded."""
        return None if self.clean is None else self.clean / self.sigma_data
