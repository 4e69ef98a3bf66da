"""`sgld plugins new` for every kind: the projects are clean, small and complete; their wheels go
into one fresh environment, where each passes its own tests, satisfies the doctor and serves.

The environment has sgld-core from its wheel and the workspace's third-party packages as links, so
that nothing is downloaded.
"""

from __future__ import annotations

import base64
import io
import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image
from realtime_client_spec import Client

from sgld.api.errors import ParameterError
from sgld.cli.main import main
from sgld.plugins.catalog import collect, load_catalog
from sgld.testing import toy_plugin
from sgld.testing.projects import KINDS, LICENCES, LONGEST, TOY_NAMES, Project
from sgld.testing.served import Served, served_apart, served_here

pytestmark = [pytest.mark.slow, pytest.mark.multi_process]

ROOT = Path(__file__).resolve().parent.parent
AUTHOR = 'Ånn "Ö" 𝔸 <ann@example.org>'
MODULES = {
    "pipeline": ("network", "params", "pipeline", "tiny"),
    "realtime": ("adapter", "network", "params", "pipeline", "tiny"),
    "attention": ("attention",),
    "kernel": ("kernel",),
    "platform": ("platform", "probe"),
    "cache": ("policy",),
    "model": (),
}
CARRIED = {
    "README.md", "model_index.json", "text_encoder/config.json", "text_encoder/model.safetensors",
    *(f"{part}/{name}" for part in ("transformer", "vae")
      for name in ("config.json", "diffusion_pytorch_model.safetensors")),
}  # fmt: skip
"""What a model brings in its folder `world`."""
TOYS = {"SGLD_EXTERNAL_MODEL_PACKAGE": toy_plugin.__name__}
"""Without these a project of kind `model` says that it needs them."""
FILES = {
    ".github/workflows/ci.yml", ".gitignore", "LICENSE", "README.md", "pyproject.toml",
    "tests/conftest.py", "tests/test_contract.py",
}  # fmt: skip
QUESTIONS = [
    "What is it?",
    "How do I install it?",
    "What is the one command?",
    "What are its limits?",
    "Under which licence are the weights?",
]


def package_files(kind: str, package: str) -> set[str]:
    names = {f"{name}.py" for name in (*MODULES[kind], "__init__", "plugin")} | {"py.typed"}
    names |= {f"world/{name}" for name in CARRIED} if kind == "model" else set()
    return {f"{package}/{name}" for name in names}


def longest(kind: str) -> str:
    """The longest name there can be, of many words: what it makes must fit into lines, too."""
    return (kind + "-ab" * LONGEST)[:LONGEST].rstrip("-")


