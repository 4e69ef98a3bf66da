"""The wheels, installed into fresh virtual environments: core alone, and core with Wan.

Third-party packages come from the package cache, so this takes seconds on a machine that has run
`uv sync`, and needs the package index on one that has not.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PLUGINS = {path.name: path for path in sorted((ROOT / "plugins").iterdir()) if path.is_dir()}
DISTS = {"sgld-core": ROOT / "core", **PLUGINS}
PACKAGES = {"sgld-core": "sgld"} | {name: name.replace("-", "_") for name in PLUGINS}

pytestmark = [pytest.mark.slow, pytest.mark.multi_process]


def run(
    *command: str | Path, cwd: Path | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run a command with little environment, so that this one's paths do not leak in."""
    keep = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "SGLD", "VIRTUAL"))}
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**keep, "HF_HUB_OFFLINE": "1", **env},
        capture_output=True,
        text=True,
        check=False,
    )


def must(*command: str | Path, cwd: Path | None = None, **env: str) -> str:
    """The same, but failing is a test failure that shows the output."""
    done = run(*command, cwd=cwd, **env)
    assert done.returncode == 0, f"{command} gave {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with wheel and sdist of every distribution."""
    folder = tmp_path_factory.mktemp("dist")
    for source in DISTS.values():
        must("uv", "build", "--quiet", "--out-dir", folder, source)
    return folder


@pytest.fixture(scope="module")
def environment(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`environment("sgld-core sgld-wan")` is the bin folder of a venv with just those wheels."""

    def make(names: str) -> Path:
        folder = tmp_path_factory.mktemp("venv")
        must("uv", "venv", "--quiet", "--python", sys.executable, folder)
        wheels = [next(built.glob(f"{name.replace('-', '_')}-*.whl")) for name in names.split()]
        pins = folder / "pins.txt"
        must("uv", "export", "--quiet", "--no-hashes", "--no-emit-workspace", "--no-annotate",
             "--no-header", "--no-dev", "-o", pins, cwd=ROOT)  # fmt: skip
        must("uv", "pip", "install", "--quiet", "--python", folder / "bin" / "python",
             "--constraints", pins, *wheels)  # fmt: skip
        return folder / "bin"

    return make


@pytest.mark.parametrize("name", DISTS)
def test_wheel_and_sdist_hold_what_they_should(name: str, built: Path) -> None:
    package, stem = PACKAGES[name], name.replace("-", "_")
    with zipfile.ZipFile(next(built.glob(f"{stem}-*.whl"))) as wheel:
        names = wheel.namelist()
        info = next(n for n in names if n.endswith(".dist-info/METADATA"))
        metadata = wheel.read(info).decode()
        assert f"{package}/py.typed" in names
        assert any(n.endswith("licenses/LICENSE") for n in names)
        assert not [n for n in names if "__pycache__" in n or n.startswith("tests")]
        # Every file of the source tree is there: modules, and what they read, such as the page.
        source = DISTS[name] / "src"
        files = [p for p in source.rglob("*") if p.is_file() and "__pycache__" not in p.parts]
        assert {str(p.relative_to(source)) for p in files} <= set(names)
    assert "License-Expression: Apache-2.0" in metadata
    assert f"# {name}" in metadata, "the README is the long description"
    requirements = [row for row in metadata.splitlines() if row.startswith("Requires-Dist")]
    if name == "sgld-core":
        assert not [row for row in requirements if "diffusers" in row or "transformers" in row]
    else:
        assert any("sgld-core" in row and ">=" in row and "<" in row for row in requirements)
    with tarfile.open(next(built.glob(f"{stem}-*.tar.gz"))) as sdist:
        members = sdist.getnames()
    for wanted in ("README.md", "LICENSE", "pyproject.toml", f"src/{package}/__init__.py"):
        assert any(m.endswith(wanted) for m in members), wanted


def test_core_alone_helps_and_says_what_to_install(
    environment: Callable[[str], Path], tmp_path: Path
) -> None:
    sgld = environment("sgld-core") / "sgld"
    assert "generate" in must(sgld, "--help")
    listed = json.loads(must(sgld, "plugins", "list", "--json"))
    assert [row["name"] for row in listed["plugins"]] == ["builtin"]
    model = tmp_path / "some model"
    model.mkdir()
    (model / "model_index.json").write_text('{"_class_name": "WanPipeline"}')
    done = run(sgld, "generate", "--model-path", model, "--prompt", "x", cwd=tmp_path)
    assert done.returncode == 2
    assert "pip install sgld-wan" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "outputs").exists()


def test_core_and_wan_generate_a_video(environment: Callable[[str], Path], tmp_path: Path) -> None:
    sgld = environment("sgld-core sgld-wan") / "sgld"
    must(sgld, "generate", "--model-path", "tiny:wan-t2v", "--prompt", "a kite", "--seed", "1",
         "--num-inference-steps", "2", "--output-path", tmp_path, cwd=tmp_path)  # fmt: skip
    video = next(tmp_path.glob("*.mp4"))
    python = sgld.parent / "python"
    count = must(
        python, "-c", f"import av; print(sum(1 for _ in av.open({str(video)!r}).decode()))"
    )
    assert int(count) == 9


def test_every_plugin_installs_beside_the_others(
    environment: Callable[[str], Path], tmp_path: Path
) -> None:
    sgld = environment(" ".join(DISTS)) / "sgld"
    listed = json.loads(must(sgld, "plugins", "list", "--json"))
    names = {row["dist"] for row in listed["plugins"]}
    assert names == set(DISTS)
    assert all(row["state"] == "ok" for row in listed["plugins"])
    must(sgld, "generate", "--model-path", "tiny:sana", "--prompt", "a kite",
         "--num-inference-steps", "2", "--output-path", tmp_path, cwd=tmp_path)  # fmt: skip
    assert list(tmp_path.glob("*.png"))
