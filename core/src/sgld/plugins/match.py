"""Recognise a checkpoint: every pipeline's claims give a score, the best score wins.

Public: `score_all(entries, evidence, load) -> list[Tried]`, `merge_presets(spec, evidence)`,
`Evidence`, `Files` (what is asked of `sgld.weights.resolve.ModelFiles`). Scores are documented at
`sgld.api.specs.Claims`; the order in which plugins were found has no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, cast

from sgld.api.errors import PluginError, SgldError
from sgld.api.specs import Claims, Failure, PipelineSpec, Preset, Where
from sgld.plugins.failures import failure
from sgld.plugins.resolve import Entry

REPO, ALIAS, RULES, FILES, DETECT, PATTERN, LONGEST = 100, 90, 80, 70, 60, 20, 50
PINNED: Final = 1000
_ABSENT: Final = object()


class Files(Protocol):
    """What recognition asks of a resolved model; see `sgld.weights.resolve.ModelFiles`."""

    @property
    def root(self) -> Path:
        """The folder."""
        ...

    @property
    def name(self) -> str:
        """The last part of the path or repo id."""
        ...

    @property
    def repo_id(self) -> str | None:
        """The hub id, where the model came from the hub."""
        ...

    def exists(self, relative: str) -> bool:
        """Whether a file is there."""
        ...

    def read_json(self, relative: str) -> dict[str, Any] | None:
        """A JSON file, or None when it is missing."""
        ...

    def path(self, relative: str) -> Path:
        """Where a file would lie."""
        ...

    def glob(self, pattern: str) -> list[Path]:
        """Files below the folder that fit a pattern, sorted."""
        ...


class NameOnly:
    """A model of which only the name is known: no file is there. A detector may be asked about it
    and sees what it would see of an empty folder."""

    revision: str | None = None
    file: Path | None = None
    origin = "local"

    def __init__(self, model: str) -> None:
        self.root = Path(model)
        self.name = model.rstrip("/").rpartition("/")[2]
        self.repo_id = model if model.count("/") == 1 and model[:1] not in "./~" else None

    def exists(self, relative: str) -> bool:
        """No file is there."""
        return False

    def read_json(self, relative: str) -> dict[str, Any] | None:
        """No file is there."""
        return None

    def path(self, relative: str) -> Path:
        """Where it would be."""
        return self.root / relative

    def glob(self, pattern: str) -> list[Path]:
        """No file is there."""
        return []


class Tried(NamedTuple):
    """What one pipeline's claims made of a checkpoint; score 0 when nothing fits, with `failure`
    when its detector is broken."""

    pipeline: str
    dist: str
    score: int
    evidence: str
    failure: Failure | None = None


class Evidence:
    """A checkpoint as recognition sees it; each JSON file is read once."""

    def __init__(self, files: Files, model_id: str = "") -> None:
        self.files = files
        self.model_id = model_id
        self.name = files.name
        self.repo_id = model_id or files.repo_id or _repo_in_cache_path(files.root)
        self._json: dict[str, dict[str, Any] | None] = {}

    def read(self, file: str) -> dict[str, Any] | None:
        """A JSON file of the checkpoint, or None when it is missing."""
        if file not in self._json:
            self._json[file] = self.files.read_json(file)
        return self._json[file]

    def class_name(self) -> str:
        """`_class_name` of the model index, or an empty string."""
        for file in ("model_index.json", "modular_model_index.json"):
            value = (self.read(file) or {}).get("_class_name")
            if isinstance(value, str):
                return value
        return ""

    def names(self) -> set[str]:
        """The names under which it may be claimed by alias, lower case."""
        names = {self.model_id, self.model_id.rpartition("/")[2]} if self.model_id else {self.name}
        return {name.lower() for name in names if name}


def _repo_in_cache_path(root: Path) -> str:
    """The repo id that a hub cache folder `models--org--name` spells, or an empty string."""
    for part in reversed(root.parts):
        if part.startswith("models--"):
            return part.removeprefix("models--").replace("--", "/", 1)
    return ""


def holds(where: Where, evidence: Evidence) -> bool:
    """Whether one condition on a JSON file of the checkpoint is true."""
    data = evidence.read(where.file)
    if data is None:
        return where.test == "unset" and where.optional_file
    value = _walk(data, where.key)
    match where.test:
        case "==":
            return _plain(value) == _plain(where.value)
        case "!=":
            return _plain(value) != _plain(where.value)
        case "in":
            return _plain(value) in [_plain(item) for item in where.value]
        case "set":
            return _is_set(value)
        case "unset":
            return not _is_set(value)
        case _:
            raise ValueError(f"unknown test {where.test!r}")


def _walk(data: Any, key: str) -> Any:
    """Follow a dotted key through mappings, and through lists where a part is a number."""
    for part in key.split("."):
        if isinstance(data, Mapping):
            data = cast("Mapping[str, Any]", data).get(part, _ABSENT)
        elif isinstance(data, list) and part.isdigit() and int(part) < len(cast("list[Any]", data)):
            data = cast("list[Any]", data)[int(part)]
        else:
            return _ABSENT
    return data


def _plain(value: Any) -> Any:
    """JSON has lists where a record has tuples; the two are equal here."""
    if isinstance(value, tuple | list):
        return [_plain(item) for item in cast("Sequence[Any]", value)]
    return value


def _is_set(value: Any) -> bool:
    """Present, and neither null, false nor empty. `[null, null]` is an absent component."""
    if value is _ABSENT or value is None or value is False:
        return False
    if isinstance(value, list):
        return any(item is not None for item in cast("list[Any]", value))
    return not (isinstance(value, str | dict) and not value)


def best_rule(rules: Iterable[tuple[Where, ...]], evidence: Evidence) -> tuple[Where, ...]:
    """The alternative with most conditions of which all hold, or an empty one."""
    fitting = [rule for rule in rules if all(holds(where, evidence) for where in rule)]
    return max(fitting, key=len, default=())


def score(claims: Claims, evidence: Evidence) -> tuple[int, str]:
    """Score and reason from everything that needs no foreign code."""
    repo = evidence.repo_id.lower()
    if repo and repo in {name.lower() for name in claims.repos}:
        return REPO, f"repo id {evidence.repo_id}"
    known = {name.lower() for name in claims.aliases}
    if evidence.model_id:  # a hint may leave out the organisation
        known |= {name.rpartition("/")[2].lower() for name in claims.repos}
    aliases = evidence.names() & known
    if aliases:
        return ALIAS, f"alias {min(aliases)}"
    rule = best_rule(claims.rules, evidence)
    if rule:
        return RULES + min(len(rule) - 1, 9), " and ".join(show(where) for where in rule)
    for file in claims.files:
        if evidence.files.exists(file):
            return FILES, f"file {file}"
    return 0, ""


def show(where: Where) -> str:
    """A condition in words, for tables and messages."""
    place = f"{where.file}:{where.key}"
    if where.test in ("set", "unset"):
        return f"{place} is {where.test}"
    return f"{place} {where.test} {where.value!r}"


def _pattern_score(claims: Claims, evidence: Evidence) -> tuple[int, str]:
    name = (evidence.model_id or evidence.repo_id or evidence.name).rpartition("/")[2].lower()
    fitting = [pattern for pattern in claims.patterns if fnmatchcase(name, pattern.lower())]
    longest = max(fitting, key=len, default="")
    if not longest:
        return 0, ""
    return min(PATTERN + len(longest), LONGEST), f"name pattern {longest}"


def _detect_score(
    entry: Entry[PipelineSpec], evidence: Evidence, load: Callable[[str, Entry[Any]], Any]
) -> tuple[int, str]:
    target = entry.spec.claims.detect
    if not target:
        return 0, ""
    try:
        value = load(target, entry)(evidence.files)
    except SgldError:
        raise
    except SystemExit as error:
        raise _bad_detect(entry, f"tried to leave the process (exit {error.code!r})") from error
    except Exception as error:
        raise _bad_detect(entry, f"raised {type(error).__name__}: {error}") from error
    if not isinstance(value, int) or isinstance(value, bool):
        raise _bad_detect(entry, f"gave {value!r}, not a score from 0 to {DETECT}")
    return max(0, min(value, DETECT)), f"detected by {target}"


def _bad_detect(entry: Entry[PipelineSpec], what: str) -> PluginError:
    row = failure(
        "SGLD-P007",
        entry.plugin,
        f"detector {entry.spec.claims.detect} of pipeline {entry.spec.id!r} {what}.",
        dist=entry.dist,
        version=entry.version,
    )
    return PluginError(str(row), failures=(row,))


def score_all(
    entries: Iterable[Entry[PipelineSpec]],
    evidence: Evidence,
    load: Callable[[str, Entry[Any]], Any],
) -> list[Tried]:
    """Every pipeline's score, best first; detectors run only when nothing stronger was found.

    A broken detector is a row with its failure, so that it hinders no other pipeline.
    """
    rows = list(entries)
    tried = [
        Tried(entry.spec.id, entry.dist, *score(entry.spec.claims, evidence)) for entry in rows
    ]
    if not any(row.score for row in tried):
        tried = [_weak(entry, evidence, load) for entry in rows]
    return sorted(tried, key=lambda row: (-row.score, row.pipeline))


def _weak(
    entry: Entry[PipelineSpec], evidence: Evidence, load: Callable[[str, Entry[Any]], Any]
) -> Tried:
    best, broken = _pattern_score(entry.spec.claims, evidence), None
    try:
        best = max(best, _detect_score(entry, evidence, load), key=lambda row: row[0])
    except PluginError as error:
        broken = next(iter(error.failures), None)
        if broken is None:
            raise
        best = best if best[0] else (0, f"its detector is broken: {broken.message}")
    return Tried(entry.spec.id, entry.dist, *best, broken)


class Merged(NamedTuple):
    """Which presets apply to a checkpoint, weakest first, and the defaults they add up to."""

    ids: tuple[str, ...]
    defaults: dict[str, Any]


def merge_presets(spec: PipelineSpec, evidence: Evidence) -> Merged:
    """The family's base presets, then the one that fits the checkpoint best.

    Raises PluginError when two presets fit equally well and disagree.
    """
    base = [preset for preset in spec.presets if not preset.repos and not preset.rules]
    ranked = [(_fit(preset, evidence), preset) for preset in spec.presets if preset not in base]
    best = max((rank for rank, _ in ranked), default=0)
    winners = [preset for rank, preset in ranked if rank == best] if best else []
    for other in winners[1:]:
        if dict(other.defaults) != dict(winners[0].defaults):
            raise _equal_presets(spec, winners[0], other)
    chosen = [*base, *winners[:1]]
    defaults: dict[str, Any] = {}
    for preset in chosen:
        defaults.update(preset.defaults)
    return Merged(tuple(preset.id for preset in chosen), defaults)


def _fit(preset: Preset, evidence: Evidence) -> int:
    """0 for no fit, else the number of conditions; an exact repo id beats any number of them."""
    repo = evidence.repo_id.lower()
    names = {name.lower() for name in preset.repos}
    short = {name.rpartition("/")[2] for name in names} if evidence.model_id else set[str]()
    if repo and repo in names | short:
        return PINNED
    return len(best_rule(preset.rules, evidence))


def _equal_presets(spec: PipelineSpec, one: Preset, other: Preset) -> PluginError:
    return PluginError(
        f"presets {one.id!r} and {other.id!r} of pipeline {spec.id!r} fit this checkpoint equally "
        "well and disagree.",
        remedy="Give the parameters explicitly and report this to the plugin's author.",
    )