@pytest.fixture(scope="module")
def projects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One project of each kind, written by the command."""
    folder = tmp_path_factory.mktemp("new")
    for kind in KINDS:
        command = ["plugins", "new", kind, f"my-{kind}", "--into", str(folder), "--author", AUTHOR]
        assert main(command) == 0
    return {kind: folder / f"my-{kind}" for kind in KINDS}


# What is written.


@pytest.mark.parametrize("kind", KINDS)
def test_the_files_of_a_project(projects: dict[str, Path], kind: str) -> None:
    folder = projects[kind]
    found = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    assert found == FILES | {f"src/{name}" for name in package_files(kind, f"my_{kind}")}
    for path in found:
        if path.endswith(".safetensors"):
            continue
        text = (folder / path).read_text()
        assert "acme" not in text.lower(), path
        assert not re.search("@[a-z]+@", text), path
        assert not text or text.endswith("\n"), path
    readme = (folder / "README.md").read_text()
    assert [line[3:] for line in readme.splitlines() if line.startswith("## ")] == QUESTIONS
    assert "Apache License" in (folder / "LICENSE").read_text()
    *_, use = Project.of(kind, f"my-{kind}").commands(folder)
    assert use in " ".join(readme.replace("\\\n", "").split()), "what is printed, is explained"
    settings = tomllib.loads((folder / "pyproject.toml").read_text())
    assert settings["project"]["authors"] == [{"name": 'Ånn "Ö" 𝔸', "email": "ann@example.org"}]


def test_a_pipeline_is_at_most_100_lines_beside_its_network(projects: dict[str, Path]) -> None:
    """Lines that hold something other than a comment, docstrings included."""
    lines = [
        line.strip()
        for path in (projects["pipeline"] / "src" / "my_pipeline").glob("*.py")
        if path.name != "network.py"
        for line in path.read_text().splitlines()
    ]
    assert 60 < sum(bool(line) and not line.startswith("#") for line in lines) <= 100


@pytest.mark.parametrize("name", [longest, lambda kind: f"{kind[:2]}x"], ids=["long", "short"])
def test_projects_are_lint_clean(tmp_path: Path, name: Callable[[str], str]) -> None:
    """By their own settings, whatever the name does to the length of lines and to their order."""
    for kind in KINDS:
        Project.of(kind, name(kind)).write(tmp_path)
    for folder in tmp_path.iterdir():
        for command in (["check"], ["format", "--check", "--diff"]):
            must(ROOT, "ruff", *command, "--no-cache", ".", cwd=folder)


def test_projects_have_right_types(projects: dict[str, Path], tmp_path: Path) -> None:
    settings = {
        "include": [str(folder / "src") for folder in projects.values()],
        "extraPaths": [str(folder / "src") for folder in projects.values()],
        "venvPath": str(Path(sys.prefix).parent),
        "venv": Path(sys.prefix).name,
        "typeCheckingMode": "standard",
        "reportMissingTypeStubs": False,
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    must(ROOT, "basedpyright", "--project", str(tmp_path), cwd=tmp_path)


@pytest.mark.parametrize("licence", LICENCES)
def test_licences(licence: str) -> None:
    project = Project.of("cache", "x", licence=licence)
    files = {str(path): text for path, text in project.files().items()}
    assert f'license = "{licence}"' in files["pyproject.toml"]
    assert licence in files["README.md"]
    if licence != "Apache-2.0":
        assert "the authors of x" in files["LICENSE"]
        named = Project.of("cache", "x", licence=licence, author="Ann").files()
        assert any("Copyright (c) Ann\n" in text for text in named.values())


def test_licences_in_any_case() -> None:
    assert Project.of("cache", "x", licence="mit").licence == "MIT"
    assert Project.of("cache", "x", licence="apache-2.0").licence == "Apache-2.0"


@pytest.mark.parametrize("there", [True, False])
def test_what_is_printed_works_where_it_is_printed(
    monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    """An environment of uv has no pip."""
    monkeypatch.setattr("sgld.testing.projects.find_spec", lambda name: there and name == "pip")
    install, *_ = Project.of("cache", "x").commands(Path("x"))
    assert install == f"{'' if there else 'uv '}pip install -e 'x[test]'"


def test_the_help_tells_the_rules(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "new", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"at most {LONGEST} characters" in shown


# What is refused.


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"kind": "pipelines"}, "kind", "Kinds: pipeline, realtime"),
        ({"name": "Acme_Video"}, "name", "For example acme-video."),
        ({"name": ""}, "name", "lower-case words"),
        ({"name": "a--b"}, "name", "For example a-b."),
        ({"name": "2fast"}, "name", "must begin with a letter a to z. For example acme-2fast."),
        ({"name": "3d-world"}, "name", "For example acme-3d-world."),
        ({"name": "über"}, "name", "letters a to z and digits, joined by '-'. For example uber."),
        ({"name": "日本"}, "name", "For example acme-video."),
        ({"name": "../x"}, "name", "For example x."),
        ({"name": "x" * 33}, "name", "33 characters; the limit is 32"),
        ({"name": "class"}, "name", "'class', which Python has for itself"),
        ({"name": "json"}, "name", "Python has for itself. For example acme-json."),
        (
            {"name": "test"},
            "name",
            "tests are called so, and Python imports those. For example acme-",
        ),
        ({"name": "tests"}, "name", "tests are called so"),
        ({"name": "src"}, "name", "the folder that packages lie in"),
        ({"name": "plugin"}, "name", "a module of every project"),
        ({"name": "toy-world"}, "name", "a toy of sgld's own tests is called so"),
        ({"name": "auto"}, "name", "is a reserved word of sgld"),
        ({"name": "torch"}, "name", "is a reserved word of sgld"),
        (
            {"name": "sgld-wan"},
            "name",
            "is a published distribution of sgld. For example acme-wan.",
        ),
        ({"name": "sgld-thing"}, "name", "the sgld project publishes. For example acme-thing."),
        ({"author": "<a>"}, "author", "NAME <MAIL>"),
        ({"author": 'a\nb = "c"'}, "author", "NAME <MAIL>"),
        ({"licence": "GPL-3.0"}, "license", "Apache-2.0, BSD-3-Clause, MIT"),
    ],
)
def test_wrong_input(changes: dict[str, str], field: str, words: str) -> None:
    with pytest.raises(ParameterError) as caught:
        Project.of(**{"kind": "cache", "name": "fine", **changes})
    (problem,) = caught.value.problems
    assert problem.field == field
    assert words in str(problem)


def test_everything_wrong_is_told_at_once() -> None:
    with pytest.raises(ParameterError) as caught:
        Project.of("x", "X", author="<", licence="x")
    assert [problem.field for problem in caught.value.problems] == [
        "kind", "name", "license", "author",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("wan", "plugin wan (sgld-wan 0.1.0) is installed"),
        ("wan-t2v", "pipeline 'wan-t2v' is brought by sgld-wan"),
        ("rolling", "cache 'rolling' is brought by sgld-core"),
        ("numpy", "a package 'numpy' is installed"),
    ],
)
def test_a_name_that_is_taken(name: str, words: str) -> None:
    with pytest.raises(ParameterError, match=f"Choose another name, .* acme-{name}") as caught:
        Project.of("cache", name).check(load_catalog())
    assert words in str(caught.value)
    # Nobody can do without the core.
    assert ("or uninstall that one" in str(caught.value)) == ("sgld-core" not in words)


def test_names_of_toys_are_known() -> None:
    catalog = collect({"SGLD_PLUGINS": "toy", "SGLD_EXTERNAL_MODEL_PACKAGE": toy_plugin.__name__})
    brought = {name for rows in catalog.entries.values() for name, entry in rows.items()
               if entry.plugin == "toy"}  # fmt: skip
    assert {"toy", *brought} == TOY_NAMES


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["plugins", "new", "cache", "thin", "--into", str(tmp_path)]
    (tmp_path / "thin").mkdir()
    assert main(command) == 0, "an empty folder is free"
    shown = capsys.readouterr()
    assert shown.out.splitlines() == [
        f"{'' if find_spec('pip') else 'uv '}pip install -e '{tmp_path}/thin[test]'",
        f"pytest {tmp_path}/thin",
        "SGLD_EXTERNAL_MODEL_PACKAGE=sgld.testing.toy_plugin sgld serve tiny:toy-world "
        "--cache-policy thin",
    ]
    (tmp_path / "thin" / "README.md").write_text("mine")
    assert main(command) == 2
    assert "is there already and not empty" in capsys.readouterr().err
    assert (tmp_path / "thin" / "README.md").read_text() == "mine"
    (tmp_path / "file").write_text("")
    assert main([*command[:-1], str(tmp_path / "file")]) == 2
    assert "cannot be written" in capsys.readouterr().err
    (tmp_path / "other").write_text("")
    assert main([*command[:3], "other", *command[4:]]) == 2
    assert "other is a file; the folder would have its name" in capsys.readouterr().err
    (tmp_path / "other").unlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "thin"]


# The wheels.


def must(bin: Path, program: str, *arguments: str | Path, cwd: Path, **environ: str) -> str:
    """Run a program of an environment (`ROOT`: of this one); failing shows what it said."""
    found = Path(sys.prefix, "bin", program) if bin == ROOT else bin / program
    leaks = ("PYTHON", "SGLD", "VIRTUAL", "PYTEST", "COV_")
    kept = {name: text for name, text in os.environ.items() if not name.startswith(leaks)}
    done = subprocess.run(
        [str(found), *map(str, arguments)],
        cwd=cwd,
        env={**kept, "HF_HUB_OFFLINE": "1", **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, f"{program} {arguments} gave {done.returncode}\n{done.stdout}"
    return done.stdout


@pytest.fixture(scope="module")
def wheels(projects: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """sgld-core and the plugins."""
    folder = tmp_path_factory.mktemp("wheels")

    def build(source: Path) -> None:
        command = ["uv", "build", "--quiet", "--wheel", "--out-dir", str(folder), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stderr

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(build, [ROOT / "core", *projects.values()]))
    return sorted(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def bin(wheels: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a fresh environment in which the wheels are installed."""
    folder = tmp_path_factory.mktemp("venv")
    must_uv("venv", "--python", sys.executable, folder)
    site = next(folder.glob("lib/python*/site-packages"))
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        # All but the workspace's own distributions, and what makes editable ones importable.
        own = entry.name.startswith(("sgld", "_virtualenv")) or entry.suffix == ".pth"
        if not own and not (site / entry.name).exists():
            (site / entry.name).symlink_to(entry)
    python = folder / "bin" / "python"
    must_uv("pip", "install", "--no-index", "--no-deps", "--python", python, *wheels)
    return folder / "bin"


