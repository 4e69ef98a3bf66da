"""Which files of a checkpoint hold which component: the answer a family gives before any loading.

A family whose checkpoints come only in the diffusers layout needs nothing of its own; one with
other layouts names a torch-free `layout` target in its `PipelineSpec`, giving the same records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sgld.weights.components import (
    NO_OVERRIDES,
    ComponentOverrides,
    component_folder,
    component_weights,
    read_index,
)
from sgld.weights.files import ModelFiles, read_json

CONFIG = "config.json"


class Located(NamedTuple):
    """One module of a checkpoint.

    Args:
        name: component name as in model_index.json.
        group: residency group (`dit`, `text_encoder`, `image_encoder`, `vae`).
        config: its configuration, in the diffusers layout's terms.
        weights: what `Checkpoint.open` is given: a folder, a file, or several files.
        naming: `diffusers`, or the family's word for another naming of the tensors.
        folder: the folder that holds its configuration, if it has one.
    """

    name: str
    group: str
    config: Mapping[str, Any]
    weights: Path | Sequence[Path]
    naming: str = "diffusers"
    folder: Path | None = None


def diffusers_layout(
    files: ModelFiles,
    groups: Mapping[str, str],
    overrides: ComponentOverrides = NO_OVERRIDES,
) -> list[Located]:
    """The modules of a folder with a model_index.json, in the order of `groups`.

    Components that the index leaves out or sets to null are not there; those that `groups` does
    not name (tokenizers, schedulers) are no modules.

    Raises:
        ModelError: a component's folder or configuration is missing or damaged.
        ParameterError: an override names a component that the model does not have.
    """
    index = read_index(files)
    names = [name for name in groups if index is not None and name in index.components]
    overrides.validate(names)
    located: list[Located] = []
    for name in names:
        folder = component_folder(files, name, overrides)
        config = read_json(folder / CONFIG)
        weights = component_weights(files, name, overrides)
        located.append(Located(name, groups[name], config, weights, folder=folder))
    return located
