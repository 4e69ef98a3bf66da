"""docs/demo.md does what it says: every command and example of it is run, in order, against one
server; its pictures are what its script draws."""

from __future__ import annotations

import ast
import base64
import contextlib
import importlib.util
import io
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import httpx
import numpy as np
import pytest
from guide import ROOT, anchors, blocks, links
from PIL import Image

from sgld.cli.main import main
from sgld.testing.served import Served, served_apart, wait_for

PAGE: Final = ROOT / "docs" / "demo.md"
EXAMPLE: Final = ROOT / "examples" / "train_demo_world"
ROUTE: Final = "/v1/images/generations"
ADDRESS: Final = "localhost:30000"

pytestmark = pytest.mark.multi_process


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served_apart("", tmp_path_factory.mktemp("demo"), "--device", "cpu") as served:
        yield served


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("draw_demo", ROOT / "docs" / "draw_demo.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class Reader:
    """Runs the page in a folder; `ids` are those of the last video and picture that were made."""

    def __init__(self, server: Served, folder: Path) -> None:
        self.server, self.folder = server, folder
        self.ids: dict[str, str] = {}
        self.ran: list[str] = []

    def run(self, line: str) -> None:
        words = [word for word in shlex.split(line) if word]
        words = words[2:] if words[:2] == ["uv", "run"] else words
        self.ran.append(" ".join(words[:2]))
        if words == ["python", "docs/draw_demo.py"]:
            return  # test_the_script_draws has a short walk
        if words[:2] == ["sgld", "serve"]:
            self._sgld([*words[1:], "--print-config"], "demo:world")
        elif words[:2] == ["sgld", "generate"]:
            path = Path(self._sgld(words[1:], "[1/1]").split()[-1])
            assert path.stat().st_size > 0
        else:
            place = self.server.url.removeprefix("http://")
            words = [word.replace(ADDRESS, place) for word in words]
            for name, value in self.ids.items():
                words = [word.replace(name, value) for word in words]
            if words[0] == "curl":
                self._curl(words)
            else:
                assert words[0] == "python", line
                self._apart(sys.executable, str(ROOT / words[1]), *words[2:])

    def _sgld(self, words: list[str], wanted: str) -> str:
        said, told = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(told):
            code = main(words)
        assert code == 0, told.getvalue()
        both = said.getvalue() + told.getvalue()
        assert wanted in both
        assert "no model is named: using demo:world" in told.getvalue()
        return said.getvalue()

    def _curl(self, words: list[str]) -> None:
        fail = () if "--fail" in words else ("--fail-with-body",)
        shown = self._apart("curl", "-sS", "--noproxy", "*", *fail, *words[1:])
        if "--output" in words:
            assert (self.folder / words[-1]).stat().st_size > 0
            return
        made = json.loads(shown)
        kind = "IMAGE_ID" if "data" in made else "VIDEO_ID"
        self.ids[kind] = made["id"]
        if kind == "VIDEO_ID":
            wait_for(lambda: self._status(made["id"]) == "completed", "the video")

    def _status(self, name: str) -> str:
        answer = httpx.get(f"{self.server.url}/v1/videos/{name}", trust_env=False, timeout=30)
        assert answer.json()["status"] != "failed", answer.text
        return answer.json()["status"]

    def _apart(self, *command: str) -> str:
        done = subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout


def test_every_command_and_example_works(
    server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    reader = Reader(server, tmp_path)
    for block in blocks(PAGE):
        if block.language == "console":
            for line in block.text.strip().splitlines():
                reader.run(line)
        else:
            assert block.language == "python"
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                exec(compile(block.text, block.where, "exec"), {"__name__": "example"})
            assert "[(9, 96, 160, 3), (12, 96, 160, 3)] True" in said.getvalue()
    assert {"sgld serve", "sgld generate", "curl http://localhost:30000/v1/videos"} < {*reader.ran}
    for name in ("outputs/dusk.png", "dusk.png", "morning.png"):
        with Image.open(tmp_path / name) as picture:
            assert picture.size == (160, 96), name
    assert len(list((tmp_path / "frames").glob("*.jpg"))) == 9 + 5 * 12


def test_pictures_over_http(server: Served) -> None:
    """By a model of clips: one frame, without previews of it, and no length to choose."""
    with httpx.Client(base_url=server.url, trust_env=False, timeout=60) as web:
        (card,) = web.get("/v1/models").json()["data"]
        assert card["supported_task_types"] == ["image-to-video", "text-to-video", "text-to-image"]
        body: dict[str, Any] = {"prompt": "a clear cold dusk", "seed": 2}
        two = web.post(ROUTE, json={**body, "n": 2, "response_format": "b64_json"}).json()
        pictures = [
            Image.open(io.BytesIO(base64.b64decode(one["b64_json"]))) for one in two["data"]
        ]
        assert [one.size for one in pictures] == [(160, 96)] * 2
        assert np.abs(np.subtract(*(np.asarray(one, float) for one in pictures))).mean() > 4
        told = web.post(ROUTE, json={**body, "stream": True, "partial_images": 2}).text
        assert re.findall(r"^event: (.+)$", told, re.M) == ["image_generation.completed"]
        assert "hands out its clip chunk by chunk" in told
        refused = web.post(ROUTE, json={**body, "num_frames": 9})
        assert refused.status_code == 400
        assert "/v1/videos makes clips" in refused.json()["error"]["message"]
        edit = web.post("/v1/images/edits", json={"prompt": "night"})
        assert edit.json()["error"]["code"] == "unsupported_task"


def test_links_lead_somewhere() -> None:
    found = list(links(PAGE))
    assert len(found) >= 6
    for file, anchor in found:
        target = PAGE.parent / file if file else PAGE
        assert target.exists(), file
        assert not anchor or anchor in anchors(target)


def test_the_vocabulary_is_that_of_the_training() -> None:
    """Read, not imported: the training needs more than a page does."""
    source = ast.parse((EXAMPLE / "demo_world" / "looks.py").read_text("utf-8"))
    (words,) = (
        ast.literal_eval(node.value)
        for node in source.body
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "WORDS"
    )
    rows = re.findall(r"^\| (?:time|weather|palette|pillars) \| (.+) \|$", PAGE.read_text(), re.M)
    told: dict[str, tuple[str, ...]] = {}
    for group in (group for row in rows for group in row.split(" · ")):
        said = group.replace("**", "").split()
        told[said[0]] = tuple(said)
    assert told == dict(words)


@pytest.fixture(scope="module")
def model() -> Iterator[Any]:
    import sgld

    with sgld.load("demo:world", device="cpu", dtype="float32") as loaded:
        yield loaded


def test_the_script_draws(script: ModuleType, model: Any, tmp_path: Path) -> None:
    """A short walk of it: the same kinds of pictures, and the same first frames as the long one."""
    whole = script.WALK
    assert sum(part.chunks for part in whole) >= 10
    assert len({part.prompt for part in whole}) >= 2
    assert {"w", "j", "l"} == {key for part in whole for key in part.keys}
    parts = [script.Part(4, *whole[0][1:]), script.Part(4, ("w", "j"), script.NIGHT)]
    frames = script.walk(model, parts)
    assert len(frames) == 9 + 7 * 12
    script.draw_gif(tmp_path / script.GIF, frames)
    script.draw_strip(tmp_path / script.STRIP, frames)
    with Image.open(tmp_path / script.GIF) as made, Image.open(ROOT / "docs" / script.GIF) as kept:
        assert made.n_frames == len(frames)
        assert made.size == kept.size
        first, shown = (np.asarray(one.convert("RGB"), float) for one in (made, kept))
    assert np.abs(first - shown).mean() < 6, "the pictures in docs are of another world"
    with Image.open(tmp_path / script.STRIP) as strip:
        before, after = (np.asarray(strip)[part] for part in (slice(0, 192), slice(216, 408)))
        assert strip.size == (4 * 320, 2 * 216)
    assert after.mean() < 0.6 * before.mean()


def test_the_pictures_are_as_large_as_said(script: ModuleType) -> None:
    gif, strip = ROOT / "docs" / script.GIF, ROOT / "docs" / script.STRIP
    assert gif.stat().st_size < 3e6
    with Image.open(gif) as walk:
        assert walk.size == (320, 192 + script.BAR)
        assert walk.n_frames == 9 + 12 * (sum(part.chunks for part in script.WALK) - 1)
        assert walk.info["duration"] == script.DELAY
    with Image.open(strip) as pictures:
        assert pictures.size == (4 * 320, 2 * (192 + script.BAR))
