"""Check that a record is well formed, before anything is stored: a table of small tests.

Public: `problems(record) -> list[str]`; each text names the field, the value and what is wanted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from sgld.api import specs
from sgld.plugins.failures import meant
from sgld.plugins.find import NAME_PATTERN

Check = Callable[[Any], str]
"""Returns what is wanted instead, or an empty string when the value is right."""

OP_PATTERN: Final = re.compile(r"[a-z][a-z0-9_]*(?:\.[a-z0-9_]+)+")
NUMERICS_PATTERN: Final = re.compile(r"exact|(?:atol|rtol)=\d+(?:\.\d+)?(?:e-?\d+)?")
TESTS: Final = ("==", "!=", "in", "set", "unset")


def problems(record: Any) -> list[str]:
    """Everything that is wrong with a record, or an empty list."""
    retired = bool(getattr(record, "retired", ""))
    rows: list[str] = []
    for field in cast("tuple[str, ...]", record._fields):
        value = getattr(record, field)
        if retired and field in ("target", "params", "tasks") and not value:
            continue  # a tombstone has no code any more
        own = MODEL_CHECKS if isinstance(record, specs.ModelSpec) else CHECKS
        wanted = own.get(field, _anything)(value)
        if wanted:
            rows.append(f"{field}={_shown(value)}: {wanted}")
    return rows


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _text(value: Any) -> str:
    return "" if isinstance(value, str) else "must be text"


def _filled(value: Any) -> str:
    return "" if isinstance(value, str) and value.strip() else "must be text that is not empty"


def _boolean(value: Any) -> str:
    return "" if isinstance(value, bool) else "must be True or False"


def _whole(value: Any) -> str:
    return "" if isinstance(value, int) and not isinstance(value, bool) else "must be an integer"


def _not_negative(value: Any) -> str:
    return _whole(value) or ("" if value >= 0 else "must not be negative")


def _positive(value: Any) -> str:
    return _whole(value) or ("" if value >= 1 else "must be at least 1")


def _matches(pattern: re.Pattern[str], wanted: str) -> Check:
    def check(value: Any) -> str:
        return "" if isinstance(value, str) and pattern.fullmatch(value) else wanted

    return check


def _or_empty(check: Check) -> Check:
    return lambda value: "" if value == "" else check(value)


def _texts(value: Any) -> str:
    if not isinstance(value, tuple):
        return "must be a tuple of texts"
    items = cast("tuple[Any, ...]", value)
    return "" if all(isinstance(item, str) and item for item in items) else "must hold only texts"


def _some_texts(value: Any) -> str:
    return _texts(value) or ("" if value else "must name at least one")


def _tasks(value: Any) -> str:
    """No route serves another task, so that a misspelled one is never served."""
    odd = (
        "" if _some_texts(value) else next((name for name in value if name not in specs.TASKS), "")
    )
    if not odd:
        return _some_texts(value)
    said = [f"unknown task {odd!r}.", meant(odd, specs.TASKS), f"Known: {', '.join(specs.TASKS)}"]
    return " ".join(part for part in said if part)


def _text_set(value: Any) -> str:
    if not isinstance(value, frozenset):
        return "must be a frozenset of texts"
    items = cast("frozenset[Any]", value)
    return "" if all(isinstance(item, str) for item in items) else "must hold only texts"


def _record(kind: type[Any]) -> Check:
    def check(value: Any) -> str:
        if not isinstance(value, kind):
            return f"must be a {kind.__name__} record"
        return "; ".join(problems(value))

    return check


def _arch(value: Any) -> str:
    wanted = "must be (lowest, highest) as whole numbers with 0 <= lowest <= highest"
    if not isinstance(value, tuple) or len(cast("tuple[Any, ...]", value)) != 2:
        return wanted
    low, high = cast("tuple[Any, Any]", value)
    if _whole(low) or _whole(high) or not 0 <= low <= high:
        return wanted
    return ""


def _mapping(check_key: Check, check_value: Check) -> Check:
    def check(value: Any) -> str:
        if not isinstance(value, Mapping):
            return "must be a mapping"
        for key, item in cast("Mapping[Any, Any]", value).items():
            wanted = check_key(key) or check_value(item)
            if wanted:
                return f"entry {_shown(key)}: {_shown(item)} {wanted}"
        return ""

    return check


def _rules(value: Any) -> str:
    wanted = "must be a tuple of alternatives, each a tuple of Where records"
    if not isinstance(value, tuple):
        return wanted
    for alternative in cast("tuple[Any, ...]", value):
        if not isinstance(alternative, tuple) or not alternative:
            return wanted
        for where in cast("tuple[Any, ...]", alternative):
            if not isinstance(where, specs.Where):
                return wanted
            rows = problems(where)
            if where.test == "in" and not isinstance(where.value, tuple | list | frozenset | set):
                rows.append("test 'in' needs a tuple as value")
            if rows:
                return "; ".join(rows)
    return ""


def _presets(value: Any) -> str:
    if not isinstance(value, tuple):
        return "must be a tuple of Preset records"
    seen: set[str] = set()
    for preset in cast("tuple[Any, ...]", value):
        if not isinstance(preset, specs.Preset):
            return "must hold only Preset records"
        rows = problems(preset)
        if rows:
            return f"preset {preset.id!r}: " + "; ".join(rows)
        if preset.id in seen:
            return f"two presets have the id {preset.id!r}"
        seen.add(preset.id)
    return ""


def _identifier(value: Any) -> str:
    return "" if isinstance(value, str) and value.isidentifier() else "must be a parameter name"


def _anything(value: Any) -> str:
    return ""


def _test(value: Any) -> str:
    return "" if value in TESTS else f"must be one of {', '.join(TESTS)}"


def _path(value: Any) -> str:
    good = isinstance(value, str) and value.startswith("/") and " " not in value
    return "" if good else "must be a path that begins with /"


def _methods(value: Any) -> str:
    wanted = _some_texts(value)
    return wanted or ("" if all(item == item.upper() for item in value) else "must be upper case")


_ID: Final = _matches(specs.ID_PATTERN, "must be lower-case words joined by '-' or '.'")
_TARGET: Final = _matches(specs.TARGET_PATTERN, "must be 'module:attribute'")
_NAME: Final = _matches(NAME_PATTERN, "must be lower-case words joined by '-'")

CHECKS: Final[Mapping[str, Check]] = {
    "abilities": _texts,
    "aliases": _texts,
    "arch": _arch,
    "attention": _texts,
    "backend": _NAME,
    "blank": _text,
    "blueprints": _mapping(_filled, _TARGET),
    "components": _mapping(_filled, _filled),
    "layout": _or_empty(_TARGET),
    "bounded": _boolean,
    "caches": _texts,
    "can": _text_set,
    "claims": _record(specs.Claims),
    "collective": _text,
    "contract": _positive,
    "contracts": _mapping(_filled, _positive),
    "defaults": _mapping(_identifier, _anything),
    "detect": _or_empty(_TARGET),
    "device": _filled,
    "dtypes": _texts,
    "events": _texts,
    "exact": _boolean,
    "family": _filled,
    "features": _text_set,
    "file": _filled,
    "files": _texts,
    "folder": _matches(specs.FOLDER_PATTERN, "must be 'package:folder'"),
    "help": _filled,
    "homepage": _text,
    "id": _ID,
    "inspect": _or_empty(_TARGET),
    "key": _filled,
    "lossless": _boolean,
    "max_running": _not_negative,
    "methods": _methods,
    "name": _NAME,
    "needs": _texts,
    "numerics": _matches(NUMERICS_PATTERN, "must be 'exact', 'atol=NUMBER' or 'rtol=NUMBER'"),
    "op": _matches(OP_PATTERN, "must be 'group.name'"),
    "optional_file": _boolean,
    "outputs": _texts,
    "packages": _texts,
    "params": _TARGET,
    "path": _path,
    "patterns": _texts,
    "picture": _text,
    "pipeline": _ID,
    "presets": _presets,
    "priority": _whole,
    "programs": _texts,
    "probe": _TARGET,
    "quant": _texts,
    "reads": _texts,
    "replaces": _text,
    "repos": _texts,
    "requires": _record(specs.Requires),
    "retired": _text,
    "rules": _rules,
    "summary": _text,
    "target": _TARGET,
    "tasks": _tasks,
    "test": _test,
    "uses": _texts,
    "value": _anything,
    "writes": _texts,
}

MODEL_CHECKS: Final[Mapping[str, Check]] = {
    **CHECKS,
    "id": _matches(specs.MODEL_PATTERN, "must be two lower-case names with a colon: 'acme:one'"),
    "tasks": lambda value: "" if value == () else _tasks(value),
}
"""Those of a checkpoint: its id is what users type as a model, its tasks may be the pipeline's."""
