"""Which folder holds which component, for any diffusers checkpoint. Torch-free."""

from __future__ import annotations

from sgld.weights.components import ComponentOverrides
from sgld.weights.files import ModelFiles
from sgld.weights.layout import Located, diffusers_layout
from sgld_diffusers.checkpoint import group_of, modules_of


def layout(files: ModelFiles, overrides: ComponentOverrides) -> list[Located]:
    """Every component that has weights, in the order of the index.

    Raises what `sgld.weights.layout.diffusers_layout` raises.
    """
    groups = {name: group_of(name) for name in modules_of(files)}
    return diffusers_layout(files, groups, overrides)
