"""The running state of one output of one request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from sgld.api.errors import RequestError
from sgld.messages import Request


class Slots:
    """Named values that stages hand to later stages, read and written as attributes.

    Reading a slot that no earlier stage wrote says so by name.
    """

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise RequestError(f"slot {name!r} was read before a stage wrote it")

    def __setattr__(self, name: str, value: Any) -> None:
        self.__dict__[name] = value

    def __contains__(self, name: str) -> bool:
        return name in self.__dict__

    def clear(self) -> None:
        """Drop every value."""
        self.__dict__.clear()


class FiniteWatch:
    """Notes whether tensors are finite without waiting for the device; asked once per stage."""

    def __init__(self) -> None:
        self._flags: list[tuple[int, torch.Tensor]] = []

    def note(self, tensor: torch.Tensor, step: int) -> None:
        """Remember, on the tensor's own device, whether all its values are finite."""
        self._flags.append((step, torch.isfinite(tensor).all()))

    def check(self, stage: str) -> None:
        """Raise `non_finite_output` naming stage and first bad step; waits for the device."""
        flags, self._flags = self._flags, []
        if not flags:
            return
        good = torch.stack([flag for _, flag in flags]).tolist()
        for (step, _), fine in zip(flags, good, strict=True):
            if not fine:
                where = f"stage {stage}, step {step}" if step else f"stage {stage}"
                raise RequestError(
                    f"{where} produced values that are not finite (NaN or infinity).",
                    code="non_finite_output",
                    remedy="Try --dtype float32, or check the checkpoint and its VAE.",
                )


Reporter = Callable[["Job", int, int, "torch.Tensor | None"], None]
Shower = Callable[["Job", int, int, torch.Tensor], None]
"""Told `(job, number, how many, frames)`."""


class Job:
    """What a stage works on: parameters, seed, device, loaded parts and the slots.

    Args:
        id: `<request id>#<index>`.
        request: the request this output belongs to.
        index: which output, from 0.
        params: the family's validated parameters.
        device: where latents live.
        parts: light parts of the checkpoint (tokenizer, scheduler configuration, ...), which are
            no modules and may be used directly.
        report: called by `progress`.
        show: called by `preview`.
        give: called by `hand_out`.
    """

    def __init__(
        self,
        *,
        id: str,
        request: Request,
        index: int,
        params: Any,
        device: torch.device,
        parts: Any,
        report: Reporter | None = None,
        show: Shower | None = None,
        give: Shower | None = None,
    ) -> None:
        self.id = id
        self.request = request
        self.index = index
        self.seed = request.seeds[index]
        self.params = params
        self.device = device
        self.parts = parts
        self.slots = Slots()
        self.stage = ""
        self.finite = FiniteWatch()
        # On the CPU, so that a seed means the same picture on every device and in every batch.
        # Stages of a causal pipeline put the generator of its state here.
        self.generator = torch.Generator("cpu").manual_seed(self.seed)
        self._report = report
        self._show = show
        self._give = give

    def noise(self, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Fresh standard normal noise from this job's own generator, on the job's device."""
        return torch.randn(shape, generator=self.generator, dtype=dtype).to(self.device)

    def progress(self, step: int, total: int, latents: torch.Tensor | None = None) -> None:
        """Tell the owner that `step` of `total` (from 1) is done; `latents` may be shown."""
        if latents is not None:
            self.finite.note(latents, step)
        if self._report is not None:
            self._report(self, step, total, latents)

    def preview(self, step: int, total: int, frames: torch.Tensor) -> None:
        """Show the owner what the result looks like after `step` of `total`: RGB in 0..1,
        [F, H, W, 3]."""
        if self._show is not None:
            self._show(self, step, total, frames)

    def hand_out(self, part: int, total: int, frames: torch.Tensor) -> None:
        """Give the owner a finished part of the clip, `part` (from 1) of `total`: RGB uint8
        [F, H, W, 3]; the caller does not write into it afterwards."""
        if self._give is not None:
            self._give(self, part, total, frames)

    def free(self) -> None:
        """Drop all tensors and the way to its owner; called on every way out."""
        self.slots.clear()
        self.finite = FiniteWatch()
        self._report = self._show = self._give = None
