"""A small random checkpoint from modules: the whole of a family's `tiny` blueprint.

    def tiny(folder: Path) -> None:
        write_random(folder, "MyPipeline", {"transformer": Transformer(), "vae": Decoder()})

Imports torch, like the modules it writes; a server has it run in a process of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import nn

from sgld.testing.randomness import reinitialise


def write_random(
    folder: Path,
    class_name: str,
    modules: Mapping[str, nn.Module],
    *,
    configs: Mapping[str, Mapping[str, Any]] | None = None,
    seed: int = 0,
) -> None:
    """Write `modules` with random weights in the diffusers layout, float32, the same on every run.

    Args:
        folder: made if it is not there.
        class_name: `_class_name` of model_index.json, which a pipeline recognises its own by.
        modules: component name → module; its parameters are overwritten.
        configs: component name → further values of its config.json.
        seed: of the weights.
    """
    folder.mkdir(parents=True, exist_ok=True)
    index: dict[str, Any] = {"_class_name": class_name}
    for number, (name, module) in enumerate(modules.items()):
        kind = type(module).__name__
        index[name] = ["diffusers", kind]
        config = {"_class_name": kind, **(configs or {}).get(name, {})}
        (folder / name).mkdir(exist_ok=True)
        _write_json(folder / name / "config.json", config)
        state = reinitialise(module, seed + number).state_dict()
        tensors = {key: tensor.contiguous() for key, tensor in state.items()}
        save_file(tensors, folder / name / "diffusion_pytorch_model.safetensors")
    _write_json(folder / "model_index.json", index)


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
