"""The author's guide is run: every file, command, output and link of docs/plugins and porting.md.

Conformance tests of all pages run in one other process, once; `tests/guide.py` runs the rest, page
by page, in order.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from guide import LANGUAGES, NOT_RUN, PAGES, ROOT, Session, anchors, blocks, files, links
from packaging.requirements import Requirement

from sgld import __version__
from sgld.api.contracts import CONTRACTS
from sgld.plugins.known import suggest
from sgld.testing.projects import KINDS, Project

PORTING = ROOT / "docs" / "porting.md"
GUIDE = ROOT / "docs" / "plugins"
CONTRACT_PAGES = (
    "describing", "pipeline", "model", "stage", "realtime", "cache", "attention", "kernel",
    "platform",
)  # fmt: skip
Tested = Callable[[Path], dict[str, str]]


def name(page: Path) -> str:
    return page.stem


# The tests that the pages show.


RUNNER = """
import sys, pytest
golden = pytest.main([*sys.argv[2:], "-q", "testing/test_fixtures.py", "--sgld-golden=write"])
rest = pytest.main([*sys.argv[2:], "-q", f"--junitxml={sys.argv[1]}", "."])
sys.exit(golden or rest)
"""


@pytest.fixture(scope="module")
def tested(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tested]:
    """`tested(page)`: outcome of each test file of a page, once all have run in another process."""
    folder = tmp_path_factory.mktemp("shown")
    for page in PAGES:
        for path, text in files(page).items():
            (folder / page.stem / path).parent.mkdir(parents=True, exist_ok=True)
            if Path(path).name != "conftest.py":
                (folder / page.stem / path).write_text(text)
    conftest = files(GUIDE / "testing.md")["conftest.py"]
    assert conftest == files(GUIDE / "index.md")["conftest.py"]
    (folder / "conftest.py").write_text(conftest)
    (folder / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    flags = ["--import-mode=importlib", "-p", "no:cacheprovider", f"--rootdir={folder}"]
    path = ":".join(str(folder / page.stem) for page in PAGES)
    with (folder / "said.txt").open("w") as said:
        process = subprocess.Popen(
            [sys.executable, "-c", RUNNER, "result.xml", *flags],
            cwd=folder, stdout=said, stderr=said, env={**_plain(), "PYTHONPATH": path},
        )  # fmt: skip
        results: dict[str, dict[str, str]] = {}

        def tested(page: Path) -> dict[str, str]:
            if not results:
                code = process.wait(300)
                text = (folder / "said.txt").read_text()
                assert (folder / "result.xml").exists(), text
                results.update(_outcomes(folder / "result.xml", text))
                assert code == 0 or any("passed" not in r.values() for r in results.values()), text
            return results.get(page.stem, {})

        try:
            yield tested
        finally:
            process.kill()
            process.wait()


def _plain() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith(("SGLD_", "PYTEST_", "COV_"))}


def _outcomes(report: Path, text: str) -> dict[str, dict[str, str]]:
    """Page → test file → `passed`, or what went wrong. A skipped test is no passed one."""
    found: dict[str, dict[str, str]] = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        page, file = case.attrib["classname"].split(".")[:2]
        faults = [child for child in case if child.tag in ("failure", "error", "skipped")]
        bad = [f for f in faults if f.attrib.get("type") != "pytest.xfail"]
        row = found.setdefault(page, {})
        key = f"{file}.py"
        row.setdefault(key, "passed")
        if bad:
            row[key] = f"{case.attrib['name']}: {bad[0].attrib.get('message')}\n{text[-4000:]}"
    return found


# The pages.


@pytest.mark.multi_process
@pytest.mark.parametrize("page", PAGES, ids=name)
def test_page(page: Path, tested: Tested, tmp_path: Path) -> None:
    """From top to bottom."""
    with Session(tmp_path, tested) as session:
        if page.stem == "publishing":
            _installed(session, tmp_path)
        rows = blocks(page)
        # A page shows its files in an order that explains; a command may need one that comes later.
        for block in (block for block in rows if block.file):
            session.run(block)
        before = ""
        for block in (block for block in rows if not block.file):
            if block.language == "text" and before != "console":
                _quoted(block.text)
            else:
                session.run(block)
            before = block.language
        _import_all(tmp_path, page)


def _installed(session: Session, folder: Path) -> None:
    """What the page on publishing takes as given: a project, installed."""
    Project.of("pipeline", "acme-sketch").write(folder)
    session._command(blocks(GUIDE / "publishing.md")[0], "pip install -e acme-sketch", 0)


def _import_all(folder: Path, page: Path) -> None:
    """Every module of a page can be imported, also one that no command needs."""
    if page != PORTING and "PYTHONPATH" not in page.read_text("utf-8"):
        return
    for path in files(page):
        if not path.startswith("test_") and path.endswith(".py") and path != "conftest.py":
            spec = importlib.util.spec_from_file_location(f"acme_{Path(path).stem}_", folder / path)
            assert spec is not None
            assert spec.loader is not None
            spec.loader.exec_module(importlib.util.module_from_spec(spec))


def _quoted(text: str) -> None:
    """Output that no command before it prints is a failure of the kit, in the kit's own words."""
    kit = ROOT / "core" / "src" / "sgld" / "testing" / "conformance"
    source = " ".join(path.read_text() for path in sorted(kit.glob("*.py")))
    source = re.sub(r'"\s+f?"', "", source)
    for label in ("expected", "remedy"):
        (words,) = re.findall(rf"{label}: (.*)", text)
        assert f'{label}="{words}"' in source


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_nothing_is_shown_that_nobody_runs(page: Path) -> None:
    text = page.read_text("utf-8")
    for block in blocks(page):
        assert block.language in LANGUAGES, f"{block.where}: a block of {block.language!r}"
        if block.language == "toml":
            _check_toml(block.text)
    outside = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    assert "```" not in outside
    indented = re.findall(r"\n\n    (\S.*)", outside)
    assert not indented, f"{page.name}: indented code is not run: {indented}"


