"""What `__call__` takes: names, the JSON scalars that an annotation allows, defaults, docs."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

SCALARS: Final[Mapping[str, type]] = {"int": int, "float": float, "bool": bool, "str": str}
WORD: Final = re.compile(r"[A-Za-z_][\w.]*")
DOC_LINE: Final = re.compile(r"^( +)(\w+) ?\(.*\):\s*(.*)$")


class _Unknown:
    """A default that is no literal."""

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN: Final = _Unknown()


class Argument(NamedTuple):
    """One argument of a pipeline's `__call__`.

    Args:
        scalars: JSON scalar types that it takes alone (not in a list), of int, float, bool, str.
        default: the literal default, or UNKNOWN.
        required: it has no default.
        annotation: as written.
        doc: the first sentence of its documentation.
    """

    name: str
    scalars: tuple[type, ...]
    default: Any
    required: bool
    annotation: str
    doc: str = ""


def read_signature(function: ast.FunctionDef) -> dict[str, Argument]:
    """The arguments of a method in order, without `self`."""
    docs = _docs(ast.get_docstring(function) or "")
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    missing: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
    pairs = [
        *zip(positional, [*missing, *arguments.defaults], strict=True),
        *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
    ]
    read: dict[str, Argument] = {}
    for arg, default in pairs[1:]:
        written = ast.unparse(arg.annotation) if arg.annotation is not None else ""
        value = _literal(default)
        scalars = _scalars(arg.annotation) if written else _of_value(value)
        read[arg.arg] = Argument(
            arg.arg, scalars, value, default is None, written, docs.get(arg.arg, "")
        )
    return read


def _literal(node: ast.expr | None) -> Any:
    try:
        return ast.literal_eval(node) if node is not None else UNKNOWN
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return UNKNOWN


def _of_value(value: Any) -> tuple[type, ...]:
    return (type(value),) if type(value) in SCALARS.values() else ()


def _scalars(node: ast.expr | None) -> tuple[type, ...]:
    """The scalar alternatives of an annotation."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return _scalars(_parsed(node.value))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return tuple(dict.fromkeys((*_scalars(node.left), *_scalars(node.right))))
    if isinstance(node, ast.Subscript):
        outer = ast.unparse(node.value).rpartition(".")[2]
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if outer in ("Optional", "Union"):
            return tuple(dict.fromkeys(kind for item in inner for kind in _scalars(item)))
        return ()
    if isinstance(node, ast.Name) and node.id in SCALARS:
        return (SCALARS[node.id],)
    return ()


def _parsed(text: str) -> ast.expr | None:
    """An annotation that is written as text; None when it is no expression."""
    try:
        return ast.parse(text, mode="eval").body
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None


def _docs(text: str) -> dict[str, str]:
    """Argument → the first sentence that the docstring says of it."""
    found: dict[str, str] = {}
    name, indent = "", 0
    for line in text.splitlines():
        match = DOC_LINE.match(line)
        if match and (not name or len(match[1]) <= indent):
            name, indent = match[2], len(match[1])
            found[name] = match[3]
        elif name and line.strip() and len(line) - len(line.lstrip()) > indent:
            found[name] = f"{found[name]} {line.strip()}".strip()
        elif line.strip():
            name = ""
    return {key: _sentence(value) for key, value in found.items()}


def _sentence(text: str) -> str:
    plain = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", text).replace("`", "").replace("~", "")
    end = re.search(r"\.(\s|$)", plain)
    first = plain[: end.start() + 1] if end else plain.rstrip(" ,;:")
    first += "" if not first or first[-1] in ".!?" else "."
    return first if len(first) <= 300 else first[:297] + "..."
