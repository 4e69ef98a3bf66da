"""Which files of a LingBot World checkpoint hold which component, for both layouts. Torch-free.

The `-diffusers` repositories have a model_index.json and a folder per component; the transformer's
tensors keep their original names there, too. The publisher's own have a folder `transformers` and
Wan's files for the text encoder and the VAE beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

from sgld.api.errors import ModelError
from sgld.weights.components import MODEL_INDEX, NO_OVERRIDES, ComponentOverrides
from sgld.weights.files import ModelFiles
from sgld.weights.layout import Located, diffusers_layout
from sgld_lingbot.configs import model_index
from sgld_lingbot.schedules import FALLBACK
from sgld_wan import configs
from sgld_wan.layout import ORIGINAL
from sgld_wan.originals import TEXT_ENCODER_FILE, VAE_FILES, OriginalLayout

GROUPS: Final = {"text_encoder": "text_encoder", "transformer": "dit", "vae": "vae"}
"""Every component → its residency group."""
FOLDER: Final = "transformers"
VAE_FILE: Final = VAE_FILES[0]


class Files(Protocol):
    """The part of `sgld.weights.files.ModelFiles` that is needed here."""

    def exists(self, relative: str) -> bool:
        """Whether the file is there."""
        ...

    def read_json(self, relative: str) -> dict[str, Any] | None:
        """The JSON object in a file, None when it is missing."""
        ...


def locate(files: ModelFiles, overrides: ComponentOverrides = NO_OVERRIDES) -> Sequence[Located]:
    """Every module of the checkpoint.

    Raises:
        ModelError: a file of the layout is missing (`checkpoint_incomplete`).
        ParameterError: an override names a component that is not there.
    """
    if files.exists(MODEL_INDEX):
        return diffusers_layout(files, GROUPS, overrides)
    layout = read_layout(files)
    if layout is None:
        raise ModelError(
            f"{files.root} is neither in the diffusers layout (model_index.json) nor in the "
            f"publisher's ({FOLDER}/config.json, {TEXT_ENCODER_FILE}, {VAE_FILE}).",
            code="checkpoint_incomplete",
            remedy="Fetch the missing files.",
        )
    overrides.validate(layout.weights)
    if overrides.paths:
        name = next(iter(overrides.paths))
        raise ModelError(
            f"component_path.{name}: this checkpoint is in the publisher's layout, which has no "
            "component folders.",
            remedy=f"Use --component-weights-path.{name} FILE.",
        )
    return [
        Located(
            name, group, {}, overrides.weights.get(name, files.path(layout.weights[name])), ORIGINAL
        )
        for name, group in GROUPS.items()
    ]


def read_layout(files: Files) -> OriginalLayout | None:
    """The publisher's layout; None unless all of it is there."""
    config = files.read_json(f"{FOLDER}/config.json")
    if config is None or not all(map(files.exists, (TEXT_ENCODER_FILE, VAE_FILE))):
        return None
    return OriginalLayout(
        index=model_index(),
        scheduler=configs.scheduler_config(FALLBACK.shift),
        weights={"transformer": FOLDER, "text_encoder": TEXT_ENCODER_FILE, "vae": VAE_FILE},
        transformers={"transformer": config},
    )
