"""The request that every family is asked, in our words and in those of its pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import diffusers_oracle
import numpy as np

import sgld
from sgld_diffusers.tiny import Family

PROMPT: Final = "a red kite over the sea"
OTHER: Final = "two blue boats in fog"
SIDE: Final = 64
STEPS: Final = 2
OWN: Final[dict[str, dict[str, Any]]] = {"sana": {"use_resolution_binning": False}}
"""Arguments without which a family makes another size than the one asked for."""


def ours(family: Family, **changes: Any) -> dict[str, Any]:
    """Arguments of `sgld.Model.generate`; `pictures` is how many to show it."""
    shown = changes.pop("pictures", min(family.pictures, 1))
    params: dict[str, Any] = {
        "prompt": PROMPT,
        "width": SIDE,
        "height": SIDE,
        "num_inference_steps": STEPS,
        "seed": 7,
        **dict.fromkeys(family.guidance, 3.0),
        **OWN.get(family.id, {}),
    }
    if family.negative_prompt:
        params["negative_prompt"] = "blurry"
    if family.stride:
        params["num_frames"] = family.stride + 1
    if shown:
        params["images"] = [np.asarray(picture) for picture in pictures(shown)]
    return {**params, **changes}


def theirs(family: Family, **changes: Any) -> dict[str, Any]:
    """The same for the pipeline's own call."""
    params = ours(family, **changes)
    shown = pictures(len(params.pop("images", [])))
    if shown:
        params["image"] = shown if family.pictures > 1 else shown[0]
    if family.id.startswith("ltx"):
        params["frame_rate"] = params.pop("fps", 25)
    return params


def load(folder: Path, **options: Any) -> sgld.Model:
    """A checkpoint through the fallback in this process."""
    return sgld.load(str(folder), backend="diffusers", device="cpu", dtype="float32", **options)


def pictures(count: int) -> list[Any]:
    """So many different pictures."""
    return [diffusers_oracle.picture(turn=turn) for turn in range(count)]
