"""Chooses the weight files of a folder: single or sharded, which variant, pickle or not.

File names follow the two common writers: `model…` (transformers), `diffusion_pytorch_model…`
(diffusers); `NAME.VARIANT.safetensors` holds another precision or average of the same weights.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sgld.api.errors import ModelError
from sgld.weights.files import read_json
from sgld.weights.overrides import WEIGHT_SUFFIXES

PICKLES: Final = tuple(suffix for suffix in WEIGHT_SUFFIXES if suffix != ".safetensors")
STEMS: Final = ("diffusion_pytorch_model", "model", "pytorch_model")
NOT_WEIGHTS: Final = re.compile(r"(training_args|optimizer|scheduler|rng_state|random_states).*")

_VARIANT: Final = r"(?:\.(?P<variant>[\w-]+?))?"
_SHARD: Final = r"(?:-(?P<part>\d{5})-of-(?P<parts>\d{5}))?"
_NAME: Final = re.compile(
    rf"(?P<stem>{'|'.join(STEMS)}){_VARIANT}{_SHARD}(?:\.(?P<late>[\w-]+))?\.safetensors"
)
_OTHER: Final = re.compile(rf"(?P<stem>.+?){_SHARD}\.safetensors")
_INDEX: Final = re.compile(
    r"(?P<stem>.+?)\.safetensors\.index(?:\.(?P<late>[\w-]+))?\.json", re.ASCII
)


@dataclass(frozen=True, slots=True)
class Selection:
    """The files to read, the index naming their tensors, if any, and faults found on the way."""

    files: tuple[Path, ...]
    weight_map: dict[str, str] | None = None
    faults: tuple[str, ...] = ()
    pickled: bool = False


def weight_files(folder: Path) -> list[Path]:
    """Every file of `folder` that looks like weights, dangling links too; a file is itself."""
    if not folder.is_dir():
        return [folder] if os.path.lexists(folder) else []
    names = sorted(path for path in folder.iterdir() if path.name.endswith(WEIGHT_SUFFIXES))
    return [path for path in names if not NOT_WEIGHTS.fullmatch(path.name)]


def select(source: Path, *, variant: str = "", allow_pickle: bool = False) -> Selection:
    """Choose among the files of `source`, a folder, a weight file or an index file.

    A folder without the asked `variant` gives its plain files: models mix them. That no component
    at all has it is for `check_complete` to say.

    Raises:
        ModelError: nothing there, several unrelated candidates, only variants that were not asked
            for, or only pickles (`unsafe_file`).
    """
    if not source.is_dir():
        return _one(source, allow_pickle)
    if variant and not has_variant(source, variant):
        variant = ""
    index = _choose_index(source, variant)
    if index is not None:
        whole = source / _plain_name(index)
        return Selection((whole,)) if os.path.lexists(whole) else _from_index(index)
    chosen = _choose_files(source, variant)
    if chosen:
        return Selection(tuple(chosen), faults=_lost_shards(chosen))
    pickles = [path for path in weight_files(source) if path.name.endswith(PICKLES)]
    if pickles:
        return _pickles(pickles, allow_pickle)
    raise _incomplete(f"no weights in {source}", "Fetch the missing files.")


def has_variant(folder: Path, variant: str) -> bool:
    """Whether `folder` has weights of this variant."""
    return _choose_index(folder, variant) is not None or any(
        found == variant for found, _ in _groups(folder)
    )


def _one(source: Path, allow_pickle: bool) -> Selection:
    if _INDEX.fullmatch(source.name):
        return _from_index(source)
    if source.name.endswith(PICKLES):
        return _pickles([source], allow_pickle)
    if not os.path.lexists(source):
        raise _incomplete(f"{source} does not exist", "Fetch the missing file.")
    return Selection((source,))


def _pickles(paths: Sequence[Path], allow_pickle: bool) -> Selection:
    if allow_pickle:
        return Selection(tuple(paths), pickled=True)
    names = ", ".join(path.name for path in paths[:3])
    raise ModelError(
        f"{paths[0].parent}: the weights are pickle files ({names}), which can run code.",
        code="unsafe_file",
        remedy="Convert them to .safetensors, or pass `--allow-pickle` if you trust them.",
    )


def _choose_index(folder: Path, variant: str) -> Path | None:
    found: list[Path] = []
    for path in sorted(folder.iterdir()):
        match = _INDEX.fullmatch(path.name)
        if match is None:
            continue
        inner = _NAME.fullmatch(f"{match['stem']}.safetensors")
        early = (inner["variant"] or inner["late"] or "") if inner else ""
        if (match["late"] or early) == variant:
            found.append(path)
    return _best(found, "index files")


def _groups(folder: Path) -> dict[tuple[str, str], list[Path]]:
    """Files by variant and by set: all shards of one set, or a whole file."""
    groups: dict[tuple[str, str], list[Path]] = {}
    for path in weight_files(folder):
        if path.name.endswith(PICKLES):
            continue
        match = _NAME.fullmatch(path.name)
        plain = match or _OTHER.fullmatch(path.name)
        if plain is None:
            continue
        found = (match["variant"] or match["late"] or "") if match else ""
        whole = "" if plain["part"] is None else f"-of-{plain['parts']}"
        groups.setdefault((found, plain["stem"] + whole), []).append(path)
    return groups


def _choose_files(folder: Path, variant: str) -> list[Path]:
    groups = _groups(folder)
    fitting = [paths for (found, _), paths in groups.items() if found == variant]
    others = sorted({found for found, _ in groups if found})
    if fitting:
        first = _best([paths[0] for paths in fitting], "weight files")
        return next(paths for paths in fitting if paths[0] == first)
    if groups:
        raise _incomplete(
            f"{folder} has no plain weights, only variants: {', '.join(others)}",
            "Name one with --component-weights-path.COMPONENT.",
        )
    return []


def _best(paths: Sequence[Path], kind: str) -> Path | None:
    if len(paths) <= 1:
        return paths[0] if paths else None
    for stem in STEMS:
        chosen = [path for path in paths if re.match(rf"{stem}[.-]", path.name)]
        whole = [path for path in chosen if "-of-" not in path.name]
        if len(whole or chosen) == 1:
            return (whole or chosen)[0]
    names = ", ".join(path.name for path in paths[:5])
    raise _incomplete(
        f"{paths[0].parent} has several {kind} ({names}) and nothing says which one is meant",
        "Name one with --component-weights-path.<component>.",
    )


def _plain_name(index: Path) -> str:
    match = _INDEX.fullmatch(index.name)
    assert match is not None
    late = f".{match['late']}" if match["late"] else ""
    return f"{match['stem']}{late}.safetensors"


def _from_index(index: Path) -> Selection:
    raw = read_json(index).get("weight_map")
    if not isinstance(raw, dict) or not raw:
        raise _incomplete(f"{index} has no weight_map", "Fetch the file again.")
    faults: list[str] = []
    shards: dict[str, None] = {}
    for name, shard in raw.items():
        # A shard name is data from a download: it must not lead out of the folder.
        if not isinstance(shard, str) or Path(shard).name != shard or shard in ("", ".", ".."):
            faults.append(f"{index} gives {name!r} the file name {shard!r}")
        else:
            shards.setdefault(shard)
    pickled = [shard for shard in shards if not shard.endswith(".safetensors")]
    faults += [f"{index} names {shard!r}, not a .safetensors file" for shard in pickled]
    present: list[Path] = []
    for shard in sorted(set(shards) - set(pickled)):
        path = index.parent / shard
        if os.path.lexists(path):
            present.append(path)
        else:
            lost = sum(value == shard for value in raw.values())
            faults.append(f"{path} is missing: {lost} tensors ({index.name} names it)")
    return Selection(tuple(present), {str(k): str(v) for k, v in raw.items()}, tuple(faults))


def _lost_shards(paths: Sequence[Path]) -> tuple[str, ...]:
    match = _OTHER.fullmatch(paths[0].name)
    if match is None or match["part"] is None:
        return ()
    total, have = int(match["parts"]), {path.name for path in paths}
    wanted = (
        paths[0].name.replace(f"-{match['part']}-of-", f"-{number:05}-of-")
        for number in range(1, total + 1)
    )
    return tuple(f"{paths[0].parent / name} is missing" for name in wanted if name not in have)


def _incomplete(what: str, remedy: str) -> ModelError:
    return ModelError(f"{what}.", code="checkpoint_incomplete", remedy=remedy)
