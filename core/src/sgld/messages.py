"""What crosses the executor's boundary: plain data only, so an engine may live anywhere.

A `Request` goes in; `Event`s come out. Arrays are numpy, parameters are JSON values; nothing here
refers to a module, a device or a file handle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

EventKind = Literal[
    "queued", "started", "stage", "step", "preview", "frames", "output", "failed", "cancelled",
    "done",
]  # fmt: skip
LAST: Final = ("done", "failed", "cancelled")
"""Kinds of the last event of a request."""


@dataclass(frozen=True, slots=True)
class Request:
    """Validated user input for one prompt.

    Args:
        id: unique within the engine.
        params: the family's parameters as JSON values, complete (every default filled in).
        seeds: one per output; output *i* is reproducible alone with `seeds[i]`.
        images: conditioning images, RGB uint8 [H, W, 3], in the order the user gave them.
        want_latents: keep the final latents of every output.
        preview_every: send denoised latents every so many steps; 0 sends none.
        profile: write a profiler trace of this request.
        previews: send so many decoded estimates of the result on the way, evenly spaced; fewer when
            there are fewer steps, none when the family has no way to make them.
        mask: bool [H, W] of the first image's size, True where it may change; None without one.
    """

    id: str
    params: Mapping[str, Any]
    seeds: tuple[int, ...]
    images: tuple[npt.NDArray[np.uint8], ...] = ()
    want_latents: bool = False
    preview_every: int = 0
    profile: bool = False
    previews: int = 0
    mask: npt.NDArray[np.bool_] | None = None


@dataclass(frozen=True, slots=True)
class Output:
    """One finished video or image.

    Args:
        index: which output of the request, from 0.
        seed: the seed that makes this output again alone.
        kind: `video` or `image`.
        frames: RGB uint8 [F, H, W, 3]; an image has F = 1.
        fps: frames per second; 0 for an image.
        parameters: every parameter really used, as JSON values.
        latents: final latents as the sampler left them, float32, only when asked for.
        timings: stage name → seconds of this output, and `total`.
    """

    index: int
    seed: int
    kind: Literal["video", "image"]
    frames: npt.NDArray[np.uint8]
    fps: int
    parameters: Mapping[str, Any]
    latents: npt.NDArray[np.float32] | None = None
    timings: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened to a request.

    `stage`, `step` (from 1) and `total` are filled for `step` and `preview`; `stage` for `stage`
    and `failed`; a `preview` has `latents`, or `frames` (RGB uint8 [F, H, W, 3], what the result
    looks like so far; of a clip perhaps one frame); `output` for `output`; `code` and `message` for
    `failed`. `frames` is a finished part of a clip that is made part by part: part `step` (from 1)
    of `total`, its pixels in `frames`; the output that follows holds them all.
    `seconds` are those that a stage took for `stage`, else those since the request was started.
    `at` is when it happened, in seconds since the epoch, where it is told later than that; else 0.
    The last event of a request is `failed`, `cancelled` or `done`, and there is exactly one.
    """

    kind: EventKind
    request_id: str
    index: int = 0
    stage: str = ""
    step: int = 0
    total: int = 0
    seconds: float = 0.0
    output: Output | None = None
    latents: npt.NDArray[np.float32] | None = None
    code: str = ""
    message: str = ""
    frames: npt.NDArray[np.uint8] | None = None
    at: float = 0.0
