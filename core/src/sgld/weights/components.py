"""Components of a checkpoint: what model_index.json lists, where each lies, how large it is.

    read_index(files).components             {"vae": Listed("diffusers", "AutoencoderKLWan"), …}
    overrides = ComponentOverrides.build(paths={"vae": "…"}, precisions={"vae": "float32"})
    overrides.validate(names)                the named components exist in this model
    component_folder(files, "vae", overrides)
    component_weights(files, "vae", overrides)
    component_bytes(files, overrides)        from headers only, for the memory plan

Torch-free.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from sgld.api.errors import ModelError
from sgld.weights.checkpoint import Checkpoint, weight_files
from sgld.weights.files import ModelFiles
from sgld.weights.overrides import (
    NO_OVERRIDES,
    ComponentOverrides,
    OverrideFlag,
    override_flag,
    parse_precision,
)

__all__ = [
    "MODEL_INDEX",
    "NO_OVERRIDES",
    "ComponentOverrides",
    "ComponentSize",
    "Listed",
    "ModelIndex",
    "OverrideFlag",
    "component_bytes",
    "component_folder",
    "component_weights",
    "override_flag",
    "parse_precision",
    "read_index",
]

MODEL_INDEX: Final = "model_index.json"


class Listed(NamedTuple):
    """One entry of model_index.json: the library and the class that wrote the component."""

    library: str
    class_name: str


@dataclass(frozen=True, slots=True)
class ModelIndex:
    """What model_index.json says.

    Args:
        class_name: `_class_name`, empty when absent.
        components: name → library and class; components set to null are left out.
        settings: the other entries, such as `boundary_ratio`.
    """

    class_name: str
    components: Mapping[str, Listed]
    settings: Mapping[str, Any]


def read_index(files: ModelFiles) -> ModelIndex | None:
    """The model's index, None when it has none (an original-layout or single-file checkpoint).

    Raises:
        ModelError: the file is damaged, or a component's name is none (`checkpoint_incomplete`).
    """
    raw = files.read_json(MODEL_INDEX)
    if raw is None:
        return None
    components: dict[str, Listed] = {}
    settings: dict[str, Any] = {}
    for name, value in raw.items():
        if name.startswith("_"):
            continue
        if not _is_component(value):
            settings[name] = value
        elif not name.isidentifier():  # such as a path that leads out of the model's folder
            raise ModelError(
                f"{files.path(MODEL_INDEX)}: {name!r} is no name of a component.",
                code="checkpoint_incomplete",
                remedy="Component names are letters, digits and _; they are names of folders.",
            )
        elif value[1] is not None:
            components[name] = Listed(value[0] or "", value[1])
    return ModelIndex(str(raw.get("_class_name") or ""), components, settings)


def _is_component(value: Any) -> bool:
    if not isinstance(value, list) or len(value) < 2:
        return False
    return all(part is None or isinstance(part, str) for part in value[:2])


def component_folder(
    files: ModelFiles, name: str, overrides: ComponentOverrides = NO_OVERRIDES
) -> Path:
    """The folder of component `name`, holding its config.

    Raises:
        ModelError: there is none (`checkpoint_incomplete`).
    """
    folder = overrides.paths.get(name) or files.path(name)
    if files.file is None and folder.is_dir():
        return folder
    raise ModelError(
        f"component {name!r}: the folder {folder} is missing.",
        code="checkpoint_incomplete",
        remedy=f"Fetch it again, or pass --component-path.{name} FOLDER.",
    )


def component_weights(
    files: ModelFiles, name: str, overrides: ComponentOverrides = NO_OVERRIDES
) -> Path:
    """The weight file or folder of component `name`, to be given to `Checkpoint.open`."""
    return overrides.weights.get(name) or component_folder(files, name, overrides)


@dataclass(frozen=True, slots=True)
class ComponentSize:
    """How much one component holds.

    Args:
        parameters: number of stored elements.
        bytes: size as stored.
        floats: elements in floating point: those that a precision applies to.
        fixed: bytes of the other tensors (integers, packed quantised weights).
    """

    parameters: int
    bytes: int
    floats: int
    fixed: int

    def bytes_at(self, precision: str) -> int:
        """Bytes once loaded at `auto` (as stored), `float32`, `bfloat16` or `float16`."""
        known = parse_precision(precision)
        if known == "auto":
            return self.bytes
        return self.floats * (4 if known == "float32" else 2) + self.fixed


def component_bytes(
    files: ModelFiles, overrides: ComponentOverrides = NO_OVERRIDES, *, variant: str = ""
) -> dict[str, ComponentSize]:
    """Sizes of the components that have safetensors weights, read from headers only.

    Components without weights (schedulers, tokenizers) and those kept in pickle files, whose
    content cannot be known without opening them, are left out.

    Raises:
        ModelError: a weight file is damaged or incomplete.
    """
    index = read_index(files)
    names = sorted({*(index.components if index else ()), *overrides.weights, *overrides.paths})
    sizes: dict[str, ComponentSize] = {}
    for name in names:
        source = overrides.weights.get(name) or overrides.paths.get(name) or files.path(name)
        if weight_files(source):
            checkpoint = Checkpoint.open(source, variant=variant, field=name)
            sizes[name] = _size(checkpoint)
    return sizes


def _size(checkpoint: Checkpoint) -> ComponentSize:
    floats = [tensor for tensor in checkpoint.values() if tensor.floating]
    return ComponentSize(
        parameters=sum(tensor.elements for tensor in checkpoint.values()),
        bytes=checkpoint.total_bytes,
        floats=sum(tensor.elements for tensor in floats),
        fixed=checkpoint.total_bytes - sum(tensor.bytes for tensor in floats),
    )
