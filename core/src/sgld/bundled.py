"""Models that come with an installed distribution (`ModelSpec`): found by name, without a download,
and used where no model is named. Torch-free.

    entry_of(path, catalog)     the record that a model path names, or None
    files_of(entry, options)    its checkpoint
    picture_of(entry)           what its sessions begin with
    blank_of(entry)             what stands for no picture
    only_model(catalog)         the one to use when no model is named, or None
    refuse_unknown(path, catalog)    raises for a name that would be one and is none
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING

from sgld.api.errors import ModelError, PluginError
from sgld.api.specs import MODEL_PATTERN, ModelSpec
from sgld.plugins.catalog import Catalog
from sgld.plugins.doctor.targets import locate
from sgld.plugins.failures import failure, meant
from sgld.plugins.near import failed_text
from sgld.plugins.resolve import Entry
from sgld.weights.files import ModelFiles
from sgld.weights.resolve import resolve

if TYPE_CHECKING:
    from sgld.params.serving import ServingOptions  # pydantic; only those who serve need it


def entry_of(path: str, catalog: Catalog) -> Entry[ModelSpec] | None:
    """The bundled model of this name; a file or folder of that name goes before it."""
    entry = catalog.models.get(path)
    return None if entry is None or os.path.lexists(path) else entry


def only_model(catalog: Catalog) -> Entry[ModelSpec] | None:
    """The bundled model, where just one is installed."""
    entries = list(catalog.models.values())
    return entries[0] if len(entries) == 1 else None


def refuse_unknown(path: str, catalog: Catalog) -> None:
    """Tell which bundled models there are when a path is spelled like one, such as `demo:wrld`, and
    is neither one nor a file or folder.

    Raises ModelError `model_not_found`.
    """
    if path in catalog.models or os.path.lexists(path) or not MODEL_PATTERN.fullmatch(path):
        return
    names = sorted(catalog.models)
    there = f"There are: {', '.join(names)}." if names else "No installed distribution carries one."
    remedy = f"{meant(path, names)} {there} {failed_text(catalog.failures)}".strip()
    raise ModelError(
        f"model_path={path!r}: no installed distribution carries such a model.",
        code="model_not_found",
        remedy=remedy,
    )


def files_of(entry: Entry[ModelSpec], options: ServingOptions) -> ModelFiles:
    """The checkpoint, under the record's own name.

    Raises:
        PluginError: the distribution lacks it.
        ParameterError: a revision, which it has not.
    """
    files = resolve(str(_folder(entry)), revision=options.revision, model_id=options.model_id)
    return dataclasses.replace(files, name=entry.spec.id)


def picture_of(entry: Entry[ModelSpec]) -> str:
    """The path of the picture that it begins with, empty when it has none.

    Raises PluginError when the distribution lacks it.
    """
    return _picture(entry, entry.spec.picture)


def blank_of(entry: Entry[ModelSpec]) -> str:
    """The path of the picture that stands for none, as `picture_of`."""
    return _picture(entry, entry.spec.blank)


def _picture(entry: Entry[ModelSpec], name: str) -> str:
    if not name:
        return ""
    path = _folder(entry) / name
    if not path.is_file():
        raise _lacks(entry, f"its picture {name!r}")
    return str(path)


def _folder(entry: Entry[ModelSpec]) -> Path:
    package, _, inside = entry.spec.folder.partition(":")
    spec = locate(package)
    places = spec.submodule_search_locations if spec is not None else None
    for place in places or ():
        folder = Path(place, *inside.split("/"))
        if folder.is_dir():
            return folder
    raise _lacks(entry, f"its folder {entry.spec.folder!r}")


def _lacks(entry: Entry[ModelSpec], what: str) -> PluginError:
    row = failure(
        "SGLD-P023",
        entry.plugin,
        f"model {entry.spec.id!r} is not complete: {what} is not there.",
        dist=entry.dist,
        version=entry.version,
        hint=f"Install {entry.dist} again.",
    )
    return PluginError(str(row), failures=(row,))
