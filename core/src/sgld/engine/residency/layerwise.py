"""Streams a module's repeated layers through the device, one ahead of the computation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from sgld.api.errors import FeatureError
from sgld.engine.residency.movers import Mover
from sgld.engine.residency.tensors import Swappable, tensors_of


def layers_of(module: nn.Module) -> list[nn.Module]:
    """The repeated layers of a module: what its `layer_groups()` says, else its longest ModuleList.

    Raises FeatureError when there is nothing to stream.
    """
    declared = getattr(module, "layer_groups", None)
    if declared is not None:
        return list(declared())
    lists = [child for child in module.modules() if isinstance(child, nn.ModuleList)]
    longest = max(lists, key=len, default=None)
    if longest is None or len(longest) < 2:
        raise FeatureError(
            f"{type(module).__name__} has no repeated layers to stream.",
            remedy="Use component-offload for it.",
        )
    return list(longest)


class Layerwise:
    """Holds a module's layers on the host and the rest of it on the device while it is in use.

    The next layer is copied while the present one computes; at most `ahead + 1` layers are on the
    device, in whatever order and however often the module calls them. One layer ahead hides the
    copy when a layer computes longer than it copies.
    """

    def __init__(self, module: nn.Module, mover: Mover, ahead: int = 1) -> None:
        self._mover = mover
        self._ahead = ahead
        layers = list(dict.fromkeys(layers_of(module)))
        own = _own_tensors(module, layers)
        moved = {id(tensor) for tensors in own for tensor in tensors}
        self._layers = [Swappable(tensors, mover) for tensors in own]
        self._rest = Swappable(
            [tensor for tensor in tensors_of(module) if id(tensor) not in moved], mover
        )
        for index, layer in enumerate(layers):
            layer.register_forward_pre_hook(self._before(index))
            # always_call: a layer that raises must not leave its copy behind.
            layer.register_forward_hook(self._after(index), always_call=True)

    def enter(self) -> None:
        """Bring the parts outside the layers to the device and start on the first layer."""
        self._rest.enter()
        self._fetch(0)

    def leave(self) -> None:
        """Give up every device copy."""
        for layer in self._layers:
            layer.leave()
        self._rest.leave()

    @property
    def device_bytes(self) -> int:
        """Bytes of layer copies on the device now."""
        return sum(layer.nbytes for layer in self._layers if layer.uploaded)

    def _fetch(self, index: int) -> None:
        if index < len(self._layers):
            with self._mover.ahead():
                self._layers[index].fetch()

    def _before(self, index: int) -> Any:
        def hook(module: nn.Module, inputs: Any) -> None:
            # What was fetched ahead for another order than the module has now only takes room.
            for other, layer in enumerate(self._layers):
                if layer.uploaded and not layer.entered and not 0 <= other - index <= self._ahead:
                    layer.leave()
            self._layers[index].enter()
            for step in range(1, self._ahead + 1):
                self._fetch(index + step)

        return hook

    def _after(self, index: int) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            self._layers[index].leave()

        return hook


def _own_tensors(module: nn.Module, layers: Sequence[nn.Module]) -> list[list[torch.Tensor]]:
    """Of each layer, the tensors that nothing else in the module has.

    What a layer shares with another one or with the rest is needed when the layer is not there.
    """
    inside = {id(part) for layer in layers for part in layer.modules()}
    outside = [part for part in module.modules() if id(part) not in inside]
    owners: Counter[int] = Counter()
    for part in outside:
        direct = [*part.parameters(recurse=False), *part.buffers(recurse=False)]
        owners.update({id(tensor) for tensor in direct})
    for layer in layers:
        owners.update({id(tensor) for tensor in tensors_of(layer)})
    return [[t for t in tensors_of(layer) if owners[id(t)] == 1] for layer in layers]
