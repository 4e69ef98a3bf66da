"""The schedulers that Wan checkpoints name, made from their configuration files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from sgld.api.errors import ModelError

TRAIN_STEPS: Final = 1000
SHIFT_KEYS: Final = {
    "UniPCMultistepScheduler": "flow_shift",
    "FlowMatchEulerDiscreteScheduler": "shift",
}
"""Scheduler class → its word for the timestep shift. A file may leave the word out; that is 1."""


def check_scheduler(config: Mapping[str, Any]) -> None:
    """Raise ModelError unless `config` names a scheduler that Wan uses."""
    name = config.get("_class_name")
    if name not in SHIFT_KEYS:
        raise ModelError(
            f"scheduler _class_name={name!r} is not one that Wan uses.",
            remedy=f"Use one of {', '.join(SHIFT_KEYS)} in scheduler/scheduler_config.json.",
        )


def stored_shift(config: Mapping[str, Any]) -> float:
    """The timestep shift that the checkpoint asks for."""
    return float(config.get(SHIFT_KEYS[config["_class_name"]], 1.0))


def flow_unipc(shift: float) -> Callable[[], Any]:
    """A function that makes a fresh UniPC solver with the noise levels of Wan's own code, which
    LongLive uses: evenly spaced from 0.999 down, shifted, times cut to whole numbers
    (`wan/utils/fm_solvers_unipc.py`; diffusers' table begins at 1).
    """
    import torch  # noqa: PLC0415
    from diffusers.schedulers.scheduling_unipc_multistep import (  # noqa: PLC0415
        UniPCMultistepScheduler,
    )

    class OriginalTable(UniPCMultistepScheduler):
        def set_timesteps(self, num_inference_steps: Any, device: Any = None, **other: Any) -> None:
            super().set_timesteps(num_inference_steps, device=device, **other)
            steps = num_inference_steps
            grid = torch.linspace(1 - 1 / TRAIN_STEPS, 0, steps + 1, dtype=torch.float64)[:-1]
            sigmas = shift * grid / (1 + (shift - 1) * grid)
            self.sigmas = torch.cat([sigmas, sigmas.new_zeros(1)]).float()
            self.timesteps = (sigmas * TRAIN_STEPS).to(torch.int64).to(device)

    return lambda: OriginalTable(prediction_type="flow_prediction", use_flow_sigmas=True)


def scheduler_maker(config: Mapping[str, Any], shift: float | None) -> Callable[[], Any]:
    """A function that makes a fresh scheduler of `config`, with another shift if one is given."""
    from diffusers.schedulers.scheduling_flow_match_euler_discrete import (  # noqa: PLC0415
        FlowMatchEulerDiscreteScheduler,
    )
    from diffusers.schedulers.scheduling_unipc_multistep import (  # noqa: PLC0415
        UniPCMultistepScheduler,
    )

    name = config["_class_name"]
    classes = {
        "UniPCMultistepScheduler": UniPCMultistepScheduler,
        "FlowMatchEulerDiscreteScheduler": FlowMatchEulerDiscreteScheduler,
    }
    changed = dict(config)
    if shift is not None:
        changed[SHIFT_KEYS[name]] = shift
    return lambda: classes[name].from_config(changed)
