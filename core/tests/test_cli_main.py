"""The command line: what it prints, what it imports, and with which code it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sgld import __version__
from sgld.api import ModelError, ParameterError, PluginError, Problem
from sgld.cli import main as cli
from sgld.cli.quiet import quiet_stdout

FORBIDDEN = ("torch", "diffusers", "transformers", "fastapi", "numpy", "pydantic", "rich")


@pytest.fixture(autouse=True)
def only_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other plugins of the environment do not matter here."""
    for name in ("SGLD_EXTERNAL_MODEL_PACKAGE", "SGLANG_EXTERNAL_MODEL_PACKAGE", "SGLD_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SGLD_PLUGINS", "")


def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sgld", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environ},
        timeout=120,
    )


# What is imported --------------------------------------------------------------------------------

LIST_MODULES = """
import sys
from sgld.cli.main import main
code = main(sys.argv[1:])
print("\\nMODULES", code, *sorted({name.partition(".")[0] for name in sys.modules}))
"""
STARTS: list[tuple[list[str], dict[str, str]]] = [
    (["--help"], {}),
    (["--version"], {}),
    ([], {}),
    (["plugins", "list"], {}),
    (["plugins", "list", "--json", "--kind", "attention"], {}),
    (["plugins", "show", "builtin"], {}),
    (["plugins", "--help"], {}),
    (["models", "list"], {}),
    (["models", "--help"], {}),
    (["nonsense"], {}),
    ([], {"_SGLD_COMPLETE": "complete_bash", "COMP_WORDS": "sgld ", "COMP_CWORD": "1"}),
    ([], {"_SGLD_COMPLETE": "complete_bash", "COMP_WORDS": "sgld plugins l", "COMP_CWORD": "2"}),
    ([], {"_SGLD_COMPLETE": "source_bash"}),
]


@pytest.mark.multi_process
@pytest.mark.parametrize(("arguments", "environ"), STARTS)
def test_a_start_imports_nothing_heavy(arguments: list[str], environ: dict[str, str]) -> None:
    """By module list, not by time. Completion ends the process, so it is asked at exit."""
    program = LIST_MODULES
    if environ:
        program = (
            "import sys, atexit\n"
            "atexit.register(lambda: print('\\nMODULES', 0, *{n.partition('.')[0] for n in "
            "sys.modules}))\n" + program.replace("print(", "str(")
        )
    result = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "SGLD_PLUGINS": "", **environ},
        timeout=120,
    )
    line = result.stdout.rpartition("MODULES ")[2]
    assert line, result.stderr
    modules = set(line.split())
    assert "typer" in modules
    assert not modules & set(FORBIDDEN)


@pytest.mark.multi_process
def test_installed_plugins_are_described_without_heavy_imports() -> None:
    environ = {name: value for name, value in os.environ.items() if name != "SGLD_PLUGINS"}
    for arguments in (["plugins", "list"], ["models", "list"]):
        result = subprocess.run(
            [sys.executable, "-c", LIST_MODULES, *arguments],
            capture_output=True,
            text=True,
            env=environ,
            timeout=120,
        )
        modules = set(result.stdout.rpartition("MODULES ")[2].split())
        assert "sgld" in modules
        assert not modules & set(FORBIDDEN), (arguments, modules & set(FORBIDDEN))


# What is printed ---------------------------------------------------------------------------------


def call(*arguments: str) -> int:
    return cli.main(list(arguments))


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--version") == 0
    assert capsys.readouterr().out == f"sgld {__version__}\n"


def test_help_lists_every_command_of_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--help") == 0
    text = capsys.readouterr().out
    for name, (_, line) in cli.COMMANDS.items():
        assert name in text
        assert line[:30] in text


