"""How a pipeline tells of its steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from sgld.engine.job import Job
from sgld_diffusers.talk import Talk

if TYPE_CHECKING:
    from sgld_diffusers.loaded import Served


class Step(NamedTuple):
    """A finished step, `number` from 1 of `total`, with the latents where they are handed out."""

    number: int
    total: int
    latents: torch.Tensor | None


class Steps:
    """Listens to one run: by `callback_on_step_end`, by the older `callback`, or by the progress
    bar of a pipeline that has neither.

    `latents` are those after the last step.
    """

    def __init__(self, served: Served, job: Job) -> None:
        self._how = served.described.steps
        self._names = served.tensor_names
        self._keep = job.request.want_latents
        self._asked = job.params.num_inference_steps
        self._done = 0
        self.talk: Talk | None = None
        self.latents: torch.Tensor | None = None

    def arguments(self) -> dict[str, Any]:
        """What the pipeline is called with so that it tells."""
        if self._how == "end":
            names = ["latents"] if "latents" in self._names else []
            return {
                "callback_on_step_end": self._on_end,
                "callback_on_step_end_tensor_inputs": names,
            }
        return {"callback": self._on_old, "callback_steps": 1} if self._how == "old" else {}

    def _on_end(self, pipeline: Any, index: int, time: Any, tensors: dict[str, Any]) -> Any:
        total = getattr(pipeline, "num_timesteps", None)
        self._tell(total, tensors.get("latents"))
        return {}

    def _on_old(self, index: int, time: Any, latents: torch.Tensor) -> None:
        self._tell(None, latents)

    def on_bar(self, total: int | None) -> None:
        """A step of the progress bar."""
        if not self._how:
            self._tell(total, None)

    def _tell(self, total: Any, latents: torch.Tensor | None) -> None:
        self._done += 1
        known = total if isinstance(total, int) and total > 0 else self._asked
        if latents is not None and self._keep:
            self.latents = latents.detach().clone()  # a pipeline may go on writing into them
        if self.talk is not None:
            self.talk.tell(Step(self._done, max(known, self._done), latents))


class Bar:
    """Takes the place of a tqdm bar."""

    def __init__(self, steps: Steps, total: int | None, items: Any = None) -> None:
        self._steps, self._total, self._items = steps, total, items

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __iter__(self) -> Any:
        for item in self._items:
            yield item
            self.update()

    def update(self, n: int = 1) -> None:
        """A step is done."""
        self._steps.on_bar(self._total)

    def set_description(self, *_: object, **__: object) -> None:
        """Nothing is shown."""

    def set_postfix(self, *_: object, **__: object) -> None:
        """Nothing is shown."""

    def close(self) -> None:
        """Nothing is held."""
