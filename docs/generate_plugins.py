"""Writes the generated parts of docs/plugins.md: contracts, hooks and records.

uv run python docs/generate_plugins.py            write them
uv run python docs/generate_plugins.py --check    exit 1 when they are out of date

The words are the docstrings of `sgld.api.hooks` and `sgld.api.specs`.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sgld.api import hooks, specs
from sgld.api.contracts import CONTRACTS
from sgld.plugins.describe import HOOKS

PAGE = Path(__file__).with_name("plugins.md")
MARK = "<!-- {name}: written by docs/generate_plugins.py; change the docstrings, not this part. -->"
END = "<!-- end of {name} -->"
PARTS = (specs.Claims, specs.Where, specs.Preset, specs.Requires)
"""Records that stand inside others."""
USUAL = {
    "id": "Unique among the records of its kind.",
    "target": "What does the work, as `module:attribute`.",
    "replaces": "The distribution or plugin whose record with this id it takes the place of.",
}
"""Fields that mean the same in every record."""


def contracts() -> str:
    """The table of kinds and versions."""
    rows = [f"| `{kind}` | {low}..{high} |" for kind, (low, high) in CONTRACTS.items()]
    return "\n".join(["| kind | versions |", "|---|---|", *rows])


def reference() -> str:
    """Every hook with its record, and the records that stand inside others."""
    sections = [_hook("sgld_plugin", specs.Plugin, "Plugin")]
    for name, (_, record) in HOOKS.items():
        sections.append(_hook(name, record, f"Iterable[{record.__name__}]"))
    for record in PARTS:
        sections.append(f"### `{record.__name__}`\n\n{_doc(record)}\n\n{_table(record)}")
    return "\n\n".join(sections)


def _hook(name: str, record: type[Any], returns: str) -> str:
    parts = [f"### `{name}() -> {returns}`", _doc(getattr(hooks, name)), _doc(record)]
    return "\n\n".join([*dict.fromkeys(parts), _table(record)])


def _doc(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").strip()


def _table(record: type[Any]) -> str:
    rows = ["| field | type | default | meaning |", "|---|---|---|---|"]
    for name, kind, default, text in _fields(record):
        cells = (f"`{name}`", f"`{kind}`", default, text)
        rows.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(rows)


def _fields(record: type[Any]) -> Iterator[tuple[str, str, str, str]]:
    """Name, type, default and docstring of every field, as the source has them."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(record)))
    body = next(node for node in tree.body if isinstance(node, ast.ClassDef)).body
    for number, node in enumerate(body):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        after = body[number + 1] if number + 1 < len(body) else None
        name = node.target.id
        text = USUAL.get(name, "")
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            text = " ".join(str(after.value.value).split())
        default = "required" if node.value is None else f"`{_plain(node.value)}`"
        yield name, ast.unparse(node.annotation), default, text


def _plain(node: ast.expr) -> str:
    """A default as an author would write it."""
    names = {"EMPTY": "{}", "NATIVE": repr(specs.NATIVE), "(0, NO_LIMIT)": "(0, any)"}
    text = ast.unparse(node)
    return names.get(text, text)


def written(text: str) -> str:
    """`text` with its generated parts as they should be."""
    for name, make in (("contracts", contracts), ("hooks", reference)):
        begin, end = MARK.format(name=name), END.format(name=name)
        pattern = re.escape(begin) + r"\n.*?" + re.escape(end)
        if not re.search(pattern, text, re.DOTALL):
            raise SystemExit(f"docs/plugins.md has no part {name!r}")
        block = f"{begin}\n\n{make()}\n\n{end}"
        text = re.sub(pattern, lambda _, block=block: block, text, flags=re.DOTALL)
    return text


def main() -> int:
    """Write or check the page; returns the exit code."""
    text = PAGE.read_text(encoding="utf-8")
    if "--check" in sys.argv[1:]:
        print("docs/plugins.md is " + ("current" if written(text) == text else "out of date"))
        return int(written(text) != text)
    PAGE.write_text(written(text), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
