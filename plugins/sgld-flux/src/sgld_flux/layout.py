"""Which files of a FLUX.1 checkpoint hold which component, for both public layouts. Torch-free.

The diffusers layout has a model_index.json and a folder per component. The original one is a single
transformer file, `flux1-dev.safetensors` or `flux1-schnell.safetensors`, with `ae.safetensors` for
the VAE beside it; the text encoders are folders beside it, or come from component paths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from sgld.api.errors import ModelError
from sgld.weights.checkpoint import Checkpoint
from sgld.weights.components import MODEL_INDEX, NO_OVERRIDES, ComponentOverrides
from sgld.weights.files import ModelFiles, read_json
from sgld.weights.layout import CONFIG, Located, diffusers_layout
from sgld_flux import weights
from sgld_flux.models.config1 import transformer_config, vae_config

GROUPS: Final = {
    "text_encoder": "text_encoder",
    "text_encoder_2": "text_encoder",
    "transformer": "dit",
    "vae": "vae",
}
"""Every component of a FLUX.1 checkpoint → its residency group."""
ORIGINAL: Final = "original"
VAE_FILE: Final = "ae.safetensors"
DETECTED: Final = 60
NAMES: Final = {True: "flux1-dev.safetensors", False: "flux1-schnell.safetensors"}
"""Whether a transformer has embedded guidance → its file in the original layout."""


def locate(files: ModelFiles, overrides: ComponentOverrides = NO_OVERRIDES) -> Sequence[Located]:
    """Every module of the checkpoint.

    In the original layout nobody wrote the configurations down; they are read off the shapes.

    Raises:
        ModelError: a component's files are missing or damaged (`checkpoint_incomplete`).
        ParameterError: an override names a component that is not there.
    """
    if files.exists(MODEL_INDEX):
        return diffusers_layout(files, GROUPS, overrides)
    overrides.validate(GROUPS)
    return [_located(files, name, overrides) for name in GROUPS]


def detect_dev(files: ModelFiles) -> int:
    """60 for a transformer file of any name with an embedded-guidance input, else 0."""
    return DETECTED if _guided(files) is True else 0


def detect_schnell(files: ModelFiles) -> int:
    """60 for a transformer file of any name without such an input, else 0."""
    return DETECTED if _guided(files) is False else 0


def _guided(files: ModelFiles) -> bool | None:
    """Whether the original transformer file has embedded guidance; None when there is none."""
    found = original_file(files)
    if found is None:
        return None
    return any(name.endswith(weights.GUIDANCE_MARK) for name in Checkpoint.open(found))


def original_file(files: ModelFiles) -> Path | None:
    """The transformer of the original layout: the known names, else the one file that looks so."""
    for name in NAMES.values():
        if files.exists(name):
            return files.path(name)
    fitting = [path for path in files.glob("*.safetensors") if _is_flux1(path)]
    return fitting[0] if len(fitting) == 1 else None


def _is_flux1(path: Path) -> bool:
    try:
        names = set(Checkpoint.open(path))
    except ModelError:
        return False
    marks = (weights.FLUX1_MARK, weights.PACK_PREFIX + weights.FLUX1_MARK)
    return weights.is_original("transformer", names) and not names.isdisjoint(marks)


def _located(files: ModelFiles, name: str, overrides: ComponentOverrides) -> Located:
    folder = overrides.paths.get(name)
    if folder is None and files.exists(f"{name}/{CONFIG}"):
        folder = files.path(name)
    stored = overrides.weights.get(name)
    if stored is None and name not in overrides.paths:
        stored = _original(files, name)
    if folder is not None and (stored is None or name.startswith("text_encoder")):
        return Located(
            name, GROUPS[name], read_json(folder / CONFIG), stored or folder, folder=folder
        )
    if stored is None:
        raise _missing(files, name)
    shapes = Checkpoint.open(stored, field=name).shapes
    if weights.is_original(name, shapes):
        return Located(name, GROUPS[name], _config(name, shapes), stored, ORIGINAL)
    if folder is None:
        raise _missing(files, name)
    return Located(name, GROUPS[name], read_json(folder / CONFIG), stored, folder=folder)


def _original(files: ModelFiles, name: str) -> Path | None:
    """The file of a component in the original layout."""
    if name == "transformer":
        return original_file(files)
    return files.path(VAE_FILE) if name == "vae" and files.exists(VAE_FILE) else None


def _config(name: str, shapes: Mapping[str, Any]) -> dict[str, Any]:
    read = transformer_config if name == "transformer" else vae_config
    try:
        return read(shapes)
    except KeyError as error:
        raise ModelError(
            f"component {name!r}: the file has no tensor {error.args[0]!r}.",
            code="checkpoint_incomplete",
            remedy="Fetch it again.",
        ) from None


def _missing(files: ModelFiles, name: str) -> ModelError:
    where = {"transformer": NAMES[True], "vae": VAE_FILE}.get(name, f"the folder {name}")
    return ModelError(
        f"{files.root}: component {name!r} is missing: this is FLUX.1's original layout, and there "
        f"is no {where}.",
        code="checkpoint_incomplete",
        remedy=f"Put it there, or give --component-path.{name} FOLDER.",
    )
