"""The author's guide as data: pages, fenced blocks, and a session that runs a page's commands.

    for block in blocks(page): block.language, block.file, block.text, block.exit
    with Session(folder) as session: session.run(block)

A Python block whose first line is `# path/name.py` is that file; `# path, added` goes to the end of
a file that is there, `# path, replaces NAME` takes the place of a function or class, `# path,
before NAME` goes in front of one; `# before: path` is run with a stand-in for the other project.
Others are scripts. `<!-- exit N -->` stands above a console
block whose last command ends with N. A `text` block says what the command before it prints; `...`
is anything.
"""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import pytest

from sgld.cli.main import main
from sgld.testing.served import Served, served_apart

ROOT: Final = Path(__file__).resolve().parent.parent
PAGES: Final = (*sorted((ROOT / "docs" / "plugins").glob("*.md")), ROOT / "docs" / "porting.md")
LANGUAGES: Final = ("console", "python", "text", "toml")
NOT_RUN: Final = {
    "python3 -m venv ": "test_plugin_templates.py makes a fresh environment",
    "uv sync": "this very environment",
    ". ": "activates what is active",
    'pip install "sgld-core[testing]"': "the index; test_wheels.py installs the wheel",
    "pip install build": "is in the development group",
    "pip install twine": "the index",
    "twine upload ": "publishes",
    "pytest --sgld-device=cuda": "needs a GPU",
    "python examples/realtime_client.py ": "test_realtime_protocol.py runs it on a toy world",
}
"""Commands that are not run, by their beginning, and why."""