def must_uv(*arguments: str | Path) -> None:
    done = subprocess.run(
        ["uv", "--quiet", *map(str, arguments)],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_what_the_wheels_hold(wheels: list[Path]) -> None:
    for wheel in wheels:
        name = wheel.name.split("-")[0]
        if name == "sgld_core":
            continue
        with zipfile.ZipFile(wheel) as archive:
            names = {entry for entry in archive.namelist() if ".dist-info/" not in entry}
            (entries,) = (n for n in archive.namelist() if n.endswith("entry_points.txt"))
            (metadata,) = (n for n in archive.namelist() if n.endswith("METADATA"))
            assert f"{name.replace('_', '-')} = {name}.plugin" in archive.read(entries).decode()
            assert "## Under which licence are the weights?" in archive.read(metadata).decode()
            assert any(n.endswith("licenses/LICENSE") for n in archive.namelist())
        assert names == package_files(name.removeprefix("my_"), name)


NEEDS = """
import sys
from importlib.metadata import requires, version
from packaging.requirements import Requirement
for name in sys.argv[1:]:
    for need in map(Requirement, requires(name)):
        if need.marker is None or need.marker.evaluate({"extra": "test"}):
            assert need.specifier.contains(version(need.name)), (name, need)
            print(name, need.name, *need.extras)
"""


def test_what_the_wheels_need_is_there(bin: Path, tmp_path: Path) -> None:
    shown = must(bin, "python", "-c", NEEDS, *(f"my-{kind}" for kind in KINDS), cwd=tmp_path)
    rows = [(name, need) for name in KINDS for need in ("sgld-core", "torch", "sgld-core testing")]
    assert shown.splitlines() == [f"my-{name} {need}" for name, need in rows]


def test_all_are_usable_beside_each_other(bin: Path, tmp_path: Path) -> None:
    listed = json.loads(must(bin, "sgld", "plugins", "list", "--json", cwd=tmp_path, **TOYS))
    states = {row["name"]: (row["state"], row["notes"]) for row in listed["plugins"]}
    expected = {"builtin", "toy", *(f"my-{kind}" for kind in KINDS)}
    assert states == dict.fromkeys(expected, ("ok", []))


def test_a_model_without_its_family_says_what_is_missing(bin: Path, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="it needs plugin toy, which is not usable here"):
        must(bin, "sgld", "plugins", "list", cwd=tmp_path)


def test_the_wheel_of_the_core_can_write_them(bin: Path, tmp_path: Path) -> None:
    command = ("plugins", "new", "cache")
    must(bin, "sgld", *command, "another", "--into", tmp_path, cwd=tmp_path)
    for path, text in Project.of("cache", "another").files().items():
        assert (tmp_path / "another" / path).read_text() == text
    with pytest.raises(AssertionError, match=r"plugin my-cache \(my-cache 0.1.0\) is installed"):
        must(bin, "sgld", *command, "my-cache", cwd=tmp_path)


# Their own tests, and a request each.


SERVED: dict[str, tuple[str, ...]] = {
    "pipeline": ("tiny:my-pipeline",),
    "realtime": ("tiny:my-realtime",),
    "parts": ("tiny:toy-world", "--attention", "my-attention", "--cache-policy", "my-cache"),
    "platform": ("tiny:toy-image", "--device", "my-platform"),
    "model": ("my-model:world",),
}
"""The commands of the READMEs. Three kinds share a server; a kernel needs no flag."""


def steered(url: str, chunks: int = 5, **init: Any) -> list[np.ndarray]:
    """The frames of a session that sees the keys `d`, chunk by chunk."""
    keys = {"camera_actions": [["d"]] * 2 * chunks}
    with Client(url) as client:
        client.init(max_chunks=chunks, seed=3, condition_inputs=keys, **init)
        return [chunk.frames for chunk in client.chunks(chunks)]


def picture(url: str, prompt: str = "a red fox") -> np.ndarray:
    body = {"prompt": prompt, "seed": 1, "size": "64x64", "response_format": "b64_json"}
    answer = httpx.post(f"{url}/v1/images/generations", json=body, timeout=60, trust_env=False)
    assert answer.status_code == 200, answer.text
    data = base64.b64decode(answer.json()["data"][0]["b64_json"])
    return np.asarray(Image.open(io.BytesIO(data)))


Answers = dict[str, Any]


def ask(kind: str, server: Served) -> Answers:
    """What is checked of a server, while it runs."""
    if kind == "platform":
        return {"picture": picture(server.url)}
    if kind == "pipeline":
        prompts = ("a red fox", "the sea", "a red fox")
        return {"pictures": [picture(server.url, prompt) for prompt in prompts]}
    if kind in ("parts", "model"):
        return {"chunks": steered(server.url)}
    answers: Answers = {"chunks": steered(server.url), "still": unsteered(server.url)}
    answers["page"] = httpx.get(server.url, trust_env=False).text
    return answers


def unsteered(url: str) -> list[np.ndarray]:
    """The same without a key, until one is pressed; ends with the first chunk that has seen it."""
    with Client(url) as client:
        client.init(seed=3)
        chunks = client.chunks(2)
        press = {"mode": "state", "transitions": [{"actions": ["w"]}]}
        client.event("camera_actions", press, event_id=7)
        while chunks[-1].event_id != 7:
            chunks.append(client.chunk())
        return [chunk.frames for chunk in chunks]


@pytest.fixture(scope="module")
def results(
    bin: Path, projects: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str, str], Any]]:
    """`results("tests", kind)`: what pytest printed in a project; `results("served", kind)`: the
    answers of its server and the lines that it printed; `results("doctor", "")`. Two at a time."""
    folder = tmp_path_factory.mktemp("served")

    def own_tests(kind: str) -> str:
        return must(bin, "python", "-m", "pytest", "-q", cwd=projects[kind])

    def serve(kind: str) -> tuple[Answers, list[str]]:
        home, python = folder / kind, bin / "python"
        with served_apart(*SERVED[kind][:1], home, *SERVED[kind][1:], python=python) as server:
            return ask(kind, server), list(server.lines)

    with ThreadPoolExecutor(2) as pool:
        futures: dict[tuple[str, str], Future[Any]] = {}
        for kind in SERVED:
            futures["served", kind] = pool.submit(serve, kind)
        for kind in KINDS:
            futures["tests", kind] = pool.submit(own_tests, kind)
        futures["doctor", ""] = pool.submit(
            must, bin, "sgld", "plugins", "check", "--deep", "--strict", cwd=folder, **TOYS
        )
        yield lambda what, kind: futures[what, kind].result()


