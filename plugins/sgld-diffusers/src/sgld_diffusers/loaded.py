"""A loaded pipeline, and how one request gets it for itself."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from sgld_diffusers.lent import Lent
from sgld_diffusers.reading.described import Described
from sgld_diffusers.steps import Bar, Steps
from sgld_diffusers.talk import Talk


class Served:
    """A pipeline object whose components are lent to the engine.

    Args:
        pipeline: as diffusers loaded it.
        described: what its class takes.
        modules: its components with weights.
        device: where they compute.
    """

    def __init__(
        self,
        pipeline: Any,
        described: Described,
        modules: Mapping[str, nn.Module],
        device: torch.device,
    ) -> None:
        self.described = described
        self.lent = {name: Lent(name, module, device) for name, module in modules.items()}
        self._pipeline = pipeline
        self._class = _on_device(type(pipeline), device)
        self._busy = False
        names = getattr(pipeline, "_callback_tensor_inputs", ["latents"])
        self.tensor_names: frozenset[str] = frozenset(names)

    def fresh(self, steps: Steps) -> Any:
        """The pipeline for one run: its own object and schedulers over the same components, so that
        nothing of a run that failed or was cancelled reaches the next."""
        made = copy.copy(self._pipeline)
        made.__class__ = self._class
        made.__dict__["_sgld_steps"] = steps
        for name, part in self._pipeline.components.items():
            if type(part).__name__.endswith("Scheduler"):
                made.__dict__[name] = copy.deepcopy(part)
        return made

    @contextmanager
    def lending(self, talk: Talk) -> Iterator[None]:
        """For the length of the block the components' calls by this run become wishes."""
        if self._busy:
            raise RuntimeError("a pipeline of diffusers runs one request at a time")
        self._busy = True
        for lent in self.lent.values():
            lent.listen(talk)
        try:
            yield
        finally:
            self._busy = False
            for lent in self.lent.values():
                lent.listen(None)


def _on_device(base: type[Any], device: torch.device) -> type[Any]:
    """The class with the engine's device and our progress bar: components that live on the host
    between their calls would name the wrong device."""

    def where(self: Any) -> torch.device:
        return device

    def progress_bar(self: Any, iterable: Any = None, total: int | None = None) -> Bar:
        steps: Steps = self._sgld_steps
        if iterable is not None and total is None:
            total = len(iterable) if hasattr(iterable, "__len__") else None
        return Bar(steps, total, iterable)

    names = {
        "_execution_device": property(where),
        "device": property(where),
        "progress_bar": progress_bar,
        "__module__": base.__module__,
        "__doc__": base.__doc__,
    }
    return type(base.__name__, (base,), names)
