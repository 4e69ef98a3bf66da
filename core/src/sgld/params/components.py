"""Names of component overrides, in every spelling that flags and files may use.

component-path.vae   component_paths.vae   vae-path            → component_paths
component-weights-path.vae   vae_weights_path                  → component_weights_paths
component-precision.vae   component_precisions.vae   vae-precision → component_precisions
"""

from __future__ import annotations

import difflib
from typing import Any, Final

from sgld.params.nearest import canonical

TABLES: Final = {
    "component_path": "component_paths",
    "component_paths": "component_paths",
    "component_weights_path": "component_weights_paths",
    "component_weights_paths": "component_weights_paths",
    "component_precision": "component_precisions",
    "component_precisions": "component_precisions",
}
KNOWN_PATHS: Final = ("model_path", "output_path", "image_path", "prompt_path", "video_path")
"""Settings that end in `_path` and are no component; near misses of these are typing errors."""


def alias(name: str, value: Any) -> tuple[str, Any]:
    """The setting and value that a component override means; other names are only made canonical.

    `alias("vae-path", "x")` is `("component_paths", {"vae": "x"})`.
    """
    key = canonical(name)
    table, dot, component = key.partition(".")
    if dot and component and table in TABLES:
        return TABLES[table], {component: value}
    if key in TABLES:
        return TABLES[key], value
    for ending, setting in (
        ("_weights_path", "component_weights_paths"),
        ("_path", "component_paths"),
        ("_precision", "component_precisions"),
    ):
        component = key.removesuffix(ending)
        if component and component != key and not _typing_error(key):
            return setting, {component: value}
    return key, value


def _typing_error(key: str) -> bool:
    return bool(difflib.get_close_matches(key, KNOWN_PATHS, n=1, cutoff=0.85))
