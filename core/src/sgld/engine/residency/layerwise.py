"""Streams a module's repeated layers through the device, one ahead of the computation."""

from __future__ import annotations

from typing import Any

from torch import nn

from sgld.api.errors import FeatureError
from sgld.engine.residency.movers import Mover
from sgld.engine.residency.tensors import Swappable


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
    device. One layer ahead hides the copy when a layer computes longer than it copies.
    """

    def __init__(self, module: nn.Module, mover: Mover, ahead: int = 1) -> None:
        self._mover = mover
        self._ahead = ahead
        layers = layers_of(module)
        inside = {id(tensor) for layer in layers for tensor in _tensors(layer)}
        self._layers = [Swappable([layer], mover) for layer in layers]
        self._rest = _Rest(module, inside, mover)
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
            self._layers[index].enter()
            for step in range(1, self._ahead + 1):
                self._fetch(index + step)

        return hook

    def _after(self, index: int) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            self._layers[index].leave()

        return hook


class _Rest(Swappable):
    """The tensors of a module that belong to none of its layers."""

    def __init__(self, module: nn.Module, inside: set[int], mover: Mover) -> None:
        holder = nn.Module()
        for number, tensor in enumerate(_tensors(module)):
            if id(tensor) in inside:
                continue
            if isinstance(tensor, nn.Parameter):
                holder.register_parameter(str(number), tensor)
            else:
                holder.register_buffer(str(number), tensor)
        super().__init__([holder], mover)


def _tensors(module: nn.Module) -> list[Any]:
    return [*module.parameters(), *module.buffers()]
