"""The schedulers that Wan checkpoints name, made from their configuration files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from sgld.api.errors import ModelError

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
