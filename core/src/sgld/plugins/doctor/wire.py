"""Records as JSON and back, so that they cross from a plugin's process without running its code.

Public: `pack(value)`, `unpack(value)`. Pickle would import the plugin's classes in the process that
must survive it. A value that is no plain data (a preset may hold one) arrives as its `repr`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from sgld.api import specs
from sgld.plugins.describe import HOOKS
from sgld.plugins.find import Found

RECORDS: Final[Mapping[str, type[Any]]] = {
    kind.__name__: kind
    for kind in (
        *(kind for _, kind in HOOKS.values()),
        specs.Plugin,
        specs.Requires,
        specs.Where,
        specs.Claims,
        specs.Preset,
        specs.Failure,
        Found,
    )
}
KEY: Final = "is"
"""The one key that every packed container has, so that no mapping of a plugin looks like one."""


def pack(value: Any) -> Any:
    """JSON values from which `unpack` makes an equal value."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if type(value) in RECORDS.values():
        return {KEY: type(value).__name__, "items": [pack(item) for item in value]}
    if isinstance(value, tuple | list | set | frozenset):
        word = next(kind for kind in ("tuple", "list", "set") if _is_a(value, kind))
        items = cast("tuple[Any, ...]", value)
        return {KEY: word, "items": [pack(item) for item in items]}
    if isinstance(value, Mapping):
        pairs = cast("Mapping[Any, Any]", value).items()
        return {KEY: "map", "items": [[pack(key), pack(item)] for key, item in pairs]}
    return {KEY: "repr", "items": repr(value)}


def _is_a(value: Any, word: str) -> bool:
    kinds: Mapping[str, Any] = {"tuple": tuple, "list": list, "set": (set, frozenset)}
    return isinstance(value, kinds[word])


def unpack(value: Any) -> Any:
    """What `pack` was given; sets come back frozen. Raises ValueError for anything else."""
    if not isinstance(value, dict):
        return value
    row = cast("dict[str, Any]", value)
    word, items = row.get(KEY), row.get("items")
    if word == "repr":
        return items
    if not isinstance(items, list):
        raise ValueError(f"{value!r:.80} is no packed value")
    rows = cast("list[Any]", items)
    if word == "map":
        return {unpack(key): unpack(item) for key, item in rows}
    inner = [unpack(item) for item in rows]
    if word in RECORDS:
        return RECORDS[word]._make(inner)
    if word in ("tuple", "list", "set"):
        return {"tuple": tuple, "list": list, "set": frozenset}[word](inner)
    raise ValueError(f"{word!r} is no kind of packed value")