@pytest.mark.parametrize("kind", KINDS)
def test_a_project_passes_its_own_tests(results: Callable[[str, str], str], kind: str) -> None:
    last = results("tests", kind).strip().splitlines()[-1]
    assert " passed" in last
    assert "failed" not in last
    assert "skipped" not in last


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[np.ndarray, list[np.ndarray]]:
    """What the toys give without any plugin: a picture, and the chunks of a session."""
    folder = tmp_path_factory.mktemp("plain")
    with served_here("tiny:toy-image", folder / "image") as server:
        shown = picture(server.url)
    with served_here("tiny:toy-world", folder / "world") as server:
        return shown, steered(server.url)


def served(results: Callable[[str, str], Any], kind: str, **choices: str) -> Answers:
    """The answers of a server, which has said at its start that it made these `choices`."""
    answers, lines = results("served", kind)
    (said,) = (line for line in lines if "plugins and choices" in line)
    for what, choice in choices.items():
        assert f"'{what.replace('__', '.')}': '{choice}'" in said
    return answers


def test_a_pipeline_serves(results: Callable[[str, str], Any]) -> None:
    first, other, again = served(results, "pipeline")["pictures"]
    assert first.shape == (64, 64, 3)
    assert np.array_equal(first, again)
    assert np.abs(first.astype(int) - other).mean() > 5
    assert first.std() > 20, "there is something to see"


