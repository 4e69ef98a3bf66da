"""Read the entry points of installed distributions without importing `importlib.metadata`.

That module costs about 40 ms at import, more than all plugins together, so directories on the
path are read directly. Anything that is not a plain directory (a zip, a custom finder that offers
`find_distributions`) is left to `importlib.metadata`, so the answer is the same.
Public: `scan(path) -> list[Declared]`, `versions_of(dists, path)`, `version_of(dist, path) -> str`.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from importlib.metadata import Distribution

PREFIX: Final = "sgld.plugins."
CORE: Final = "sgld-core"


class Declared(NamedTuple):
    """One entry point as its distribution declares it; `core` is its range on sgld-core."""

    dist: str
    version: str
    core: str
    group: str
    name: str
    value: str


def normalise(name: str) -> str:
    """A distribution's name in the form that all its spellings share."""
    return re.sub(r"[-_.]+", "-", name).lower()


def scan(path: Sequence[str] | None = None) -> list[Declared]:
    """Every entry point in a group `sgld.plugins.*`; the first distribution of a name counts."""
    rows: list[Declared] = []
    seen: set[str] = set()
    for key, folder_or_dist in _distributions(sys.path if path is None else path):
        if key in seen:
            continue
        seen.add(key)
        if isinstance(folder_or_dist, str):
            rows.extend(_read_folder(folder_or_dist))
        else:
            rows.extend(_read_distribution(folder_or_dist))
    return rows


def version_of(dist: str, path: Sequence[str] | None = None) -> str:
    """The installed version of `dist`, or an empty string when it is not installed."""
    return versions_of([dist], path)[dist]


def versions_of(dists: Iterable[str], path: Sequence[str] | None = None) -> dict[str, str]:
    """The installed version of each of `dists`, an empty string for one that is not installed;
    reads no entry point."""
    wanted = {normalise(dist): dist for dist in dists}
    versions = dict.fromkeys(wanted.values(), "")
    for key, folder_or_dist in _distributions(sys.path if path is None else path):
        dist = wanted.pop(key, None)
        if dist is not None:
            local = isinstance(folder_or_dist, str)
            version = _read_metadata(folder_or_dist)[1] if local else folder_or_dist.version
            versions[dist] = version
        if not wanted:
            break
    return versions


def _distributions(path: Sequence[str]) -> Iterator[tuple[str, str | Distribution]]:
    """Normalised name and metadata folder (or a Distribution object) in order of the path."""
    for entry in dict.fromkeys(path):
        try:
            children = sorted(os.listdir(entry or "."))
        except NotADirectoryError:
            yield from _other(_from_file(entry))
            continue
        except OSError:
            continue
        for child in children:
            stem, dot, suffix = child.rpartition(".")
            if dot and suffix in ("dist-info", "egg-info"):
                yield normalise(_name_in(stem, suffix)), os.path.join(entry or ".", child)
    for finder in sys.meta_path:
        if finder is not PathFinder and hasattr(finder, "find_distributions"):
            yield from _other(_from_finder(finder, path))


def _name_in(stem: str, suffix: str) -> str:
    """The name part of a metadata folder's name; a version never holds a dash in a dist-info."""
    if suffix == "dist-info":
        return stem.rpartition("-")[0] or stem
    return stem.partition("-")[0]


def _other(found: Iterable[Distribution]) -> Iterator[tuple[str, Distribution]]:
    for dist in found:
        name = dist.metadata["Name"]
        if name:
            yield normalise(name), dist


def _from_file(entry: str) -> Iterable[Distribution]:
    from importlib import metadata  # noqa: PLC0415  (dear, and rarely needed)

    return metadata.distributions(path=[entry])


def _from_finder(finder: object, path: Sequence[str]) -> Iterable[Distribution]:
    from importlib import metadata  # noqa: PLC0415  (dear, and rarely needed)

    context = metadata.DistributionFinder.Context(path=list(path))
    return finder.find_distributions(context)  # type: ignore[attr-defined]


def _read_folder(folder: str) -> Iterator[Declared]:
    try:
        with open(os.path.join(folder, "entry_points.txt"), "rb") as file:
            data = file.read()
    except OSError:
        return
    if b"[" + PREFIX.encode() not in data.replace(b" ", b""):
        return
    name, version, core = _read_metadata(folder)
    for group, entry, value in parse_entry_points(data.decode("utf-8", "replace")):
        yield Declared(name, version, core, group, entry, value)


def _read_distribution(dist: Distribution) -> Iterator[Declared]:
    core = next((_core_range(line) for line in dist.requires or () if _core_range(line)), "")
    for entry in dist.entry_points:
        if entry.group.startswith(PREFIX):
            name = dist.metadata["Name"]
            yield Declared(name, dist.version, core, entry.group, entry.name, entry.value)


def parse_entry_points(text: str) -> list[tuple[str, str, str]]:
    """Group, name and value of each `name = value` line below a `[sgld.plugins.*]` header."""
    rows: list[tuple[str, str, str]] = []
    group = ""
    for raw in text.splitlines():
        line = raw.strip()
        if line.startswith("[") and line.endswith("]"):
            group = line[1:-1].strip()
        elif line and not line.startswith(("#", ";")) and group.startswith(PREFIX):
            name, equals, value = line.partition("=")
            rows.append((group, name.strip(), value.strip() if equals else ""))
    return rows


def _read_metadata(folder: str) -> tuple[str, str, str]:
    """Name, version and range on sgld-core from the headers of a metadata folder."""
    stem = os.path.basename(folder).rpartition(".")[0]
    name, _, version = stem.rpartition("-") if "-" in stem else (stem, "", "")
    core = ""
    for file_name in ("METADATA", "PKG-INFO"):
        try:
            with open(os.path.join(folder, file_name), encoding="utf-8", errors="replace") as file:
                for line in file:
                    if not line.strip():
                        break
                    key, _, value = line.partition(":")
                    if key == "Name":
                        name = value.strip()
                    elif key == "Version":
                        version = value.strip()
                    elif key == "Requires-Dist":
                        core = _core_range(value) or core
            break
        except OSError:
            continue
    return name, version, core


def _core_range(requirement: str) -> str:
    """The version range of a requirement on sgld-core, or an empty string for another one."""
    text = requirement.partition(";")[0].strip()
    match = re.match(r"([A-Za-z0-9._-]*[A-Za-z0-9])\s*(?:\[[^]]*\])?\s*(.*)", text)
    if not match or normalise(match[1]) != CORE:
        return ""
    return match[2].strip().strip("()") or "any"
