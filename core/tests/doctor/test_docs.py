"""`docs/plugin-errors.md` has every failure code with its meaning, and no other."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from sgld.cli.check_plugins import check_plugins
from sgld.plugins.binding import Decision
from sgld.plugins.doctor.rows import CHECKS, Report, Row
from sgld.plugins.doctor.show import VERSION, as_json
from sgld.plugins.failures import CODES, DOCS, NOTES, is_fatal, section
from sgld.plugins.failures import failure as make

ROOT = Path(__file__).parents[3]
REFERENCE = re.compile(r"SGLD-P\d+")


@pytest.fixture(scope="module")
def text() -> str:
    path = ROOT / DOCS
    if not path.exists():
        pytest.skip("the documentation is not part of this distribution")
    return path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def sections(text: str) -> dict[str, str]:
    parts = re.split(r"^## (SGLD-P\d+)$", text, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_there_is_a_section_for_every_code_and_for_no_other(sections: dict[str, str]) -> None:
    assert list(sections) == list(CODES)


def test_no_code_is_named_that_is_not_one(text: str) -> None:
    assert set(REFERENCE.findall(text)) == set(CODES)


def test_the_table_has_every_code_with_phase_and_meaning(text: str) -> None:
    rows = [line for line in text.splitlines() if line.startswith("| [`SGLD-")]
    assert rows == [
        f"| [`{code}`](#{code.lower()}) | {row.phase} | {row.meaning} |"
        for code, row in CODES.items()
    ]


@pytest.mark.parametrize("code", CODES)
def test_a_section_has_cause_example_and_remedy(sections: dict[str, str], code: str) -> None:
    body = sections[code]
    cause, example, remedy = (
        body.index("**Cause.** "),
        body.index("\n    "),
        body.index("**Remedy.** "),
    )
    assert cause < example < remedy
    lines = [line for line in body.splitlines() if line.startswith("    ")]
    assert len(lines) == 1
    assert code in lines[0]


@pytest.mark.parametrize("code", CODES)
def test_what_is_only_a_note_is_said_to_be_one(code: str) -> None:
    assert CODES[code].meaning.endswith("; a note only.") == (code in NOTES)
    assert is_fatal(make(code, "acme", "text")) == (code not in NOTES)


def test_where_a_code_is_explained() -> None:
    assert section("SGLD-P007") == "docs/plugin-errors.md#sgld-p007"
    assert section("") == section("SGLD-P999") == ""


def test_every_check_is_documented_in_order(text: str) -> None:
    table = text.partition("| check | what is looked at |")[2].partition("\n\n")[0]
    assert tuple(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == CHECKS


def test_every_option_is_documented(text: str) -> None:
    for name in inspect.signature(check_plugins).parameters:
        assert f"| `{'NAME' if name == 'name' else '--' + name.replace('_', '-')}`" in text


def test_every_key_of_the_json_is_documented(text: str) -> None:
    table = text.partition("### As JSON")[2].partition("## Codes")[0]
    for key in as_json(Report((), None, (), False, 0.0), strict=False):
        assert f"`{key}`" in table
    for key in (*Row._fields, "section", *Decision._fields[:1], "chosen", "losers"):
        assert f"`{key}`" in table
    assert f"`version` is {VERSION} " in table
