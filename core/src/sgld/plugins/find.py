"""Find plugins: installed entry points and the packages the environment names. Imports none.

Public: `find(environ, path) -> Discovery`. `SGLD_PLUGINS` is an allow list (a leading `-` denies,
empty means none but the built-in one); `SGLD_EXTERNAL_MODEL_PACKAGE` (alias
`SGLANG_EXTERNAL_MODEL_PACKAGE`) names importable packages taken as plugins without metadata.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from sgld import __version__
from sgld.api.hooks import GROUP
from sgld.api.specs import Failure
from sgld.plugins.failures import failure
from sgld.plugins.scan import CORE, Declared, normalise, scan

ALLOW: Final = "SGLD_PLUGINS"
EXTERNAL: Final = ("SGLD_EXTERNAL_MODEL_PACKAGE", "SGLANG_EXTERNAL_MODEL_PACKAGE")
NAME_PATTERN: Final = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*")
MODULE_PATTERN: Final = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
BUILTIN: Final = "builtin"
BUILTIN_MODULE: Final = "sgld.builtin"

Source = Literal["builtin", "installed", "local"]


class Found(NamedTuple):
    """A plugin before it is imported. A local one has its package name as `dist`."""

    name: str
    module: str
    dist: str
    version: str
    source: Source
    core: str = ""
    """The range on sgld-core that its metadata states."""


class Discovery(NamedTuple):
    """What was found, what `SGLD_PLUGINS` left out, and what cannot even be imported."""

    found: tuple[Found, ...]
    denied: tuple[Found, ...]
    failures: tuple[Failure, ...]


class Allowed:
    """The reading of `SGLD_PLUGINS`: entries are plugin or distribution names."""

    def __init__(self, text: str | None) -> None:
        items = [item.strip() for item in (text or "").split(",") if item.strip()]
        self.denied = {normalise(item[1:].strip()) for item in items if item.startswith("-")}
        self.only = {normalise(item) for item in items if not item.startswith("-")}
        self.restricts = text is not None and (bool(self.only) or not items)

    def takes(self, name: str, dist: str) -> bool:
        """Whether a plugin of this name and distribution may be loaded."""
        names = {normalise(name), normalise(dist)}
        if names & self.denied:
            return False
        return bool(names & self.only) if self.restricts else True

    def unknown(self, rows: Iterable[Declared]) -> list[str]:
        """Names that fit nothing installed, so that a typing error is not silent."""
        known = {normalise(row.name) for row in rows} | {normalise(row.dist) for row in rows}
        return sorted((self.only | self.denied) - known - {BUILTIN})


def find(environ: Mapping[str, str], path: Sequence[str] | None = None) -> Discovery:
    """Find plugins on `path` (default: `sys.path`) and in the environment, sorted by name."""
    declared = scan(path)
    allowed = Allowed(environ.get(ALLOW))
    found: list[Found] = []
    denied: list[Found] = []
    failures = [_unknown_name(name) for name in allowed.unknown(declared)]
    for rows in _by_distribution(declared):
        if _is_builtin(rows[0]):
            continue
        fitting = [row for row in rows if row.group == GROUP]
        for row in fitting or rows:
            if not allowed.takes(row.name, row.dist):
                denied.append(_found(row))
        kept = [row for row in rows if allowed.takes(row.name, row.dist)]
        fitting = [row for row in kept if row.group == GROUP]
        if kept and not fitting:
            failures.extend(_other_loader(row) for row in kept if _is_loader_group(row.group))
        problems = _misnamed(fitting)
        failures.extend(problems)
        if not problems:
            found.extend(_found(row) for row in fitting)
    found, clashes = _drop_duplicates(found)
    local, broken = _local(environ)
    modules = {row.module for row in local} | {f"{row.module}.plugin" for row in local}
    found = [row for row in found if row.module not in modules]
    everything = [_builtin(), *sorted(found), *local]
    return Discovery(tuple(everything), tuple(sorted(denied)), (*failures, *clashes, *broken))


def _builtin() -> Found:
    """The core's own plugin: always there, also when its metadata is stale or missing."""
    return Found(BUILTIN, BUILTIN_MODULE, CORE, __version__, "builtin")


def _is_builtin(row: Declared) -> bool:
    return normalise(row.dist) == CORE


def _is_loader_group(group: str) -> bool:
    return re.fullmatch(r"sgld\.plugins\.v\d+", group) is not None


