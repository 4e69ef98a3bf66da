"""The tiny checkpoints: complete, small, the same bytes every time, and no part of them is dead."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import family_cases
import numpy as np
import pytest
from safetensors.numpy import load_file

from sgld.plugins.catalog import load_target
from sgld_diffusers.tiny import BLUEPRINTS, FAMILIES

LIMIT = 5_000_000


def test_every_family_has_its_own_checkpoint() -> None:
    assert len(FAMILIES) >= 12
    assert len({family.pipeline for family in FAMILIES.values()}) == len(FAMILIES)
    assert BLUEPRINTS.keys() == FAMILIES.keys()


@pytest.mark.parametrize("name", FAMILIES)
def test_is_complete_and_small(name: str, checkpoint: Callable[[str], Path]) -> None:
    folder = checkpoint(name)
    index = json.loads((folder / "model_index.json").read_text(encoding="utf-8"))
    assert index["_class_name"] == FAMILIES[name].pipeline
    parts = [part for part, owner in index.items() if isinstance(owner, list) and owner[1]]
    assert all((folder / part).is_dir() for part in parts)
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < LIMIT


@pytest.mark.parametrize("name", FAMILIES)
def test_no_weight_is_zero(name: str, checkpoint: Callable[[str], Path]) -> None:
    for path in checkpoint(name).rglob("*.safetensors"):
        for key, values in load_file(path).items():
            assert np.abs(values).max() > 0, f"{path.parent.name}: {key}"


@pytest.mark.parametrize("name", ["kandinsky5", "sdxl"])
def test_the_bytes_do_not_change(
    name: str, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    load_target(BLUEPRINTS[name])(tmp_path)
    assert digest(tmp_path) == digest(checkpoint(name))


@pytest.mark.parametrize("name", FAMILIES)
def test_prompt_and_seed_matter(name: str, reference: Callable[..., Any]) -> None:
    """By diffusers itself: a checkpoint that ignores either would prove nothing."""
    base = reference(name)
    assert base.frames.std() > 0.02
    saturated = np.mean((base.frames <= 0) | (base.frames >= 1))
    assert saturated < 0.2, "most of the picture must be free to move"
    for change in ({"seed": 8}, {"prompt": family_cases.OTHER}):
        other = reference(name, **change)
        assert np.abs(other.frames - base.frames).max() > 0.004, change


def digest(folder: Path) -> str:
    """Names and bytes of all files."""
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            found.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return found.hexdigest()