def test_a_realtime_model_is_steered(results: Callable[[str, str], Any]) -> None:
    answers = served(results, "realtime")
    assert [len(chunk) for chunk in answers["chunks"]] == [3, 4, 4, 4, 4]
    moved, still = answers["chunks"][0][-1].astype(int), answers["still"][0][-1].astype(int)
    assert moved.shape == (96, 128, 3)
    assert np.abs(moved - still).mean() > 5
    # Four latents to the right after two latent frames: the same place is found there.
    assert np.abs(moved[:, :-32] - still[:, 32:]).mean() < 0.5 * np.abs(moved - still).mean()
    before, after = answers["still"][-2][-1].astype(int), answers["still"][-1][-1].astype(int)
    assert np.abs(after - before).mean() > 5, "the key has moved it"
    assert 'id="pads"' in answers["page"]


def test_a_platform_serves(results: Callable[[str, str], Any], plain: Any) -> None:
    assert np.array_equal(served(results, "platform")["picture"], plain[0])


def test_attention_kernel_and_cache_policy_serve(
    results: Callable[[str, str], Any], plain: Any
) -> None:
    """As without them for as long as nothing has to be forgotten; from then on the policy shows."""
    choices = {"attention__self": "my-attention", "residual__gate": "my-kernel"}
    chunks = served(results, "parts", **choices, cache="my-cache")["chunks"]
    pairs = zip(chunks, plain[1], strict=True)
    most = [np.abs(ours.astype(int) - theirs).max() for ours, theirs in pairs]
    assert max(most[:3]) <= 1
    assert min(most[3:]) > 5


