"""Every command and every Python example of the documentation is run, so that none of them lies.

A fenced block marked `console` holds one command a line. `sgld` runs in this process; a hub id is
replaced by a tiny local checkpoint of the same family. A fenced block marked `python` is executed.
What is not run is listed in `NOT_RUN` with the reason. The flags that texts mention must exist.
"""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from PIL import Image

from sgld.cli.main import COMMANDS, main

ROOT: Final = Path(__file__).resolve().parent.parent
PAGES: Final = sorted(
    path
    for pattern in ("README.md", "core/README.md", "plugins/*/README.md", "docs/*.md")
    for path in ROOT.glob(pattern)
    if path.name != "porting.md"  # tests/test_docs_plugins.py
)
GUIDE: Final = (*sorted((ROOT / "docs" / "plugins").glob("*.md")), ROOT / "docs" / "porting.md")
NOT_RUN: Final = (
    "pip install ",  # the network; tests/test_wheels.py installs the wheels
    "uv run pytest",  # this very run
    "sgld serve ",  # runs until it is stopped; the tests of the server start it
    "uv run sgld serve",  # the same
    "sgld bench ",  # starts one; tests/test_bench_command.py runs it on a smaller world
    "uv run python bench/kernels.py",  # needs a GPU; tests/test_bench_quick.py runs it on a CPU
    "curl ",  # needs that server
)
HUB: Final = {
    "Wan-AI/Wan2.1-T2V-1.3B-Diffusers": "tiny:wan-t2v",
    "black-forest-labs/FLUX.1-schnell": "tiny:flux.1-schnell",
}
OTHERS: Final = frozenset(
    {
        "--extra",
        "--group",
        "--no-deps",
        "--sgld-device",
        "--sgld-golden",
        "--scheduler-class-override",
    }
)
"""Flags of other programs that the texts mention."""


