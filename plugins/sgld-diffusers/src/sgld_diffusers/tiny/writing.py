"""Making small parts of diffusers' classes, and writing a pipeline of them as a folder."""

from __future__ import annotations

import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

from sgld.testing.encoders import quiet
from sgld.testing.randomness import reinitialise


def write(folder: Path, class_name: str, **components: Any) -> None:
    """Build diffusers' pipeline `class_name` of `components` and save it into `folder`.

    The layout is diffusers' own, because diffusers writes it. The folder is created if missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pipeline = made(class_name, **components)
    with quiet(), warnings.catch_warnings():
        # Loading and saving are the library's; its notes on its own future are no news here.
        warnings.simplefilter("ignore", FutureWarning)
        pipeline.save_pretrained(folder)


def network(class_name: str, seed: int, **settings: Any) -> Any:
    """A network of diffusers' class `class_name` with random float32 weights of `seed`."""
    return reinitialise(made(class_name, **settings), seed)


def euler(**settings: Any) -> Any:
    """The Euler scheduler of flow matching."""
    return made("FlowMatchEulerDiscreteScheduler", **settings)


def multistep(class_name: str) -> Any:
    """A multistep solver of one of diffusers' classes, as families of flow matching set it."""
    return made(class_name, flow_shift=3.0, prediction_type="flow_prediction", use_flow_sigmas=True)


def made(class_name: str, **settings: Any) -> Any:
    """An object of one of diffusers' classes, which are loaded when they are named."""
    return getattr(import_module("diffusers"), class_name)(**settings)