def _by_distribution(rows: Iterable[Declared]) -> Iterable[list[Declared]]:
    groups: dict[str, list[Declared]] = defaultdict(list)
    for row in rows:
        groups[normalise(row.dist)].append(row)
    return groups.values()


def _found(row: Declared) -> Found:
    return Found(row.name, row.value, row.dist, row.version, "installed", row.core)


def _unknown_name(name: str) -> Failure:
    return failure(
        "SGLD-P006",
        name,
        f"{ALLOW} names {name!r}, but no installed plugin has that name.",
        hint="`sgld plugins list` shows the names.",
    )


def _other_loader(row: Declared) -> Failure:
    return failure(
        "SGLD-P013",
        row.name,
        f"it is made for plugin loader {row.group!r}; "
        f"this sgld-core {__version__} speaks {GROUP!r}.",
        dist=row.dist,
        version=row.version,
        hint=f"Install a version of {row.dist} and sgld-core that fit each other.",
    )


def _misnamed(rows: Sequence[Declared]) -> list[Failure]:
    """Rows for names and values that break the rules, or several entry points in one dist."""
    problems: list[Failure] = []
    for row in rows:
        message = ""
        if not NAME_PATTERN.fullmatch(row.name):
            message = f"entry point name {row.name!r} is not lower-case words joined by '-'."
        elif row.name == BUILTIN:
            message = f"entry point name {row.name!r} is reserved for sgld-core."
        elif not MODULE_PATTERN.fullmatch(row.value):
            message = f"entry point value {row.value!r} is not the name of a module."
        elif len(rows) > 1:
            names = ", ".join(sorted(other.name for other in rows))
            message = f"a distribution has one entry point in {GROUP}; this one has {names}."
        if message:
            problems.append(
                failure(
                    "SGLD-P012",
                    row.name,
                    message,
                    dist=row.dist,
                    version=row.version,
                    hint="This is for the plugin's author to mend.",
                )
            )
    return problems


def _drop_duplicates(found: Sequence[Found]) -> tuple[list[Found], list[Failure]]:
    """Set aside every plugin whose name another distribution uses too; order never decides."""
    names: dict[str, list[Found]] = defaultdict(list)
    for row in found:
        names[row.name].append(row)
    clashes = [name_clash(row, rows) for rows in names.values() if len(rows) > 1 for row in rows]
    return [rows[0] for rows in names.values() if len(rows) == 1], clashes


def name_clash(row: Found, rows: Sequence[Found]) -> Failure:
    """The row that says which others have the same plugin name."""
    owners = " and ".join(sorted(f"{other.dist} {other.version}".strip() for other in rows))
    return failure(
        "SGLD-P005",
        row.name,
        f"plugin name {row.name!r} is used by {owners}; neither is used.",
        dist=row.dist,
        version=row.version,
        hint=f"Uninstall one, or leave one out: {ALLOW}=-{rows[-1].dist}.",
    )


def external_packages(environ: Mapping[str, str]) -> tuple[str, list[str]]:
    """The variable that counts and the packages that it names: sgld's own beats its alias."""
    variable = next((name for name in EXTERNAL if environ.get(name)), EXTERNAL[0])
    return variable, _names(environ.get(variable, ""))


def _names(text: str) -> list[str]:
    return list(dict.fromkeys(item.strip() for item in text.split(",") if item.strip()))


def _ignored_packages(environ: Mapping[str, str]) -> list[Failure]:
    """A note when both variables are set and the one that does not count names more."""
    own, alias = (_names(environ.get(name, "")) for name in EXTERNAL)
    ignored = [name for name in alias if name not in own]
    if not own or not ignored:
        return []
    return [
        failure(
            "SGLD-P006",
            ignored[0],
            f"{EXTERNAL[1]} names {', '.join(ignored)}, but {EXTERNAL[0]} is set too and counts.",
            hint=f"Name all packages in {EXTERNAL[0]}, or unset it.",
        )
    ]


def _local(environ: Mapping[str, str]) -> tuple[list[Found], list[Failure]]:
    """The packages that the environment names, as plugins without metadata."""
    variable, items = external_packages(environ)
    found: list[Found] = []
    broken = _ignored_packages(environ)
    for item in items:
        if MODULE_PATTERN.fullmatch(item):
            found.append(Found(item, item, item, "", "local"))
            continue
        broken.append(
            failure(
                "SGLD-P012",
                item,
                f"{variable} names {item!r}, which is not the name of a package.",
                hint="Give importable package names, separated by commas.",
            )
        )
    return found, broken
