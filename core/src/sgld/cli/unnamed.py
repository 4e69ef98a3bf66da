"""What `sgld serve` and `sgld generate` use when no model is named: the one that is installed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from sgld.params.merge import Layer
from sgld.params.nearest import canonical

FIELD = "model_path"


class Named(NamedTuple):
    """Layers that name a model if anything does, and what is to be said of a model that was chosen
    for the user; empty: the user named one, or there is none to choose."""

    layers: list[Layer]
    note: str = ""


def with_model(layers: Sequence[Layer]) -> Named:
    """Add the bundled model as the weakest layer where none names a model and just one is
    installed."""
    layers = list(layers)
    if any(_names(layer) for layer in layers):
        return Named(layers)
    from sgld.bundled import only_model
    from sgld.cli.quiet import quiet_stdout
    from sgld.plugins.catalog import collect

    with quiet_stdout():
        entry = only_model(collect(os.environ))
    if entry is None:
        return Named(layers)
    name = entry.spec.id
    layer = Layer("preset", {FIELD: name}, source=entry.owner)
    return Named([*layers, layer], f"no model is named: using {name}, which {entry.owner} brings")


def _names(layer: Layer) -> bool:
    return any(
        canonical(name) == FIELD and value not in (None, "") for name, value in layer.values.items()
    )
