"""A model family as the engine sees it: how to load its parts and which stages do the work."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import nn

from sgld.api.errors import RequestError
from sgld.engine.job import Job
from sgld.engine.stage import Stage

if TYPE_CHECKING:
    from sgld.engine.loading import Loader


@dataclass(slots=True)
class Loaded:
    """What came out of a checkpoint.

    Args:
        modules: component name → module; reached by calls only.
        parts: light things a stage uses directly: tokenizers, configurations, sampler factories.
    """

    modules: dict[str, nn.Module] = field(default_factory=dict)
    parts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Media:
    """A job's finished picture or video before it leaves the engine.

    Args:
        frames: RGB in 0..1, or uint8, [F, H, W, 3], on any device.
        fps: frames per second; 0 for an image.
        latents: the sampler's final latents.
    """

    kind: Literal["video", "image"]
    frames: torch.Tensor
    fps: int
    latents: torch.Tensor | None = None


class Pipeline(ABC):
    """An ordered list of stages plus the components they need.

    One object serves every request of a model, so it holds no request state.
    """

    batch_tokens: ClassVar[int] = 0
    """Rows of different jobs share a forward automatically while it holds at most so many tokens:
    the size from which one forward fills the device the family is meant for."""

    float32_groups: ClassVar[tuple[str, ...]] = ()
    """Residency groups that stay float32 when the user leaves the precision to us."""

    def __init__(self, parts: Mapping[str, Any]) -> None:
        self.parts = parts

    @classmethod
    @abstractmethod
    def load(cls, loader: Loader) -> Loaded:
        """Load every component through `loader`, which knows device, precision and weights."""

    @abstractmethod
    def stages(self, params: Any) -> Sequence[Stage]:
        """The stages for a request with these parameters, in order."""

    @abstractmethod
    def media(self, job: Job) -> Media:
        """The result of a job whose stages have all run."""

    def used(self, job: Job) -> Mapping[str, Any]:
        """Parameters that the request left to the checkpoint, as they really were; JSON values."""
        return {}


def stages_of(pipeline: Pipeline, method: str, params: Any) -> list[Stage]:
    """What `pipeline.stages(params)` gives, or another `method` that answers with stages.

    Raises RequestError when that is no sequence of stages.
    """
    given: Any = getattr(pipeline, method)(params)
    stages = list(given) if isinstance(given, Iterable) else [given]
    for each in stages:
        if not isinstance(each, Stage):
            what = f"{given!r:.60}" if each is given else f"{each!r:.60} among its stages"
            raise _wrong(pipeline, method, what, "a sequence of sgld.engine.stage.Stage")
    return stages


def media_of(pipeline: Pipeline, job: Job) -> Media:
    """What `pipeline.media(job)` gives.

    Raises RequestError when that is no `Media` with frames [F, H, W, 3].
    """
    media: Any = pipeline.media(job)
    if not isinstance(media, Media):
        raise _wrong(pipeline, "media", f"{media!r:.60}", "a sgld.engine.pipeline.Media")
    frames: Any = media.frames
    if not isinstance(frames, torch.Tensor):
        raise _wrong(pipeline, "media", f"frames {frames!r:.60}", "a tensor [F, H, W, 3] of them")
    if frames.ndim != 4 or frames.shape[-1] != 3:
        shape = list(frames.shape)
        raise _wrong(pipeline, "media", f"frames of shape {shape}", "frames as [F, H, W, 3]")
    return media


def _wrong(pipeline: Pipeline, method: str, what: str, wanted: str) -> RequestError:
    return RequestError(
        f"pipeline {type(pipeline).__qualname__}: {method}() returned {what}.",
        remedy=f"It must return {wanted}.",
    )
