"""Writes the tables of docs/server.md from the code, so that they cannot be wrong.

uv run python docs/generate_server.py            write the tables
uv run python docs/generate_server.py --check    exit 1 when the page is out of date
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from sgld.params.options import rule
from sgld.params.server import ServerOptions
from sgld.server.spelling import ALIASES, APPROXIMATE, EXACT, OFF_ONLY, REFUSED, WITHOUT_EFFECT

PAGE = Path(__file__).with_name("server.md")


def options_table() -> str:
    """One row for each option of `ServerOptions`."""
    rows = ["| flag | must be | default | meaning |", "|---|---|---|---|"]
    for name, field in ServerOptions.model_fields.items():
        default = field.default
        shown = "-" if default in (None, ()) else f"`{json.dumps(default)}`"
        flag = f"--{name.replace('_', '-')}"
        rows.append(_row(f"`{flag}`", rule(field), shown, field.description or ""))
    return "\n".join(rows)


def fields_table() -> str:
    """Names that requests may use without being parameters, and those that are refused."""
    rows = ["| field | what happens |", "|---|---|"]
    rows += [_row(f"`{name}`", f"the same as `{real}`") for name, real in ALIASES.items()]
    rows.append(
        _row("`quality`", f"no effect: {_words(EXACT)}; with a warning: {_words(APPROXIMATE)}")
    )
    rows += [_row(f"`{n}`", f"no effect: {why}") for n, why in WITHOUT_EFFECT.items()]
    rows.append(_row(_words(sorted(OFF_ONLY)), "only `false`"))
    grouped: dict[str, list[str]] = {}
    for name, remedy in REFUSED.items():
        grouped.setdefault(remedy, []).append(name)
    rows += [_row(_words(names), f"refused: {remedy}") for remedy, names in grouped.items()]
    return "\n".join(rows)


def _words(words: list[str] | tuple[str, ...]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def page(text: str) -> str:
    """`text` of the page with the tables in their places."""
    tables: Mapping[str, str] = {"options": options_table(), "fields": fields_table()}
    for name, table in tables.items():
        begin = f"<!-- {name}: written by docs/generate_server.py -->"
        end = f"<!-- end of {name} -->"
        head, _, rest = text.partition(begin)
        _, _, tail = rest.partition(end)
        text = f"{head}{begin}\n{table}\n{end}{tail}"
    return text


def main() -> int:
    """Write or check the tables; returns the exit code."""
    current = PAGE.read_text(encoding="utf-8")
    text = page(current)
    if "--check" in sys.argv[1:]:
        print("docs/server.md is " + ("current" if current == text else "out of date"))
        return int(current != text)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
