"""Which files of a Wan checkpoint hold which component, for both public layouts. Torch-free.

The diffusers layout has a model_index.json and a folder per component. The original one, as the
repositories Wan-Video/Wan2.1 and Wan2.2 load it, has `config.json` beside the transformer's
safetensors (or two such folders), and pickles for the text encoder, the VAE and the image encoder.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sgld.api.errors import FeatureError, ModelError
from sgld.weights.components import MODEL_INDEX, NO_OVERRIDES, ComponentOverrides
from sgld.weights.files import ModelFiles
from sgld.weights.layout import Located, diffusers_layout
from sgld_wan.originals import read_layout

GROUPS: Final = {
    "text_encoder": "text_encoder",
    "image_encoder": "image_encoder",
    "transformer": "dit",
    "transformer_2": "dit",
    "vae": "vae",
}
"""Every component that a Wan checkpoint may hold → its residency group."""
ORIGINAL: Final = "original"


def locate(files: ModelFiles, overrides: ComponentOverrides = NO_OVERRIDES) -> Sequence[Located]:
    """Every module of the checkpoint.

    In the original layout the sizes of a component stand in its weights, so `config` is empty and
    is read when the component is loaded.

    Raises:
        FeatureError: a first-and-last-frame checkpoint.
        ModelError: a file of the layout is missing (`checkpoint_incomplete`).
        ParameterError: an override names a component that is not there.
    """
    if files.exists(MODEL_INDEX):
        located = diffusers_layout(files, GROUPS, overrides)
        for where in located:
            length = where.config.get("pos_embed_seq_len") if where.group == "dit" else None
            if length is not None:
                raise _two_frames(f"{where.name}/config.json: pos_embed_seq_len={length}")
        return located
    layout = read_layout(files)
    if layout is not None:
        kind = layout.transformers["transformer"].get("model_type")
        if kind == "flf2v":
            raise _two_frames(f"config.json: model_type={kind!r}")
    if layout is None:
        raise ModelError(
            f"{files.root} is neither in the diffusers layout (model_index.json) nor in Wan's "
            "original one (config.json, models_t5_umt5-xxl-enc-bf16.pth, Wan2.x_VAE.pth).",
            code="checkpoint_incomplete",
            remedy="Fetch the missing files.",
        )
    overrides.validate(layout.weights)
    if overrides.paths:
        name = next(iter(overrides.paths))
        raise ModelError(
            f"component_path.{name}: this checkpoint is in the original layout, which has no "
            "component folders.",
            remedy=f"Use --component-weights-path.{name} FILE.",
        )
    located: list[Located] = []
    for name, group in GROUPS.items():
        if name in layout.weights:
            weights = overrides.weights.get(name, files.path(layout.weights[name]))
            located.append(Located(name, group, {}, weights, ORIGINAL))
    return located


def _two_frames(evidence: str) -> FeatureError:
    return FeatureError(
        f"This checkpoint makes a video between a first and a last frame ({evidence}); sgld-wan "
        "does not serve that.",
        remedy="Use an image-to-video checkpoint, which takes the first frame only.",
    )