def _check_toml(text: str) -> None:
    table = tomllib.loads(text)
    (needed,) = table.get("project", table)["dependencies"]
    assert Requirement(needed).specifier.contains(__version__)


def test_the_list_of_what_is_not_run_is_needed() -> None:
    lines = [
        line
        for page in PAGES
        for block in blocks(page)
        if block.language == "console"
        for line in block.text.splitlines()
    ]
    assert [start for start in NOT_RUN if not any(line.startswith(start) for line in lines)] == []


@pytest.mark.parametrize("page", CONTRACT_PAGES)
def test_a_page_on_a_contract(page: str) -> None:
    """All have the same parts, and exactly one example with one test file."""
    path = GUIDE / f"{page}.md"
    headings = re.findall(r"^## (.+)$", path.read_text("utf-8"), re.MULTILINE)
    wanted = ["The example", "What must hold", "What the kit checks", "What usually goes wrong"]
    assert [heading for heading in headings if heading in wanted] == wanted
    shown = files(path)
    assert sum(name.startswith("test_") for name in shown) == 1
    packages = {name.partition("/")[0] for name in shown if "/" in name}
    assert len(packages) == 1


def test_the_map_has_every_page_and_every_kind() -> None:
    text = (GUIDE / "index.md").read_text("utf-8")
    for page in GUIDE.glob("*.md"):
        assert page.stem == "index" or f"({page.name})" in text
    for kind in KINDS:
        assert f"| `{kind}` |" in text


def test_the_changelog_of_contracts_is_complete() -> None:
    text = (GUIDE / "versions.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \| ", text, re.MULTILINE)
    for kind, (low, high) in CONTRACTS.items():
        assert {(kind, str(number)) for number in range(low, high + 1)} <= set(rows)
    assert {kind for kind, _ in rows} == set(CONTRACTS)


ALL_PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links(page: Path) -> None:
    for file, anchor in links(page):
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), f"{page.name}: there is no {file}"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{page.name}: {file} has no heading {anchor!r}"


def test_the_reference_is_current() -> None:
    """Run `uv run python docs/generate_plugins.py` when this fails."""
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate_plugins.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = module.PAGE.read_text(encoding="utf-8")
    assert module.written(text) == text
    assert "| required |  |" not in text, "a field without a word"
    assert re.search(r"\|  \|$", text, re.MULTILINE) is None, "a field without a word"


def test_being_listed_is_a_hint() -> None:
    assert "sgld-wan" in suggest("WanPipeline", "")


# What runs the pages notices what is wrong with them.


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("```console\nmake coffee\n```\n", "nobody runs"),
        ("```console\nsgld plugins shaw wan\n```\n", "gave 2"),
        ("<!-- exit 1 -->\n```console\nsgld --version\n```\n", "gave 0"),
        ("```console\nsgld --version\n```\n\n```text\nsgld...of 1912\n```\n", "is not in"),
        ("```console\npytest test_absent.py\n```\n", "was not run"),
        ("```console\ncurl http://localhost:30000\n```\n", "no server was started"),
        ("```console\npytest acme-absent\n```\n", "no project acme-absent"),
        ("```python\nassert 1 > 2, 'a wrong example'\n```\n", "a wrong example"),
    ],
)
def test_a_wrong_page_is_noticed(text: str, words: str, tmp_path: Path) -> None:
    *first, last = blocks(GUIDE / "ten-minutes.md", text)
    with Session(tmp_path, lambda page: {}) as session:
        for block in first:
            session.run(block)
        with pytest.raises(AssertionError, match=words):
            session.run(last)
