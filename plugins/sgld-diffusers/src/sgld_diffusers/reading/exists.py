"""Whether an installed library has the class that a checkpoint names for a component, found in the
library's files without importing it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Final

from sgld.weights.complete import is_model
from sgld.weights.components import Listed
from sgld_diffusers.reading.source import package_root

QUOTED: Final = re.compile(rb'"(\w+)"')


def has_class(listed: Listed) -> bool:
    """Whether diffusers, transformers or the folder of a diffusers pipeline has the class.

    Of transformers only models are looked for: other classes have further names there, which are
    made at import.
    """
    root = package_root("transformers" if listed.library == "transformers" else "diffusers")
    if listed.library == "diffusers":
        return listed.class_name in _quoted(root / "__init__.py")
    if listed.library != "transformers":
        return _written(listed.class_name, (root / "pipelines" / listed.library).rglob("*.py"))
    if not is_model(listed):
        return True
    models = root / "models"
    if any(listed.class_name in _quoted(path) for path in sorted((models / "auto").glob("*.py"))):
        return True
    return _written(listed.class_name, _likely(models, listed.class_name))


@cache
def _quoted(path: Path) -> frozenset[str]:
    """Every quoted name of a file: the tables by which the libraries import lazily."""
    return frozenset(name.decode() for name in QUOTED.findall(path.read_bytes()))


def _written(name: str, paths: Iterable[Path]) -> bool:
    word = re.escape(name.encode())
    found = re.compile(rb"^class " + word + rb"\b|^" + word + rb"\s*=", re.MULTILINE)
    return any(found.search(path.read_bytes()) for path in paths)


def _likely(models: Path, name: str) -> Iterator[Path]:
    """The files of models; first those in folders whose name the class begins with."""
    folders = sorted(path for path in models.iterdir() if path.is_dir())
    begins = name.lower()
    for folder in sorted(
        folders, key=lambda path: not begins.startswith(path.name.replace("_", ""))
    ):
        yield from sorted(folder.glob("*.py"))