def test_every_target_of_the_table_exists() -> None:
    """The table is text; this is what keeps it true."""
    for target, _ in cli.COMMANDS.values():
        module, _, name = target.partition(":")
        path = Path(cli.__file__).parent / f"{module.rpartition('.')[2]}.py"
        assert path.is_file()
        assert name in path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["plugin"], "Did you mean 'plugins'?"),
        (["zzz"], "No such command 'zzz'"),
        (["--nonsense"], "No such option"),
        (["plugins", "lisst"], "lisst"),
        (["plugins", "show"], "Missing"),
        (["plugins", "list", "--kind", "atention"], "Did you mean 'attention'?"),
        (["plugins", "list", "--prefer", "x"], "KIND:ID=DISTRIBUTION"),
        (["plugins", "show", "biultin"], "Did you mean 'builtin'?"),
        (["models", "show", "wan"], "no model family 'wan'"),
        (["models", "tiny", "wan", "x"], "no pipeline 'wan'"),
    ],
)
def test_bad_usage_ends_with_2_and_a_line_that_helps(
    arguments: list[str], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(*arguments) == 2
    captured = capsys.readouterr()
    assert part in captured.err
    assert captured.out == ""
    assert "Traceback" not in captured.err


ERRORS = [
    (
        ModelError("no such model.", remedy="Try another."),
        2,
        ["error: no such model. Try another."],
    ),
    (
        ParameterError([Problem("steps", 0, "too few."), Problem("width", 7, "odd.")]),
        2,
        ["error: steps=0: too few.", "error: width=7: odd."],
    ),
    (PluginError("SGLD-P001 acme: broken."), 1, ["error: SGLD-P001 acme: broken."]),
]


@pytest.mark.parametrize(("error", "code", "lines"), ERRORS)
def test_errors_raised_on_purpose(
    error: Exception,
    code: int,
    lines: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr("sgld.cli.plugins.read_catalog", fail)
    assert call("plugins", "list") == code
    assert capsys.readouterr().err.splitlines() == lines
    assert call("--debug", "plugins", "list") == code
    text = capsys.readouterr().err
    assert "Traceback" in text
    assert text.splitlines()[-len(lines) :] == lines
    monkeypatch.setenv("SGLD_DEBUG", "1")
    assert call("plugins", "list") == code
    assert "Traceback" in capsys.readouterr().err


def test_ctrl_c_ends_with_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sgld.cli.plugins.read_catalog", interrupt)
    assert call("plugins", "list") == 130
    assert "Traceback" not in capsys.readouterr().err


def test_a_bug_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("sgld.cli.plugins.read_catalog", bug)
    with pytest.raises(ZeroDivisionError):
        call("plugins", "list")


def test_plugins_of_the_core_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("plugins", "list", "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    (builtin,) = [row for row in rows["plugins"] if row["state"] == "ok"]
    assert builtin["name"] == "builtin"
    assert builtin["dist"] == "sgld-core"
    assert builtin["version"] == __version__
    assert builtin["provides"]["platform"][:2] == ["cpu", "cuda"]
    assert builtin["ms"] >= 0
    assert rows["failures"] == []
    assert call("plugins", "list") == 0
    assert f"{len(builtin['provides']['platform'])} platform" in capsys.readouterr().out


def test_models_of_the_core_alone_say_what_to_install(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("models", "list") == 0
    assert "pip install sgld-wan" in capsys.readouterr().out
    assert call("models", "list", "--json") == 0
    assert json.loads(capsys.readouterr().out) == []


def test_why_with_the_core_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("plugins", "why", "Wan-AI/Wan2.1-T2V-1.3B-Diffusers") == 2
    error = capsys.readouterr().err
    assert "no plugin serves model 'Wan-AI/Wan2.1-T2V-1.3B-Diffusers'" in error


def test_failures_are_shown_and_end_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SGLD_EXTERNAL_MODEL_PACKAGE", "no_such_package_here")
    assert call("plugins", "list") == 1
    text = capsys.readouterr().out
    assert "builtin" in text
    assert "SGLD-P001 no_such_package_here" in text
    assert call("plugins", "show", "no_such_package_here") == 1
    assert call("--help") == 0
    assert call("models", "list") == 0
    assert "1 plugin is not fully usable" in capsys.readouterr().err
    monkeypatch.setenv("SGLD_STRICT", "1")
    assert call("plugins", "list") == 1
    assert "builtin" in capsys.readouterr().out


# A plugin's own command and families -------------------------------------------------------------

PLUGIN = '''
"""A family with parameters and a command, for tests."""
from sgld.api import Claims, CommandSpec, PipelineSpec, Plugin, Preset, hookimpl

@hookimpl
def sgld_plugin():
    return Plugin("toys", {"pipeline": 1, "command": 1}, summary="Toys")

@hookimpl
def sgld_pipelines():
    yield PipelineSpec(
        id="toy-t2v", target="toys_pkg:Pipeline", params="toys_params:ToyParams",
        tasks=("text-to-video",), claims=Claims(repos=("toys/one",), patterns=("toy-*",)),
        presets=(Preset("base", {"steps": 7}),), summary="A toy",
        blueprints={"tiny": "toys_params:write", "full": "toys_params:write"},
    )

@hookimpl
def sgld_commands():
    yield CommandSpec("toy", "toys_params:toy", "Play with toys.")
'''
PARAMS = """
from typing import Annotated, Literal
from pydantic import BaseModel, Field

print("noise at import")

class ToyParams(BaseModel):
    prompt: str
    steps: Annotated[int, Field(ge=1, le=100)] = 50
    scale: Annotated[float | None, Field(gt=0, description="How strong.")] = None
    mode: Literal["fast", "good"] = "good"
    sizes: list[int] = [1]

def write(folder):
    (folder / "model_index.json").write_text("{}")

def toy(name: str, loud: bool = False) -> None:
    print("TOY" if loud else "toy", name)
"""


@pytest.fixture
def toys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "toys_pkg.py").write_text(PLUGIN)
    (tmp_path / "toys_params.py").write_text(PARAMS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("SGLD_EXTERNAL_MODEL_PACKAGE", "toys_pkg")
    for name in ("toys_pkg", "toys_params"):
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.usefixtures("toys")
def test_a_plugins_command_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("toy", "bear", "--loud") == 0
    assert capsys.readouterr().out.endswith("TOY bear\n")
    assert call("toy") == 2
    assert call("toi") == 2
    assert "Did you mean 'toy'?" in capsys.readouterr().err


@pytest.mark.usefixtures("toys")
def test_models_list_and_show(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("models", "list") == 0
    assert "toy-t2v" in capsys.readouterr().out
    assert call("models", "show", "toy-t2v") == 0
    text = capsys.readouterr().out
    for part in ("A toy", "toys/one", "toy-*", "text-to-video", "base: steps=7", "How strong."):
        assert part in text


@pytest.mark.multi_process
@pytest.mark.usefixtures("toys")
def test_json_of_a_family_is_clean_though_its_module_prints(tmp_path: Path) -> None:
    result = run("models", "show", "toy-t2v", "--json", PYTHONPATH=str(tmp_path))
    assert result.returncode == 0, result.stderr
    assert "noise at import" in result.stderr
    family = json.loads(result.stdout)
    rows = {row["name"]: row for row in family["parameters"]}
    assert family["id"] == "toy-t2v"
    assert family["claims"]["repos"] == ["toys/one"]
    assert rows["prompt"]["required"] is True
    assert (rows["steps"]["default"], rows["steps"]["range"]) == (7, "a whole number from 1 to 100")
    assert (rows["scale"]["type"], rows["scale"]["range"]) == ("number", "a finite number above 0")
    assert rows["scale"]["optional"] is True
    assert rows["mode"]["choices"] == ["fast", "good"]
    assert rows["sizes"]["type"] == "list of integer"


@pytest.mark.usefixtures("toys")
def test_blueprints_are_written_to_empty_folders_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "new" / "tiny"
    assert call("models", "tiny", "toy-t2v", str(folder)) == 0
    assert (folder / "model_index.json").is_file()
    assert call("models", "config", "toy-t2v:full", str(tmp_path / "full")) == 0
    assert call("models", "config", "toy-t2v", str(tmp_path / "none")) == 2
    assert not (tmp_path / "none").exists()
    capsys.readouterr()
    assert call("models", "tiny", "toy-t2v", str(folder)) == 2
    assert "not an empty folder" in capsys.readouterr().err
    assert call("models", "tiny", "toy-t2v", str(tmp_path / "toys_pkg.py")) == 2


@pytest.mark.usefixtures("toys")
def test_why_shows_the_scores(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("plugins", "why", "toys/one") == 0
    text = capsys.readouterr().out
    assert "100" in text
    assert "toys/one is served by toy-t2v" in text
    assert call("plugins", "why", "x/toy-big", "--json") == 0
    assert json.loads(capsys.readouterr().out)["facts"]["score"] == 25
    assert call("plugins", "why", "x/y", "--model-id", "toys/one") == 0


def test_quiet_stdout_covers_the_file_descriptor(capfd: pytest.CaptureFixture[str]) -> None:
    with quiet_stdout():
        os.write(1, b"from C\n")
        print("from Python")
    print("after")
    captured = capfd.readouterr()
    assert captured.out == "after\n"
    assert "from C" in captured.err
    assert "from Python" in captured.err
