"""The conformance kit's fixtures, tiny checkpoints of every family, and what diffusers makes of
them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

# Tests run with import-mode=importlib, which does not make siblings importable.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return `(family id) -> Path` of a tiny checkpoint, built when first asked for; read only."""
    root = tmp_path_factory.mktemp("diffusers")

    @cache
    def build(family: str) -> Path:
        from sgld.plugins.catalog import load_target
        from sgld_diffusers.tiny import BLUEPRINTS

        folder = root / family
        load_target(BLUEPRINTS[family])(folder)
        return folder

    return build


@pytest.fixture(scope="session")
def reference(checkpoint: Callable[[str], Path]) -> Callable[..., Any]:
    """Return `(family id, **changes) -> Reference`: the family's request through diffusers."""
    import diffusers_oracle
    import family_cases

    from sgld_diffusers.tiny import FAMILIES

    held: dict[str, Any] = {}

    def run(name: str, **changes: Any) -> Any:
        key = f"{name} {sorted(changes.items())}"
        if key not in held:
            arguments = family_cases.theirs(FAMILIES[name], **changes)
            held[key] = diffusers_oracle.run(checkpoint(name), **arguments)
        return held[key]

    return run
