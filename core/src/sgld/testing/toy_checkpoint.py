"""Complete toy checkpoints in diffusers layout, a few kilobytes each; written without torch.

`write_image`, `write_edit`, `write_video` and `write_world` `(folder: Path) -> None`. The bytes are
the same on every machine. A number `load_delay` in transformer/config.json makes loading take so
many seconds.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

WIDTH = 8
"""Channels of latents and of every hidden layer; as in `sgld.testing.toy`."""
LAYERS = 3
WORLD_LAYERS = 2
ACTIONS = 4
"""As in `sgld.testing.toy_world`."""

Shapes = dict[str, tuple[int, ...]]


def write_image(folder: Path) -> None:
    """The checkpoint of `toy-image`."""
    _write(folder, "ToyImagePipeline")


def write_edit(folder: Path) -> None:
    """The checkpoint of `toy-edit`."""
    _write(folder, "ToyEditPipeline")


def write_video(folder: Path) -> None:
    """The checkpoint of `toy-video`."""
    _write(folder, "ToyVideoPipeline")


def write_world(folder: Path) -> None:
    """The checkpoint of `toy-world`."""
    _write(folder, "ToyWorldPipeline", world=True)


def _write(folder: Path, class_name: str, *, world: bool = False) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    kind, vae = ("ToyWorldTransformer", "ToyWorldVae") if world else ("ToyTransformer", "ToyVae")
    parts = {
        "text_encoder": ("transformers", "ToyText", {"embed.weight": (256, WIDTH)}),
        "transformer": ("diffusers", kind, _world() if world else _transformer()),
        "vae": ("diffusers", vae, _linear("out", 3)),
    }
    index: dict[str, Any] = {"_class_name": class_name}
    for name, (library, kind, shapes) in parts.items():
        index[name] = [library, kind]
        stem = "model" if library == "transformers" else "diffusion_pytorch_model"
        (folder / name).mkdir(exist_ok=True)
        _json(folder / name / "config.json", {"_class_name": kind})
        tensors = {key: _draw(f"{name}.{key}", shape) for key, shape in shapes.items()}
        save_file(tensors, folder / name / f"{stem}.safetensors")
    _json(folder / "model_index.json", index)


def _transformer() -> Shapes:
    shapes = _linear("inlet", WIDTH) | _linear("outlet", WIDTH)
    for index in range(LAYERS):
        shapes |= _linear(f"blocks.{index}.mix", WIDTH) | _linear(f"blocks.{index}.text", WIDTH)
    return shapes


def _world() -> Shapes:
    shapes = _linear("inlet", WIDTH) | _linear("outlet", WIDTH) | _linear("action", WIDTH, ACTIONS)
    for index in range(WORLD_LAYERS):
        block = f"blocks.{index}"
        shapes |= _linear(f"{block}.mix", WIDTH) | _linear(f"{block}.text", WIDTH)
        shapes |= _linear(f"{block}.qkv", 3 * WIDTH)
    return shapes


def _linear(name: str, width: int, inputs: int = WIDTH) -> Shapes:
    return {f"{name}.weight": (width, inputs), f"{name}.bias": (width,)}


def _draw(name: str, shape: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.float32]]:
    generator = np.random.Generator(np.random.PCG64(zlib.crc32(name.encode())))
    return generator.normal(0, WIDTH**-0.5, shape).astype(np.float32)


def _json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
