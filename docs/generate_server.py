"""Writes the tables of docs/server.md and docs/realtime.md from the code, so that they cannot be
wrong.

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
from sgld.server.realtime.fields import NEUTRAL, NO_EFFECT, NOT_HERE, OFF, SessionSettings
from sgld.server.spelling import ALIASES, APPROXIMATE, EXACT, OFF_ONLY, REFUSED, WITHOUT_EFFECT

PAGE = Path(__file__).with_name("server.md")
REALTIME = Path(__file__).with_name("realtime.md")
MODEL_FIELDS = (
    ("`type`", '`"init"`', "required", ""),
    ("`protocol`", "1 or 2", "`1`", "Which protocol the client speaks."),
    ("`model`", "the served model's name", "none", "Refused when it is another one."),
    ("`prompt`", "text", "required", "What to show."),
    (
        "`first_frame`",
        "the bytes of a picture, an `http(s)://` or a `data:image/…` URL",
        "none",
        "Where the world starts; some models need it (`needs_first_frame`).",
    ),
    ("`condition_inputs`", "a map", "none", "Conditions of the model, see its page."),
    (
        "`size`, `width`, `height`, `fps`, …",
        "as in `GET /v1/models/{name}`, `realtime.parameters`",
        "the model's own",
        "Every parameter of the model; `realtime_causal_sink_size` and "
        "`realtime_causal_kv_cache_num_frames` among them, where the model has them.",
    ),
)
"""Fields of an init message that the model's adapter or its parameters read."""


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


def session_fields_table() -> str:
    """One row for each field of an init message that the server itself takes."""
    rows = ["| field | must be | default | meaning |", "|---|---|---|---|"]
    rows += [_row(*cells) for cells in MODEL_FIELDS]
    for name, field in SessionSettings.model_fields.items():
        default = "none" if field.default is None else f"`{json.dumps(field.default)}`"
        rows.append(_row(f"`{name}`", rule(field), default, field.description or ""))
    rows.append(_row("`snapshot`", "bytes", "none", "Continue from a snapshot. Protocol 2."))
    text = "The answer repeats it. Protocol 2."
    rows.append(_row("`event_id`", "a whole number of 64 bits", "none", text))
    return "\n".join(rows)


def session_others_table() -> str:
    """Fields of an init message without effect, and those that are refused."""
    rows = ["| field | what happens |", "|---|---|"]
    rows += [_row(f"`{name}`", f"no effect: {why}") for name, why in NO_EFFECT.items()]
    rows.append(
        _row("`quality`", f"no effect: {_words(EXACT)}; with a warning: {_words(APPROXIMATE)}")
    )
    rows += [
        _row(f"`{name}`", f"no effect when it is `{json.dumps(value)}`; else it is the model's own")
        for name, value in NEUTRAL.items()
    ]
    rows.append(_row(_words(sorted(OFF)), "only `false`"))
    grouped: dict[str, list[str]] = {}
    for name, remedy in NOT_HERE.items():
        grouped.setdefault(remedy, []).append(name)
    rows += [_row(_words(names), f"refused: {remedy}") for remedy, names in grouped.items()]
    return "\n".join(rows)


def _words(words: list[str] | tuple[str, ...]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def page(text: str) -> str:
    """`text` of docs/server.md with the tables in their places."""
    return _filled(text, {"options": options_table(), "fields": fields_table()})


def realtime_page(text: str) -> str:
    """`text` of docs/realtime.md with the tables in their places."""
    tables = {"session fields": session_fields_table(), "session others": session_others_table()}
    return _filled(text, tables)


def _filled(text: str, tables: Mapping[str, str]) -> str:
    for name, table in tables.items():
        begin = f"<!-- {name}: written by docs/generate_server.py -->"
        end = f"<!-- end of {name} -->"
        head, _, rest = text.partition(begin)
        _, _, tail = rest.partition(end)
        text = f"{head}{begin}\n{table}\n{end}{tail}"
    return text


def main() -> int:
    """Write or check the tables; returns the exit code."""
    old = 0
    for path, fill in ((PAGE, page), (REALTIME, realtime_page)):
        current = path.read_text(encoding="utf-8")
        text = fill(current)
        if "--check" in sys.argv[1:]:
            print(f"docs/{path.name} is " + ("current" if current == text else "out of date"))
            old |= current != text
        else:
            path.write_text(text, encoding="utf-8")
    return int(old)


if __name__ == "__main__":
    sys.exit(main())
