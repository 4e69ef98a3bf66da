"""Configuration files: flat YAML or JSON with settings under their usual names.

`read_config(path) -> Layer`. Dashes and underscores are the same. A file that is missing, empty,
no mapping, broken or says a key twice is a `UserError` with the line. YAML is read by the rules
of YAML 1.2: only true and false are booleans, so `batching: off` is the word "off".
`read_value(text)` reads one value in the same way.
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from sgld.api.errors import UserError
from sgld.params.components import alias
from sgld.params.merge import Layer
from sgld.params.nearest import canonical

MAX_BYTES = 1 << 20


class _Loader(yaml.SafeLoader):
    """Safe YAML with the scalars of the 1.2 core schema and without merge keys or dates."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - the parent's own protocol


for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", "~nN\0"),
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]+", "-+0123456789"),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
    ),
):
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}",
        re.compile(rf"^(?:{_pattern})$"),
        ["" if first == "\0" else first for first in _first],
    )


def _int(loader: yaml.SafeLoader, node: ScalarNode) -> Any:
    text = str(loader.construct_scalar(node))
    return int(text) if len(text) < 64 else text


def _float(loader: yaml.SafeLoader, node: ScalarNode) -> float:
    return float(
        str(loader.construct_scalar(node)).lower().replace(".inf", "inf").replace(".nan", "nan")
    )


_Loader.add_constructor("tag:yaml.org,2002:int", _int)
_Loader.add_constructor("tag:yaml.org,2002:float", _float)


def read_config(path: str | Path) -> Layer:
    """The settings of a YAML or JSON file as a layer that knows its line numbers.

    Raises `UserError` (codes `config_missing`, `config_empty`, `config_broken`,
    `config_not_a_mapping`, `config_duplicate_key`).
    """
    path = Path(path)
    text = _read(path)
    root = _compose(path, text)
    _refuse_duplicates(path, root)
    values = _values(path, text)
    lines = {str(key.value): key.start_mark.line + 1 for key, _ in root.value}
    named: dict[str, Any] = {}
    spelled: dict[str, str] = {}
    places: dict[str, int] = {}
    for key, value in values.items():
        name, entry = alias(str(key), value)
        before = named.get(name, {})
        both = isinstance(before, dict) and isinstance(entry, dict)
        if both and not before.keys() & entry.keys():
            entry = {**before, **entry}
        elif name in named:
            raise _error(path, lines.get(str(key), 0), f"{key} says {name} again", "duplicate_key")
        named[name], spelled[name], places[name] = entry, str(key), lines.get(str(key), 0)
    return Layer("file", named, str(path), places, spelled)


def read_value(text: str) -> Any:
    """One word of a command line as a settings file has its values: true, null, numbers, lists and
    tables in YAML; anything else is text, a date too."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError:
        return text


def _error(path: Path, line: int, message: str, code: str, remedy: str = "") -> UserError:
    where = f"{path}:{line}" if line else str(path)
    return UserError(f"{where}: {message}.", code=f"config_{code}", remedy=remedy)


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise _error(path, 0, f"the file is larger than {MAX_BYTES} bytes", "broken")
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise _error(path, 0, "there is no such file", "missing", "Check --config.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise _error(path, 0, f"the file cannot be read ({error})", "broken") from None
    if not text.strip():
        raise _error(path, 0, "the file is empty", "empty", "Write settings as NAME: VALUE.")
    return text


def _compose(path: Path, text: str) -> MappingNode:
    """The node tree, for keys and lines. JSON is read as YAML too, so tabs become blanks."""
    is_json = path.suffix.lower() == ".json"
    if is_json:
        try:
            json.loads(text)
        except json.JSONDecodeError as error:
            raise _error(path, error.lineno, f"this is not JSON ({error.msg})", "broken") from None
    try:
        root = yaml.compose(text.replace("\t", " ") if is_json else text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        raise _error(path, line, f"this is not YAML ({error.problem})", "broken") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise _error(path, 0, f"this is not YAML ({error})", "broken") from None
    if root is None:
        raise _error(path, 0, "the file is empty", "empty", "Write settings as NAME: VALUE.")
    if not isinstance(root, MappingNode):
        line = root.start_mark.line + 1
        raise _error(path, line, "the file must hold settings as NAME: VALUE", "not_a_mapping")
    return root


def _refuse_duplicates(path: Path, node: Node, done: set[int] | None = None) -> None:
    top, done = done is None, done or set()
    # An anchor makes one node appear many times; looking at it once keeps this linear.
    if id(node) in done:
        return
    done.add(id(node))
    if isinstance(node, SequenceNode):
        for child in node.value:
            _refuse_duplicates(path, child, done)
    if not isinstance(node, MappingNode):
        return
    seen: dict[Hashable, int] = {}
    for key, child in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, ScalarNode):
            raise _error(path, line, "a key must be a plain word", "broken")
        name = canonical(key.value) if top else key.value
        if name in seen:
            message = f"{key.value} is given twice, first in line {seen[name]}"
            raise _error(path, line, message, "duplicate_key", "Remove one of them.")
        seen[name] = line
        _refuse_duplicates(path, child, done)


def _values(path: Path, text: str) -> dict[str, Any]:
    if path.suffix.lower() == ".json":
        return json.loads(text)
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        raise _error(path, line, f"this cannot be used ({error.problem})", "broken") from None
