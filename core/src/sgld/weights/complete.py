"""`check_complete`: whether a checkpoint that looks whole is whole, before anything is opened.

A hub cache can hold a snapshot with only model_index.json, a config without its weights, or links
to blobs that were never fetched; each is named here with its component. Torch-free.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from sgld.api.errors import ModelError
from sgld.weights.components import NO_OVERRIDES, ComponentOverrides, Listed, read_index
from sgld.weights.files import ModelFiles, is_offline
from sgld.weights.mapping import CheckpointError, Problems
from sgld.weights.selection import has_variant, select, weight_files

_PROCESSOR: Final = ("preprocessor_config.json", "processor_config.json")
_CONFIGS: Final = (
    (re.compile(r".*Scheduler"), ("scheduler_config.json",)),
    (re.compile(r".*Tokenizers?(Fast|Backend)?"), ("tokenizer_config.json",)),
    (re.compile(r".*(Processor|Extractor)(Fast)?"), _PROCESSOR),
    (re.compile(r".*Guid(er|ance).*"), ("guider_config.json",)),
)
"""Class name → config files of components that have no weights; the first is named if none is
there. Every other component is a model: `config.json` and weights."""


def is_model(listed: Listed) -> bool:
    """Whether a component of the index has weights: no scheduler, tokenizer or processor."""
    return not any(pattern.fullmatch(listed.class_name) for pattern, _ in _CONFIGS)


def check_complete(
    files: ModelFiles, overrides: ComponentOverrides = NO_OVERRIDES, *, variant: str = ""
) -> None:
    """Check that every component listed in model_index.json has its config and weight files, and
    that no link is broken; without an index only links, shards and emptiness are checked.

    Raises:
        ModelError: `checkpoint_incomplete`, naming every component and missing file.
    """
    if files.file is not None:
        return
    index = read_index(files)
    components = index.components if index else {}
    faults: list[str] = []
    for name, listed in components.items():
        folder = overrides.paths.get(name) or files.path(name)
        faults += _component_faults(name, listed, folder, overrides.weights.get(name), variant)
    if not components:
        faults += _folder_faults(files.root)
    elif variant and not faults:
        folders = [overrides.paths.get(name) or files.path(name) for name in components]
        if not any(has_variant(folder, variant) for folder in folders if folder.is_dir()):
            faults.append(f"no component has the variant {variant!r}")
    skipped = {*components, *overrides.paths, *overrides.weights}
    faults += [fault for fault in _broken_links(files.root, skipped) if fault not in faults]
    if faults:
        _raise(files, faults)


def _component_faults(
    name: str, listed: Listed, folder: Path, weights: Path | None, variant: str
) -> list[str]:
    configs = next(
        (names for pattern, names in _CONFIGS if pattern.fullmatch(listed.class_name)), None
    )
    wanted = configs or ("config.json",)
    broken = [_broken(path) for path in _links(folder)]
    faults = [f"component {name!r}: {text}" for text in broken]
    names = {path.name for path in _links(folder)}
    if not any((folder / item).is_file() or item in names for item in wanted):
        faults.append(f"component {name!r}: {folder / wanted[0]} is missing")
    if configs is None and not broken:
        fault = _weights_fault(listed, weights or folder, variant)
        faults += [f"component {name!r}: {fault}"] if fault else []
    return faults


def _weights_fault(listed: Listed, source: Path, variant: str) -> str:
    stem = "diffusion_pytorch_model" if listed.library == "diffusers" else "model"
    if not weight_files(source):
        indexes = sorted(source.glob("*.safetensors.index*.json")) if source.is_dir() else []
        if not indexes:
            return f"{source / f'{stem}.safetensors'} is missing"
    try:
        # Whether pickles are acceptable is asked when they are opened.
        selection = select(source, variant=variant, allow_pickle=True)
    except ModelError as error:
        return error.message.rstrip(".")
    return "; ".join(selection.faults)


def _folder_faults(root: Path) -> list[str]:
    if not any(root.iterdir()):
        return [f"{root} is empty"]
    faults: list[str] = []
    for path in sorted(root.glob("**/*.safetensors.index*.json")):
        try:
            faults += select(path).faults
        except ModelError as error:
            faults.append(error.message.rstrip("."))
    return faults


def _broken_links(root: Path, skipped: set[str]) -> list[str]:
    found: list[str] = []
    for folder, folders, names in os.walk(root):
        if Path(folder) == root:
            folders[:] = [name for name in folders if name not in skipped]
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths = (Path(folder) / name for name in (*folders, *names))
        found += [_broken(path) for path in paths if path.is_symlink() and not path.exists()]
    return found


def _links(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return [folder] if folder.is_symlink() else []
    paths = sorted(folder.iterdir())
    return [path for path in paths if path.is_symlink() and not os.path.exists(path)]


def _broken(path: Path) -> str:
    return f"{path} is a broken link to {os.readlink(path)}"


def _raise(files: ModelFiles, faults: list[str]) -> None:
    problems = Problems(other=tuple(faults))
    what = f"model {files.repo_id or files.name!r} is incomplete"
    remedy = "Copy the missing files into the folder."
    if files.origin == "hub":
        command = f"hf download {files.repo_id}"
        remedy = f"Fetch it again: `{command}`."
        if is_offline():
            what += ", and offline mode is on (HF_HUB_OFFLINE), so nothing was fetched"
            remedy = f"Run `{command}` while online, or give a whole local folder."
    raise CheckpointError(f"{what}.\n{problems}\n", problems, remedy=remedy)
