"""The loaded components and where each one lives between calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

from torch import nn

from sgld.engine.residency.layerwise import Layerwise
from sgld.engine.residency.movers import Mover
from sgld.engine.residency.tensors import Swappable, tensors_of

Mode = Literal["resident", "component-offload", "layerwise-offload"]


class ComponentStore:
    """Lends components to the engine, moving each one as its residency says.

    `resident`: stays on the device. `component-offload`: comes to the device for its calls and
    stays until another offloaded component needs the room. `layerwise-offload`: its layers pass
    through the device one by one. The results are the same in every mode.
    """

    def __init__(self, modules: Mapping[str, nn.Module], modes: Mapping[str, Mode], mover: Mover):
        self._modules = dict(modules)
        self._swaps: dict[str, Swappable] = {}
        self._streams: dict[str, Layerwise] = {}
        self._visiting: str | None = None
        for name, module in self._modules.items():
            mode = modes.get(name, "resident")
            if mode == "component-offload":
                self._swaps[name] = Swappable(tensors_of(module), mover)
            elif mode == "layerwise-offload":
                self._streams[name] = Layerwise(module, mover)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the components."""
        return tuple(self._modules)

    @contextmanager
    def acquire(self, name: str) -> Iterator[nn.Module]:
        """The component, ready to run on the device for the length of the `with` block."""
        if name not in self._modules:
            known = ", ".join(sorted(self._modules))
            raise KeyError(f"no component {name!r} is loaded (there are: {known})")
        if name in self._streams:
            stream = self._streams[name]
            self._evict()
            try:
                stream.enter()  # inside: it may find room for a part only
                yield self._modules[name]
            finally:
                stream.leave()
            return
        if name in self._swaps and self._visiting != name:
            self._evict()
            self._swaps[name].enter()
            self._visiting = name
        yield self._modules[name]

    def on_device(self) -> tuple[str, ...]:
        """Names of the components that are wholly on the device now."""
        moving = {*self._swaps, *self._streams}
        resident = [name for name in self._modules if name not in moving]
        return (*resident, *([self._visiting] if self._visiting else []))

    def stays(self, name: str) -> bool:
        """Whether a component is there and never leaves the device."""
        return name in self._modules and name not in self._swaps and name not in self._streams

    def close(self) -> None:
        """Drop every component."""
        self._evict()
        self._modules.clear()
        self._swaps.clear()
        self._streams.clear()

    def _evict(self) -> None:
        if self._visiting is not None:
            self._swaps[self._visiting].leave()
            self._visiting = None
