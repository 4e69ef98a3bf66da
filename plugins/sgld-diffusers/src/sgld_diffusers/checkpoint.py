"""A checkpoint as diffusers writes it: its class, its components, and where code would come from.

Torch-free; nothing of the checkpoint is run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from sgld.api.errors import ModelError
from sgld.params.nearest import did_you_mean
from sgld.weights.complete import is_model
from sgld.weights.components import MODEL_INDEX, Listed, read_index
from sgld.weights.files import ModelFiles
from sgld_diffusers.reading.evaluate import Instance, Unknown
from sgld_diffusers.reading.exists import has_class
from sgld_diffusers.reading.source import (
    ClassSource,
    class_in,
    class_names,
    find_class,
    module_file,
    package_root,
)

LIBRARIES: Final = frozenset({"diffusers", "transformers"})
TABLES: Final = frozenset({"tokenizer.json", "vocab.json", "added_tokens.json"})
"""Large files of a tokenizer, which hold tables and no settings."""
GROUPS: Final = (
    ("vae", ("vae", "vqvae", "vqgan", "movq", "vocoder", "decoder_vae")),
    ("text_encoder", ("text_encoder", "prompt_encoder", "text_model", "mllm")),
    ("image_encoder", ("image_encoder", "safety_checker", "feature_extractor", "vision")),
)
"""Residency group → parts of component names; the first one that fits, else `dit`."""


class ClassPlace(NamedTuple):
    """Where the pipeline class comes from.

    Args:
        name: the class.
        module: what to import it from; empty when the checkpoint itself brings it.
        file: the checkpoint's file, when it brings the class.
    """

    name: str
    module: str
    source: ClassSource
    file: Path | None = None


def group_of(name: str) -> str:
    """The residency group of a component."""
    return next((group for group, parts in GROUPS if any(part in name for part in parts)), "dit")


def modules_of(files: ModelFiles) -> dict[str, Listed]:
    """The components that have weights, in the index's order."""
    index = read_index(files)
    components = index.components if index is not None else {}
    return {name: listed for name, listed in components.items() if is_model(listed)}


def foreign_code(files: ModelFiles, paths: Mapping[str, Path] | None = None) -> list[str]:
    """What of the checkpoint would run code that it brings, or of packages that it names; `paths`
    are other folders for components."""
    index = read_index(files)
    if index is None:
        return []
    found: list[str] = []
    raw = (files.read_json(MODEL_INDEX) or {}).get("_class_name")
    if isinstance(raw, list):
        found.append(f"its pipeline class {raw[-1]} is in {raw[0]}.py of the checkpoint")
    for name, listed in index.components.items():
        if not is_known(listed):
            found.append(f"component {name!r} is {listed.class_name} of {listed.library!r}")
        found += _code_in(name, (paths or {}).get(name) or files.path(name))
    return found


def is_known(listed: Listed) -> bool:
    """Whether a component is of diffusers or transformers, by the index."""
    folder = package_root("diffusers") / "pipelines"
    return listed.library in LIBRARIES or (
        listed.library.isidentifier() and (folder / listed.library).is_dir()
    )


def _code_in(name: str, folder: Path) -> Iterator[str]:
    """The code that a component's folder holds, and the configurations that ask for code."""
    for path in sorted(folder.rglob("*.py")):
        yield f"component {name!r} brings code of its own ({path.relative_to(folder)})"
    for path in sorted(folder.rglob("*.json")):
        if path.name not in TABLES and not path.name.endswith(".index.json"):
            values = _json(path)
            if isinstance(values, dict) and values.get("auto_map"):
                where = path.relative_to(folder)
                yield f"component {name!r} brings code of its own (auto_map in {where})"


def _json(path: Path) -> Any:
    """The content; None for what is no JSON, which whoever needs the file tells."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def absent_classes(files: ModelFiles, paths: Mapping[str, Path] | None = None) -> list[str]:
    """Components whose class the installed libraries do not have, one clause each."""
    index = read_index(files)
    components = index.components if index is not None else {}
    return [
        f"component {name!r} is {listed.class_name}, which {_library(listed)} does not have"
        for name, listed in components.items()
        if is_known(listed)
        and not any(_code_in(name, (paths or {}).get(name) or files.path(name)))
        and not has_class(listed)
    ]


def _library(listed: Listed) -> str:
    of = listed.library if listed.library in LIBRARIES else f"{listed.library} of diffusers"
    return f"the installed {of}"


def pipeline_class(files: ModelFiles, wanted: str = "") -> ClassPlace:
    """The class that serves the checkpoint: the one asked for, or the one it names.

    `wanted` is a class of diffusers, or `module:Class` of an installed package.

    Raises ModelError when there is no such class.
    """
    if wanted and ":" in wanted:
        return _installed(wanted)
    raw: Any = (files.read_json(MODEL_INDEX) or {}).get("_class_name")
    if not wanted and isinstance(raw, list) and len(raw) == 2:
        return _brought(files, str(raw[0]), str(raw[1]))
    name = wanted or str(raw or "")
    source = find_class(name) if name.isidentifier() else None
    if source is None:
        what = "asked for" if wanted else "in model_index.json"
        raise ModelError(
            f"diffusers has no pipeline class {name!r} ({what}).",
            code="model_not_recognised",
            remedy=f"{did_you_mean(name, class_names())} A newer diffusers may have it; for one of "
            "your own give --pipeline-class-name module:Class.".strip(),
        )
    return ClassPlace(name, source.module, source)


def _installed(wanted: str) -> ClassPlace:
    module, _, name = wanted.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), name)):
        raise ModelError(f"{wanted!r} is not of the form module:Class.")
    path, root = module_file(module)
    found = class_in(path, name, root) if path is not None else None
    if found is None:
        raise ModelError(
            f"module {module!r} is not installed, or does not define a class {name!r}.",
            code="model_not_recognised",
            remedy="Name the module in which the class is written.",
        )
    return ClassPlace(name, module, found)


def _brought(files: ModelFiles, module: str, name: str) -> ClassPlace:
    path = files.path(f"{module}.py")
    found = class_in(path, name) if module.isidentifier() and path.is_file() else None
    if found is None:
        raise ModelError(
            f"{path}: the checkpoint's index names its class {name!r}, which is not there.",
            code="checkpoint_incomplete",
        )
    return ClassPlace(name, "", found, path)


def instance(files: ModelFiles, place: ClassPlace) -> Instance:
    """The pipeline object as far as configurations tell it."""
    index = read_index(files)
    settings = dict(index.settings) if index is not None else {}
    children: dict[str, Instance | None] = {}
    for name, value in (files.read_json(MODEL_INDEX) or {}).items():
        if isinstance(value, list) and not name.startswith("_"):
            children[name] = None
    for name in modules_of(files):
        config = files.read_json(f"{name}/config.json") or {}
        children[name] = _component(config)
    return Instance(place.source, given=settings, children=children, config=settings)


def _component(config: Mapping[str, Any]) -> Instance:
    name = str(config.get("_class_name") or "")
    source = find_class(name, "models") if name.isidentifier() else None
    return Instance(source, given=config, config=config)


def vaes(files: ModelFiles) -> list[str]:
    """Class names of the checkpoint's components of the group `vae`."""
    return [row.class_name for name, row in modules_of(files).items() if group_of(name) == "vae"]


def tiles(class_name: str) -> bool:
    """Whether a class of diffusers can decode in tiles."""
    try:
        Instance(find_class(class_name, "models")).attribute("use_tiling")
    except Unknown:
        return False
    return True