class Block(NamedTuple):
    """A fenced block: where it starts, its language and its lines."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def id(self) -> str:
        """Page and line, for the name of the test."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(language: str) -> list[Block]:
    """The fenced blocks of all pages in one language."""
    found: list[Block] = []
    for page in PAGES:
        if page.name == "demo.md":
            continue  # tests/test_docs_demo.py
        text = page.read_text(encoding="utf-8")
        for match in re.finditer(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            line = text.count("\n", 0, match.start()) + 1
            found.append(Block(page, line, language, match[1]))
    return found


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every example in a folder of its own, with the pictures that some begin from."""
    monkeypatch.chdir(tmp_path)
    for name in ("start", *"01234"):
        Image.new("RGB", (96, 64), "teal").save(f"{name}.png")
    monkeypatch.setenv("SGLD_NUM_INFERENCE_STEPS", "2")
    return tmp_path


def commands(block: Block) -> list[str]:
    """The commands of a console block without prompts, continuation lines joined."""
    lines = block.text.replace("\\\n", " ").splitlines()
    return [line.removeprefix("$ ").strip() for line in lines if line.strip()]


def test_there_are_examples() -> None:
    assert len(blocks("console")) >= 4
    assert len(blocks("python")) >= 3


@pytest.mark.parametrize("block", blocks("console"), ids=lambda block: block.id)
def test_console(
    block: Block, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for command in commands(block):
        if command.startswith(NOT_RUN):
            continue
        # Few steps, but for models that run those they were distilled for and no others; one of
        # them is meant where no model is named.
        named = any(word in command for word in ("--model-path", "tiny:", "config:"))
        if "lingbot" in command or "causal" in command or not named:
            monkeypatch.delenv("SGLD_NUM_INFERENCE_STEPS", raising=False)
        else:
            monkeypatch.setenv("SGLD_NUM_INFERENCE_STEPS", "2")
        words = [HUB.get(word, word) for word in shlex.split(command, comments=True)]
        if words[:2] == ["uv", "run"]:
            words = words[2:]
        assert words[0] == "sgld", f"not run and not listed in NOT_RUN: {command}"
        code = main(words[1:])
        shown = capsys.readouterr()
        assert code == 0, f"{command}\n{shown.err}"
        assert shown.out.strip(), f"{command} says nothing"
        if words[1] == "generate":
            assert Path(shown.out.split()[-1]).stat().st_size > 0


def _surroundings(page: Path) -> dict[str, Any]:
    """What a page's examples take as given."""
    if page.name != "models-and-checkpoints.md":
        return {}
    import torch

    from sgld.ops.table import Ops
    from sgld.weights.overrides import NO_OVERRIDES
    from sgld.weights.resolve import resolve
    from sgld_wan import testing
    from sgld_wan.models.config import WanConfig
    from sgld_wan.models.dit import WanTransformer

    testing.tiny_t2v(Path("checkpoint"))
    files = resolve("checkpoint")
    return {
        "files": files,
        "overrides": NO_OVERRIDES,
        "config": WanConfig.from_json(files.read_json("transformer/config.json") or {}),
        "Transformer": lambda config: WanTransformer(config, Ops.torch()),
        "original_to_ours": lambda name: name,
        "fuse": (),
        "torch": torch,
    }


def _examples() -> list[Block]:
    """The Python examples that need no server; test_docs_server.py runs those that do."""
    return [block for block in blocks("python") if block.page.name != "server.md"]


@pytest.mark.parametrize("block", _examples(), ids=lambda block: block.id)
def test_python(
    block: Block, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = block.text.replace('device="cuda"', 'device="cpu"')
    for hub_id, tiny in HUB.items():
        source = source.replace(hub_id, tiny)
    module = type(sys)("example")
    module.__dict__.update(_surroundings(block.page))
    monkeypatch.setitem(sys.modules, "example", module)
    exec(compile(source, block.id, "exec"), module.__dict__)
    for name in ("sgld_plugin", "sgld_pipelines"):  # hooks of an example plugin: call them too
        if name in module.__dict__:
            assert module.__dict__[name]()
    if block.page.name == "README.md" and block.page.parent == ROOT:
        assert "(9, 64, 96, 3) 7" in capsys.readouterr().out
        assert Path("kite.mp4").exists()


def _known_flags() -> set[str]:
    """Every flag of every command, and the forms that take a component's name."""
    import typer

    from sgld.cli.main import _command, _load

    known = {"--component-path", "--component-weights-path", "--component-precision"}
    known |= {f"{flag}s" for flag in known}
    for name, (target, help_line) in COMMANDS.items():
        rows = [_command(_load(target), name, help_line)]
        while rows:
            command = rows.pop()
            rows += list(getattr(command, "commands", {}).values())
            for parameter in command.get_params(typer.Context(command)):
                known |= {flag for flag in parameter.opts if flag.startswith("--")}
    return known | {"--help", "--version", "--debug"}


def _family_flags() -> set[str]:
    from sgld.plugins.catalog import load_catalog, load_target

    classes = [
        load_target(entry.spec.params, entry) for entry in load_catalog({}).pipelines.values()
    ]
    names = {name for cls in classes for name in cls.accepted()}
    return {"--" + name.replace("_", "-") for name in names}


def test_every_flag_that_a_page_mentions_exists() -> None:
    known = _known_flags() | _family_flags() | OTHERS
    missing: list[str] = []
    for page in (*PAGES, *GUIDE):
        text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
        for span in re.findall(r"`([^`\n]+)`", text):
            for flag in re.findall(r"(?<![\w-])--[a-z0-9][\w-]*", span):
                negated = flag.replace("--no-", "--", 1)
                component = re.sub(r"--\w+-(weights-path|path|precision)$", r"--vae-\1", flag)
                if {flag, negated} & known or component.startswith("--vae-"):
                    continue
                if not re.match(r"(pip|uv|pytest|hf|git) ", span):
                    missing.append(f"{page.relative_to(ROOT)}: {flag} in `{span}`")
    assert not missing, "\n".join(missing)