def test_a_carried_model_serves(results: Callable[[str, str], Any], plain: Any) -> None:
    """It is the toy world, whose weights everybody draws alike."""
    chunks = served(results, "model")["chunks"]
    assert all(np.array_equal(*pair) for pair in zip(chunks, plain[1], strict=True))


# The doctor, and why.


def test_the_doctor_finds_nothing(results: Callable[[str, str], str]) -> None:
    shown = results("doctor", "")
    for kind in KINDS:
        assert f"my-{kind}" in shown
    assert "model 'my-model:world'" in shown
    assert "whole, recognised as toy-world" in shown


def test_why_names_them(bin: Path, tmp_path: Path) -> None:
    shown = must(bin, "sgld", "plugins", "why", "--op", "residual.gate", cwd=tmp_path)
    assert "my-kernel" in shown
    shown = must(bin, "sgld", "plugins", "why", "--op", "attention.self", cwd=tmp_path)
    assert "my-attention" in shown
    shown = must(bin, "sgld", "plugins", "why", "--platform", cwd=tmp_path)
    assert "my-platform" in shown
    shown = must(bin, "sgld", "plugins", "why", "my-model:world", cwd=tmp_path, **TOYS)
    assert "served by toy-world" in shown
    assert "my-model 0.1.0 carries it" in shown