class Block(NamedTuple):
    """A fenced block, and the exit status that its last command has."""

    page: Path
    line: int
    language: str
    text: str
    exit: int = 0

    @property
    def where(self) -> str:
        """Page and line."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def head(self) -> str:
        """What the first line says about a file; empty for a script."""
        first = re.match(r"# (.+)\n", self.text)
        said = first[1] if first and self.language in ("python", "toml") else ""
        return said if re.search(r"\.(py|toml)\b", said) else ""

    @property
    def file(self) -> str:
        """The file that it is, if it is a whole one."""
        return "" if re.search(r"[, :]", self.head) else self.head


def blocks(page: Path, text: str = "") -> list[Block]:
    """The fenced blocks of a page, in order; `text` is what stands there in place of its own."""
    text = text or page.read_text(encoding="utf-8")
    pattern = r"^(?:<!-- exit (\d+) -->\n)?```(\w*)\n(.*?)^```$"
    return [
        Block(page, text.count("\n", 0, match.start()) + 1, match[2], match[3], int(match[1] or 0))
        for match in re.finditer(pattern, text, re.DOTALL | re.MULTILINE)
    ]


def files(page: Path) -> dict[str, str]:
    """The whole files of a page: path → text."""
    return {block.file: block.text for block in blocks(page) if block.file}


class Session:
    """Runs the commands of one page in a folder, in this process where that is the same.

    Args:
        folder: where it works; the page's files are there already, or are written as they come.
        tested: results of the tests that another process ran: file name → outcome.
    """

    def __init__(self, folder: Path, tested: Any) -> None:
        self._folder, self._tested = folder, tested
        self._patch = pytest.MonkeyPatch()
        self._stack = ExitStack()
        self._server: Served | None = None
        self.shown = ""
        """What the last command printed."""

    def __enter__(self) -> Self:
        self._patch.chdir(self._folder)
        self._patch.setenv("SGLD_NUM_INFERENCE_STEPS", "2")
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self._patch.undo()
        _forget()

    def run(self, block: Block) -> None:
        """Do what a block says, or check what it says."""
        if block.language == "console":
            lines = block.text.strip().splitlines()
            for number, line in enumerate(lines):
                last = number + 1 == len(lines)
                self._command(block, line, block.exit if last else 0)
        elif block.language == "text":
            self._shown(block)
        elif block.language == "python":
            self._python(block)

    def on_path(self, *folders: Path) -> None:
        """Let Python and its children import from these folders, first of all."""
        for folder in reversed(folders):
            self._patch.syspath_prepend(str(folder))
        inherited = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
        path = [*map(str, folders), *inherited]
        self._patch.setenv("PYTHONPATH", os.pathsep.join(dict.fromkeys(path)))

    # Commands ------------------------------------------------------------------------------------

    def _command(self, block: Block, line: str, wanted: int) -> None:
        if line.startswith(tuple(NOT_RUN)):
            return
        words = shlex.split(line)
        variables = dict(re.findall(r"^([A-Z_]+)=(.*)$", "\n".join(words), re.MULTILINE))
        words = words[1:] if words[0] == "export" else words
        with pytest.MonkeyPatch.context() as once:
            patch = self._patch if line.startswith("export ") else once
            for name, value in variables.items():
                if name == "PYTHONPATH":
                    self.on_path(self._folder)
                else:
                    patch.setenv(name, value)
            words = [word for word in words if not re.match(r"[A-Z_]+=", word)]
            code = self._program(block, words) if words else 0
        assert code == wanted, f"{block.where}: {line} gave {code}\n{self.shown}"

    def _program(self, block: Block, words: list[str]) -> int:
        name, rest = words[0].removeprefix("fresh/bin/"), words[1:]
        if name == "sgld":
            return self._serve(block, rest) if rest[0] == "serve" else self._sgld(rest)
        if name == "pip":
            assert rest[0] == "install"
            return self._install(rest)
        if name == "pytest":
            return self._pytest(block, rest)
        if name == "curl":
            assert self._server is not None, f"{block.where}: no server was started before"
            address = self._server.url.removeprefix("http://")
            rest = [word.replace("localhost:30000", address) for word in rest]
            return self._apart("curl", "-sS", "--fail-with-body", "--noproxy", "*", *rest)
        if words[:4] == ["python", "-m", "build", "--wheel"]:
            return self._apart("uv", "build", "--quiet", "--wheel", words[4])
        if name == "python":
            return self._apart(sys.executable, *rest)
        raise AssertionError(
            f"{block.where}: nobody runs {' '.join(words)!r}, and NOT_RUN lacks it"
        )

    def _sgld(self, words: list[str]) -> int:
        said, told = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(told):
            code = main(words)
        self.shown = said.getvalue() + told.getvalue()
        if code == 0 and words[0] == "generate":
            assert Path(said.getvalue().split()[-1]).stat().st_size > 0
        return code

    def _serve(self, block: Block, words: list[str]) -> int:
        """Where requests follow it really serves; elsewhere its options are read."""
        if block.page.stem != "ten-minutes":
            return self._sgld([*words, "--print-config"])
        folder = self._folder / "server"
        folder.mkdir()
        self._server = self._stack.enter_context(served_apart(words[1], folder))
        return 0

    def _install(self, words: list[str]) -> int:
        """Into a folder, without what it needs, which is here; a source tree stays one."""
        target = self._folder / "site"
        sources = [f"./{word.partition('[')[0]}" for word in words[1:] if "acme" in word]
        flags = ("--quiet", "--no-deps", "--target", str(target))
        code = self._apart("uv", "pip", "install", *flags, *sources)
        trees = [self._folder / source / "src" for source in sources if "-e" in words]
        self.on_path(*trees, target)
        return code

    def _pytest(self, block: Block, words: list[str]) -> int:
        """Tests of a page were run in one process for all pages; those of a project run now."""
        if words[0].endswith(".py"):
            outcome = self._tested(block.page)
            assert words[0] in outcome, f"{block.where}: {words[0]} was not run: {sorted(outcome)}"
            assert outcome[words[0]] == "passed", f"{block.where}: {outcome[words[0]]}"
            return 0
        if block.page.stem != "ten-minutes":
            return 0  # the same project as on that page
        if not (self._folder / words[0] / "tests").exists():
            raise AssertionError(f"{block.where}: there is no project {words[0]}")
        return self._apart(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", words[0])

    def _apart(self, *command: str) -> int:
        done = subprocess.run(
            command,
            cwd=self._folder,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=300,
        )
        self.shown = done.stdout
        return done.returncode

    # What is shown, and Python -------------------------------------------------------------------

    def _shown(self, block: Block) -> None:
        for line in block.text.strip().splitlines():
            pattern = ".*".join(re.escape(part.strip()) for part in line.split("..."))
            assert re.search(pattern, self.shown), (
                f"{block.where}: {line!r} is not in\n{self.shown}"
            )

    def _python(self, block: Block) -> None:
        name, comma, how = block.head.partition(", ")
        if name.startswith("before: "):
            return
        if block.file:
            path = self._folder / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
        elif comma:
            path, text = self._folder / name, block.text.split("\n", 1)[1]
            path.write_text(_changed(path.read_text(encoding="utf-8"), text, how), encoding="utf-8")
            _forget()
        else:
            exec(compile(block.text, block.where, "exec"), {"__name__": "example"})


def _forget() -> None:
    """What a user's next command would import anew."""
    for name in [name for name in sys.modules if name.startswith("acme_")]:
        del sys.modules[name]


def _changed(source: str, text: str, how: str) -> str:
    """A file with code added at its end or before a name, or in the place of one."""
    if how == "added":
        return f"{source.rstrip()}\n{text}"
    verb, name = how.split()
    kinds = (ast.FunctionDef, ast.ClassDef)
    (node,) = (n for n in ast.parse(source).body if isinstance(n, kinds) and n.name == name)
    lines = source.splitlines(keepends=True)
    first = node.lineno - 1
    last = {"replaces": node.end_lineno, "before": first}[verb]
    lines[first:last] = [text]
    return "".join(lines)


def links(page: Path) -> Iterator[tuple[str, str]]:
    """File and anchor of every relative link."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"[a-z]+:", target):
            file, _, anchor = target.partition("#")
            yield file, anchor


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        found.add(re.sub(r"[^\w\- ]", "", plain).strip().replace(" ", "-"))
    return found
