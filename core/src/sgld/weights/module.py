"""Puts real tensors into a module that was built on the meta device.

A module built under `torch.device("meta")` has shapes and no memory. `slots` lists its tensors,
`place` swaps one in, and `finish` deals with what no checkpoint holds: buffers computed in
`__init__` (rotary tables, position ids). A module makes those itself by defining

    def materialise_buffers(self, device: torch.device) -> None

which is called on every submodule that has it; for foreign classes pass `finish=` a function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import nn

from sgld.api.errors import ModelError

Finish: TypeAlias = Callable[[nn.Module], None]


@dataclass(frozen=True, slots=True)
class Slot:
    """One tensor of a module that a checkpoint should fill.

    Args:
        names: every state-dict name it has; more than one when weights are tied.
        tensor: the tensor on the meta device.
        parameter: a parameter, else a persistent buffer.
    """

    names: tuple[str, ...]
    tensor: torch.Tensor
    parameter: bool


def build_on_meta(build: Callable[[], nn.Module]) -> nn.Module:
    """Call `build` so that it allocates nothing."""
    with torch.device("meta"):
        return build()


def slots(module: nn.Module) -> dict[str, Slot]:
    """Every parameter and persistent buffer by state-dict name; tied names share one slot."""
    names: dict[int, list[str]] = {}
    tensors: dict[int, tuple[torch.Tensor, bool]] = {}
    for prefix, owner in module.named_modules(remove_duplicate=False):
        hidden = owner._non_persistent_buffers_set
        own = [(leaf, tensor, True) for leaf, tensor in owner._parameters.items()]
        own += [(leaf, t, False) for leaf, t in owner._buffers.items() if leaf not in hidden]
        for leaf, tensor, parameter in own:
            if tensor is not None:
                names.setdefault(id(tensor), []).append(f"{prefix}.{leaf}" if prefix else leaf)
                tensors[id(tensor)] = (tensor, parameter)
    made = [Slot(tuple(names[key]), *tensors[key]) for key in names]
    return {name: slot for slot in made for name in slot.names}


def place(module: nn.Module, slot: Slot, tensor: torch.Tensor) -> None:
    """Put `tensor` where `slot` is, under all its names; parameters do not ask for gradients."""
    parameter = nn.Parameter(tensor, requires_grad=False) if slot.parameter else None
    for name in slot.names:
        prefix, _, leaf = name.rpartition(".")
        owner = module.get_submodule(prefix)
        if parameter is not None:
            owner._parameters[leaf] = parameter
        else:
            owner._buffers[leaf] = tensor


def materialise(module: nn.Module, device: torch.device, finish: Finish | None) -> None:
    """Let the module and the caller make the buffers that no checkpoint holds."""
    for part in module.modules():
        make = getattr(part, "materialise_buffers", None)
        if callable(make):
            make(device)
    if finish is not None:
        finish(module)


def number_positions(module: nn.Module, device: torch.device) -> None:
    """Fill every `position_ids` buffer inside `module` with 0, 1, …: transformers' CLIP towers make
    it in `__init__`, and no checkpoint holds it."""
    for part in module.modules():
        ids = part._buffers.get("position_ids")
        if ids is not None:
            part._buffers["position_ids"] = torch.arange(ids.shape[-1], device=device)[None]


def settle(module: nn.Module, device: torch.device, label: str) -> nn.Module:
    """Check that nothing is left on meta, move stray buffers to `device`, switch to eval mode.

    Raises:
        ModelError: some tensors have no data (`checkpoint_incomplete`), with their names.
    """
    left = _left(module)
    if left:
        shown = ", ".join(left[:10]) + (f" and {len(left) - 10} more" if len(left) > 10 else "")
        raise ModelError(
            f"{label}: {len(left)} tensors have no data after loading: {shown}.",
            code="checkpoint_incomplete",
            remedy="The module must make them in `materialise_buffers(device)`, or the loader in "
            "`finish=`.",
        )
    for part in module.modules():
        for leaf, buffer in part._buffers.items():
            if buffer is not None and buffer.device != device:
                part._buffers[leaf] = buffer.to(device)
    return module.eval().requires_grad_(False)


def _left(module: nn.Module) -> Sequence[str]:
    tensors = [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]
    return [name for name, tensor in tensors if tensor.is_meta]
